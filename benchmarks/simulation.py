"""Wall time per worker-step: ``flwr run`` against the authors' loop, a bare loop and FedAvg.

A worker-step is one mini-batch step of one worker. Run with ``python -m benchmarks.simulation``:
10 hubs of 10 workers, tau = 8, q = 4, batches of 32 images of 28x28 pixels, rate 1. Every
repetition measures every case once, as the fastest of several slices; start-up (of Flower, the
data, the first message) is left out. ``--paper`` also makes one whole run of the paper's size:
logistic regression, 100 workers, 32,000 slots.
"""

from __future__ import annotations

import json
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import report
from benchmarks.authors import authors_loop
from benchmarks.flower import message_ends, run_fedavg, run_ours
from benchmarks.images import image_data
from benchmarks.loops import bare_loop, engine_loop, multiply_loop, step_operations
from benchmarks.peak import PEAK, peak_loop
from benchmarks.report import Spread, cores, number, ratios, verdict
from benchmarks.team import Team
from mll_flower.native.machine_code import why_unavailable
from mll_flower.results import files

AUTHORS = "the authors' loop, one process, all cores"
ONE_THREAD = "the authors' loop, one process, one thread"
REDRAWN = "the same, all cores, rows drawn again in every round"
BARE = "bare PyTorch loop, one process per core"
ENGINE = "our engine without Flower, one process per core"
AUTOGRAD = "the same, gradients from autograd"
OURS = 'flwr run, pool = "hub"'
FEDAVG = "Flower's FedAvg, one node per worker, our training"
LIMIT = "the machine's limit: sgemm of the same operations"

MODELS = ("cnn", "logistic")
# Bounds on the time of `flwr run`, as a share of the authors'.
OF_THE_AUTHORS = {"cnn": 0.2, "logistic": 0.5}


def run_config(data: dict[str, str], model: str, choice: Namespace) -> dict[str, Any]:
    """Return the run config that all cases share."""
    return {
        **data,
        "model": model,
        "hubs": choice.hubs,
        "workers-per-hub": str(choice.workers),
        "graph": "complete",
        "rates": "1",
        "tau": choice.tau,
        "q": choice.q,
        "learning-rate": 0.01,
    }


def measure(model: str, data: dict[str, str], choice: Namespace, folder: Path) -> None:
    """Measure all cases of a model and write its section."""
    values = run_config(data, model, choice)
    workers: int = choice.hubs * choice.workers
    tau, q, messages = int(choice.tau), int(choice.q), int(choice.messages)
    shares = [list(range(part, choice.hubs, cores())) for part in range(cores())]
    brief = choice.quick or model == "cnn"
    runs = iter(range(1000))

    def ours() -> float:
        count = (messages if brief else 10 * messages) + 1
        place = folder / f"run{next(runs)}"
        settings = {**values, "slots": q * tau * count, "evaluate-every": q * tau * count}
        ends = np.array(message_ends(run_ours(settings, place / "out", place / "home")))
        return _fastest_slice(ends, messages, workers * q * tau)

    def fedavg() -> float:
        place = folder / f"run{next(runs)}"
        place.mkdir(parents=True)
        settings = {**values, "slots": tau * (messages + 1)}
        # Without the first entry, which is the time before the first round.
        ends = np.array(run_fedavg(settings, place / "ended.json", place / "home")[1:])
        return _fastest_slice(ends, messages, workers * tau)

    with ExitStack() as stack:
        team = partial(_team, stack)
        # Slices of about a second: a few of the hubs, and more rounds of the faster model.
        rounds = 1 if brief else 25
        loop = (values, min(2, choice.hubs), rounds)
        authors = team(authors_loop, [loop], cores())
        one_thread = team(authors_loop, [loop])
        redrawn = team(authors_loop, [(*loop, True)], cores())
        bare = team(bare_loop, [(values, 20 if choice.quick else 100)] * cores())
        engine = team(engine_loop, [(values, share[:1], q * rounds) for share in shares])
        slow = {**values, "engine": "autograd"}
        autograd = team(engine_loop, [(slow, share[:1], q * rounds) for share in shares])
        size = 256 if choice.quick else 1024
        products = team(multiply_loop, [(size, 20)] * cores())
        operations = step_operations(values) / 1e6
        cases: dict[str, Callable[[], float]] = {
            AUTHORS: partial(authors.microseconds, messages),
            ONE_THREAD: partial(one_thread.microseconds, messages),
            REDRAWN: partial(redrawn.microseconds, messages),
            BARE: partial(bare.microseconds, messages),
            ENGINE: partial(engine.microseconds, messages),
            AUTOGRAD: partial(autograd.microseconds, messages),
            OURS: ours,
            FEDAVG: fedavg,
            LIMIT: lambda: products.microseconds(messages) * operations,
        }
        if why_unavailable() is None:
            peak = team(peak_loop, [()] * cores())
            cases[PEAK] = lambda: peak.microseconds(messages) * operations
        if model == "logistic":
            del cases[AUTOGRAD]  # its gradient is written out, with any engine
        if choice.no_flower:
            del cases[OURS], cases[FEDAVG]
        found = report.interleave(cases, choice.repeats)
    _write(model, found, choice, data["dataset"].partition(":")[0])


