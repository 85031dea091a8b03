"""The cost of a slot when workers are slow: rate p = 0.1 against p = 1.

Run with ``python -m benchmarks.rates``. At p = 0.1 workers take a tenth of the steps, and the cost
of a slot should fall accordingly. Measured on our engine with one process per core, for the
paper's periods (q tau = 32).
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.images import image_data
from benchmarks.loops import engine_loop
from benchmarks.report import Spread, cores, interleave, options, ratios, table, verdict, write
from benchmarks.simulation import network_options, run_config
from benchmarks.team import Team

SLOW = "0.1"


def measure(model: str, tau: int, data: dict[str, str], choice: Namespace) -> list[str]:
    """Measure one model with one period; return its row of the table."""
    choice.tau, choice.q = tau, max(1, choice.slots // tau)
    shares = [[part] for part in range(min(cores(), choice.hubs))]
    # Slices of about a second with either model.
    more = 1 if model == "cnn" or choice.quick else 10
    with ExitStack() as stack:
        cases = {}
        for rate in ("1", SLOW):
            values = {**run_config(data, model, choice), "rates": rate}
            rounds = choice.q * more * (1 if rate == "1" else choice.longer)
            arguments = [(values, share, rounds) for share in shares]
            team = stack.enter_context(Team(engine_loop, arguments))
            cases[f"{model}, tau = {tau}, p = {rate}"] = partial(team.microseconds, choice.slices)
        found = list(interleave(cases, choice.repeats).values())
    ratio = ratios(found[1], found[0])
    spreads = [Spread.of(values).text() for values in found]
    return [f"{model}, tau = {tau}, q = {choice.q}", *spreads, ratio.text(), verdict(ratio, 0.2)]


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the table."""
    parser = options("Cost of a slot at p = 0.1 and at p = 1.", repeats=7, data=True)
    network_options(parser)
    parser.add_argument("--taus", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--slots", type=int, default=32, help="q tau")
    parser.add_argument(
        "--slices", type=int, default=3, help="a measurement is the fastest of these"
    )
    parser.add_argument("--longer", type=int, default=5, help="factor of the slots at p = 0.1")
    choice = parser.parse_args(arguments)
    rows = 60_000
    if choice.quick:
        choice.hubs, choice.workers, choice.slots, choice.taus = 2, 2, 4, [4]
        choice.repeats, choice.longer, rows = 1, 1, 2_000
    with tempfile.TemporaryDirectory() as name:
        data = image_data(choice.data_dir, Path(name), rows)
        lines = [measure(m, tau, data, choice) for m in choice.models for tau in choice.taus]
    headings = ["", "us per slot, p = 1", "us per slot, p = 0.1", "ratio", "holds"]
    text = table(headings, lines)
    text += "\n\nMicroseconds of wall time per slot of a worker; "
    text += f"{choice.repeats} repetitions, each the fastest of {choice.slices} slices."
    write(choice.docs, "rates", text)


if __name__ == "__main__":
    main()
