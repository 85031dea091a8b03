"""Time and memory of larger networks, and of long runs.

Run with ``python -m benchmarks.scaling``. Its first part measures rounds (one slot of the CNN, hubs
of ten workers) of networks with 100 to 1,000 workers, in process and through ``flwr run``: the
seconds per round, with a straight line fitted to them, and the peak memory. Its second part has
networks of up to 1,000 hubs with 10,000 workers: logistic regression, and the CNN with workers that
take a step in one slot of ten. Its third part is a run of 1,000 rounds of logistic regression, with
straight lines fitted to its memory and to its seconds per round. Every round is one message to each
hub.
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.flower import message_ends, run_ours
from benchmarks.images import image_data
from benchmarks.memory import ACTORS, FLOWERS, RAYS, SIMULATION, Sampler, peak, resident
from benchmarks.report import Spread, lines, number, options, plot_path, table, write
from mll_flower.config import RunConfig
from mll_flower.results import files

IN_PROCESS, FLOWER = "in process, one core", 'flwr run, pool = "hub"'
LIMITS = {IN_PROCESS: 2000, FLOWER: 2800}
"""Megabytes that the largest network may take."""


def _values(data: dict[str, str], model: str, hubs: int, workers: int, slots: int) -> Any:
    return {
        **data,
        "model": model,
        "hubs": hubs,
        "workers-per-hub": str(workers),
        "graph": "ring" if hubs > 2 else "complete",
        "rates": "1",
        "tau": 1,
        "q": 1,
        "slots": slots,
        "evaluate-every": slots,
        "evaluate-limit": 100,
        "learning-rate": 0.01,
    }


def _run_and_answer(values: dict[str, Any], output: Path, answer: SimpleQueue[Any]) -> None:
    """Run in this process; answer with its memory after each message and at its peak."""
    from mll_flower.apps.network_run import run_network
    from mll_flower.apps.worker_app import worker_app
    from mll_flower.grids.in_process import InProcessGrid

    values = {**values, "output": str(output)}
    sizes: list[float] = []
    grid = InProcessGrid(worker_app(), RunConfig.read(values).nodes, values)
    run_network(grid, values, lambda: sizes.append(resident()))
    answer.put((sizes, peak()))


def run_in_process(values: dict[str, Any], output: Path) -> tuple[list[float], list[float], float]:
    """Run in one new process; return the ends of messages, memory after each, and its peak."""
    context = get_context("spawn")
    answer: SimpleQueue[Any] = context.SimpleQueue()
    process = context.Process(target=_run_and_answer, args=(values, output, answer))
    process.start()
    while process.is_alive() and answer.empty():
        time.sleep(0.05)
    if answer.empty():
        raise RuntimeError("the run in process failed; its traceback is above")
    sizes, size = answer.get()
    process.join()
    return message_ends(output), sizes, size


def run_flower(values: dict[str, Any], place: Path) -> tuple[list[float], Sampler]:
    """Run through Flower; return the ends of messages, and the memory of all its processes."""
    home = place / "home"
    with Sampler(home) as sampler:
        run_ours(values, place / "out", home)
    return message_ends(place / "out"), sampler


def measure_sizes(data: dict[str, str], choice: Namespace, folder: Path) -> None:
    """Measure rounds of networks of several sizes."""
    seconds: dict[str, dict[int, Spread]] = {IN_PROCESS: {}}
    peaks: dict[str, dict[int, float]] = {IN_PROCESS: {}}
    if not choice.no_flower:
        seconds[FLOWER], peaks[FLOWER] = {}, {}
    for count in choice.workers:
        values = _values(data, "cnn", count // choice.hub_size, choice.hub_size, choice.messages)
        ends, _, size = run_in_process(values, folder / f"in-process{count}")
        seconds[IN_PROCESS][count] = Spread.of(np.diff(ends).tolist())
        peaks[IN_PROCESS][count] = size
        if FLOWER in seconds:
            ends, sampler = run_flower(values, folder / f"flower{count}")
            seconds[FLOWER][count] = Spread.of(np.diff(ends).tolist())
            peaks[FLOWER][count] = sampler.peak
            at_peak = sampler.at_peak
    rows = [
        [f"{count:,} workers, {way}", found[count].text(), number(peaks[way][count])]
        for way, found in seconds.items()
        for count in choice.workers
    ]
    text = table(["", "seconds per round: median (range)", "peak memory, MB"], rows) + "\n\n"
    series = {}
    for way, found in seconds.items():
        medians = [found[count].median for count in choice.workers]
        text += f"- {way}: {_fit(choice.workers, medians)}\n"
        series[way] = (choice.workers, medians)
    most, least = max(choice.workers), min(choice.workers)
    for way, sizes in peaks.items():
        limit = LIMITS[way]
        holds = "yes" if sizes[most] < limit else "**no**"
        more = number(sizes[most] - sizes[least])
        text += f"- {most:,} CNN workers under {limit / 1e3:g} GB, {way}: {holds} "
        text += f"({number(sizes[most])} MB, "
        text += f"of which {more} MB came with the last {most - least:,} workers)\n"
    if FLOWER in seconds:
        text += "\n" + _processes(at_peak)
    plot = plot_path(choice.docs, "scaling")
    lines(plot, series, "workers", "seconds per round (one slot of the CNN)")
    write(choice.docs, "scaling", text + f"\n![scaling](figures/{plot.name})")


def _processes(at_peak: Mapping[str, Sequence[float]]) -> str:
    """Return the table of where the memory of the largest network's run is."""
    rows = [
        [name, str(len(at_peak[name])), number(sum(at_peak[name]))]
        for name in (SIMULATION, ACTORS, FLOWERS, RAYS)
        if name in at_peak
    ]
    return table([f"{FLOWER}, the last row: where it is", "processes", "MB"], rows) + "\n"