def _fastest_slice(ends: NDArray[np.float64], slices: int, steps: int) -> float:
    """Return the microseconds per step in the fastest slice of a run, after its first message."""
    seconds = np.diff(ends)
    size = len(seconds) // slices
    return float(1e6 * seconds[: size * slices].reshape(slices, size).mean(axis=1).min() / steps)


def _team(stack: ExitStack, setup: Any, arguments: list[tuple[Any, ...]], threads: int = 1) -> Team:
    return stack.enter_context(Team(setup, arguments, threads))


def _write(model: str, found: dict[str, list[float]], choice: Namespace, data: str) -> None:
    mine = OURS if OURS in found else ENGINE
    rows = [
        [name, Spread.of(values).text(), ratios(values, found[mine]).text()]
        for name, values in found.items()
    ]
    text = report.table(
        ["", "us per worker-step: median (range)", f"ratio to {mine}: median (range)"],
        rows,
    )
    # The faster of the two: threads that wait for one another suffer most from other load.
    rival = min((AUTHORS, ONE_THREAD), key=lambda name: Spread.of(found[name]).median)
    text += f"\n\nThe faster of the authors' loops: {rival}.\n\n"
    for name in (OURS, ENGINE):
        if name in found:
            share = ratios(found[name], found[rival])
            holds = verdict(share, OF_THE_AUTHORS[model])
            text += f"- {name} / that loop: {share.text()}; holds: {holds}\n"
    if OURS in found:
        share = ratios(found[OURS], found[REDRAWN])
        text += f"- {OURS} / the loop that draws its rows again: {share.text()}\n"
        over = ratios(found[OURS], found[ENGINE])
        text += f"- {OURS} / our engine alone: {over.text()}"
        text += f"; holds: {verdict(over, 1.15)}\n" if model == "cnn" else "\n"
    if model == "cnn":
        for name, bound in ((OURS, 1.4), (ENGINE, 1.2)):
            if name in found:
                share = ratios(found[name], found[LIMIT])
                holds = verdict(share, bound)
                text += f"- {name} / the machine's limit: {share.text()}; holds: {holds}\n"
    plot = report.plot_path(choice.docs, f"simulation-{model}")
    report.bars(
        plot,
        {name: Spread.of(values) for name, values in found.items()},
        f"wall microseconds per worker-step, {model}, batch 32, "
        f"{choice.hubs * choice.workers} workers",
    )
    text += f"\n![{model}](figures/{plot.name})\n\n"
    kind = "MNIST" if data == "mnist" else "random images"
    text += f"Data: {kind}; {choice.repeats} repetitions, "
    text += f"each the fastest of {choice.messages} slices."
    report.write(choice.docs, f"simulation-{model}", text)


def paper_run(data: dict[str, str], choice: Namespace, folder: Path) -> None:
    """Make one run of the paper's size, evaluated at every mixing, and write its times."""
    values = run_config(data, "logistic", choice)
    values |= {"slots": choice.paper_slots, "rates": "1", "learning-rate": 0.2}
    start = time.perf_counter()
    output = run_ours(values, folder / "paper" / "out", folder / "paper" / "home")
    whole = time.perf_counter() - start
    summary = json.loads((output / files.METRICS).read_text())["summary"]
    rows = [
        ["slots", f"{summary['slot']:,}"],
        ["worker-steps", f"{summary['steps']:,}"],
        ["seconds from command to results", number(whole)],
        ["of these, from the first message on", number(summary["seconds"])],
        [
            f"of these, in {choice.paper_slots // (choice.tau * choice.q):,} evaluations",
            number(summary["seconds_evaluating"]),
        ],
        ["test accuracy", f"{summary['accuracy']:.3f}"],
    ]
    text = report.table(["logistic regression, 100 workers", ""], rows)
    report.write(choice.docs, "paper-run", text)


def network_options(parser: ArgumentParser) -> None:
    """Add the options for models and for the size of the network."""
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--hubs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=10, help="per hub")


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the tables."""
    parser = report.options("Wall time per worker-step.", repeats=5, data=True)
    network_options(parser)
    parser.add_argument("--tau", type=int, default=8)
    parser.add_argument("--q", type=int, default=4)
    parser.add_argument(
        "--messages",
        type=int,
        default=3,
        help="slices per case; through Flower, each is one mixing (logistic regression: ten)",
    )
    parser.add_argument(
        "--no-flower", action="store_true", help="leave out what runs through Flower"
    )
    parser.add_argument("--paper", action="store_true", help="also one run of the paper's size")
    parser.add_argument("--paper-slots", type=int, default=32_000)
    choice = parser.parse_args(arguments)
    rows = 60_000
    if choice.quick:
        choice.hubs, choice.workers, choice.tau, choice.q = 2, 2, 2, 1
        choice.repeats, choice.messages, choice.paper_slots, rows = 1, 3, 64, 2_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = image_data(choice.data_dir, folder, rows)
        for model in choice.models:
            measure(model, data, choice, folder / model)
        if choice.paper:
            paper_run(data, choice, folder)


if __name__ == "__main__":
    main()