def measure_large(data: dict[str, str], choice: Namespace, folder: Path) -> None:
    """Measure networks of a thousand hubs: what takes more time per worker than in smaller ones."""
    headings = [
        "",
        "seconds per round: median (range)",
        "us per worker and round",
        "whole run, s",
        "peak memory, MB",
    ]
    rows = []
    for model, rate in (("logistic", "1"), ("cnn", "0.1")):
        for hubs in choice.large_hubs:
            values = _values(data, model, hubs, choice.hub_size, choice.messages)
            values["rates"] = rate
            name = f"{model}, p = {rate}: {hubs * choice.hub_size:,} workers, {hubs:,} hubs"
            start = time.monotonic()
            ends, _, size = run_in_process(values, folder / f"large-{model}{hubs}")
            rows.append(_large_row(name, IN_PROCESS, start, ends, hubs * choice.hub_size, size))
            if not choice.no_flower:
                start = time.monotonic()
                ends, sampler = run_flower(values, folder / f"large-flower-{model}{hubs}")
                workers = hubs * choice.hub_size
                rows.append(_large_row(name, FLOWER, start, ends, workers, sampler.peak))
            # After each size: the largest ones take minutes, and may not fit into the memory.
            write(choice.docs, "large", table(headings, rows))


def _large_row(
    name: str, way: str, start: float, ends: list[float], workers: int, size: float
) -> list[str]:
    whole, spread = time.monotonic() - start, Spread.of(np.diff(ends).tolist())
    per_worker = 1e6 * spread.median / workers
    return [f"{name}, {way}", spread.text(), number(per_worker), number(whole), number(size)]


def _fit(counts: list[int], medians: list[float]) -> str:
    """Fit a straight line; return it as text, with the distance of the points from it."""
    if len(counts) < 2:
        return "one size only, no line"
    slope, start = np.polyfit(counts, medians, 1)
    off = np.abs(np.polyval([slope, start], counts) - medians) / np.array(medians)
    first, last = medians[0] / counts[0], medians[-1] / counts[-1]
    return (
        f"{1e3 * slope:.2f} ms per worker + {1e3 * start:.0f} ms; the points are within "
        f"{100 * off.max():.0f}% of the line; a worker among {counts[-1]:,} costs "
        f"{last / first:.2f} times as much as one among {counts[0]:,}"
    )


def measure_long_run(data: dict[str, str], choice: Namespace, folder: Path) -> None:
    """Measure whether time or memory grow with the rounds."""
    values = _values(data, "logistic", choice.hubs, choice.hub_size, choice.rounds)
    ends, sizes, _ = run_in_process(values, folder / "long")
    at = [float(k) for k in range(1, len(sizes) + 1)]
    rows = [[IN_PROCESS, *_row(ends, at, sizes)]]
    memory = {IN_PROCESS: (at, sizes)}
    times = {IN_PROCESS: _smooth(ends)}
    if not choice.no_flower:
        ends, sampler = run_flower(values, folder / "long-flower")
        # The file with one row per round is last written when the rounds end.
        over = (folder / "long-flower" / "out" / files.ROWS).stat().st_mtime
        span = ends[-1] - ends[0]
        inside = [(t, size) for t, size in sampler.samples if over - span < t <= over]
        at = [len(ends) * (t - (over - span)) / span for t, _ in inside]
        rows.append([FLOWER, *_row(ends, at, [size for _, size in inside])])
        memory[FLOWER] = (at, [size for _, size in inside])
        times[FLOWER] = _smooth(ends)
    headings = [
        f"{choice.rounds:,} rounds",
        "ms per round, first fifth",
        "last fifth",
        "slope, us per round",
        "memory after a fifth, MB",
        "at the end",
        "slope, KB per round",
    ]
    plots = plot_path(choice.docs, "rounds-memory"), plot_path(choice.docs, "rounds-seconds")
    lines(plots[0], memory, "round", "megabytes", dots=False)
    lines(plots[1], times, "round", "milliseconds per round", dots=False)
    text = table(headings, rows) + "\n\n"
    text += "\n".join(f"![{path.stem}](figures/{path.name})" for path in plots)
    write(choice.docs, "rounds", text)


def _row(ends: list[float], at: list[float], sizes: list[float]) -> list[str]:
    """Return how time and memory change over a run, after its first fifth (warming up)."""
    seconds = np.diff(ends)
    fifth = max(1, len(seconds) // 5)
    place = np.arange(len(seconds))
    slope = np.polyfit(place[fifth:], seconds[fifth:], 1)[0] if len(seconds) > fifth + 1 else 0.0
    settled = [(x, y) for x, y in zip(at, sizes, strict=True) if x > len(ends) / 5]
    growth = 0.0
    if len(settled) > 1:
        rounds, megabytes = np.array(settled).T
        growth = np.polyfit(rounds, megabytes, 1)[0]
    begin = settled[0][1] if settled else sizes[0]
    return [
        number(1e3 * float(np.median(seconds[:fifth]))),
        number(1e3 * float(np.median(seconds[-fifth:]))),
        f"{1e6 * slope:+.2f}",
        number(begin),
        number(sizes[-1]),
        f"{1e3 * growth:+.2f}",
    ]


def _smooth(ends: list[float], window: int = 20) -> tuple[list[float], list[float]]:
    """Return rounds and their milliseconds, averaged over windows of rounds."""
    means = 1e3 * np.diff(ends)
    rounds = len(means)
    if rounds >= window:
        means = means[: rounds // window * window].reshape(-1, window).mean(axis=1)
    return np.linspace(1, rounds, len(means)).tolist(), means.tolist()


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the tables."""
    parser = options("Time and memory against workers and rounds.", repeats=1, data=True)
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 200, 400, 700, 1000])
    parser.add_argument("--hub-size", type=int, default=10, help="workers per hub")
    parser.add_argument("--hubs", type=int, default=10, help="hubs of the long run")
    parser.add_argument("--messages", type=int, default=6, help="rounds of each network size")
    parser.add_argument("--rounds", type=int, default=1000, help="rounds of the long run")
    parser.add_argument(
        "--no-flower", action="store_true", help="leave out what runs through Flower"
    )
    parser.add_argument("--only", choices=["workers", "large", "rounds"], help="one of the parts")
    parser.add_argument("--large-hubs", type=int, nargs="+", default=[100, 250, 1000])
    choice = parser.parse_args(arguments)
    rows = 60_000
    if choice.quick:
        choice.workers, choice.hub_size, choice.hubs, choice.rounds = [4, 8], 2, 2, 50
        choice.messages, rows, choice.large_hubs = 3, 2_000, [2, 4]
    with tempfile.TemporaryDirectory() as name:
        data = image_data(choice.data_dir, Path(name), rows)
        if choice.only in (None, "workers"):
            measure_sizes(data, choice, Path(name))
        if choice.only in (None, "large"):
            measure_large(data, choice, Path(name))
        if choice.only in (None, "rounds"):
            measure_long_run(data, choice, Path(name))


if __name__ == "__main__":
    main()
