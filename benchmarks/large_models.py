"""A round of a large model: `MultiLevelStrategy` against Flower's FedAvg, time and memory.

Run with ``python -m benchmarks.large_models``. Each measurement is a process of its own, which
makes the replies of all workers, hands them to the strategy's ``aggregate_train`` and prepares the
messages of the next round. Memory is the peak of the process, less what it had before the first
model; the replies, which both strategies need, are in it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from benchmarks import memory, report
from benchmarks.report import Spread, number, ratios, verdict
from mll_flower import MultiLevelStrategy
from mll_flower.grids.in_process import InProcessGrid

MOST_TIME, MOST_MEMORY = 1.5, 1.2
LAYERS = 20


def strategy_of(hubs: int, graph: str) -> FedAvg:
    """Return FedAvg (``hubs`` is 0) or a strategy with these hubs."""
    if hubs:
        return MultiLevelStrategy(hubs=hubs, graph=graph, fraction_evaluate=0.0)
    return FedAvg(fraction_evaluate=0.0)


def new_model(megabytes: float, seed: int) -> ArrayRecord:
    """Make a model of float32 layers."""
    rng = np.random.default_rng(seed)
    size = int(megabytes * 1e6 / 4 / LAYERS)
    return ArrayRecord([rng.standard_normal(size, dtype=np.float32) for _ in range(LAYERS)])


def measure(hubs: int, graph: str, megabytes: float, workers: int) -> tuple[float, float]:
    """Return the seconds and the peak megabytes of a round, in this process."""
    strategy = strategy_of(hubs, graph)
    grid = InProcessGrid(ClientApp(), workers, {})
    before = memory.resident()
    arrays = new_model(megabytes, 0)
    # The first round is small work, but compiles what is compiled.
    asked = list(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    replies = []
    for k, message in enumerate(asked):
        metrics = MetricRecord({"num-examples": 100 + k})
        content = RecordDict({"arrays": new_model(megabytes, k + 1), "metrics": metrics})
        message.metadata.__dict__["_message_id"] = str(k)
        replies.append(Message(content, reply_to=message))
    del asked, message, content
    warm_up(hubs, graph)
    started = time.monotonic()
    aggregated, _ = strategy.aggregate_train(1, replies)
    seconds = time.monotonic() - started
    assert aggregated is not None
    return seconds, memory.peak() - before


def touch_memory(megabytes: float) -> None:
    """Use some memory in a process of its own: the first use of a virtual machine's is slow."""
    code = f"import numpy; numpy.ones({int(megabytes * 1e6)}, 'u1')"
    subprocess.run([sys.executable, "-c", code], check=True)


def warm_up(hubs: int, graph: str) -> None:
    """Aggregate a tiny model, so that nothing is compiled or loaded while time is taken."""
    strategy = strategy_of(hubs, graph)
    grid = InProcessGrid(ClientApp(), 8, {})
    asked = strategy.configure_train(1, new_model(1.0, 0), ConfigRecord(), grid)
    replies = []
    for message in asked:
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": new_model(1.0, 1), "metrics": metrics})
        replies.append(Message(content, reply_to=message))
    strategy.aggregate_train(1, replies)


def in_a_process(hubs: int, graph: str, megabytes: float, workers: int) -> tuple[float, float]:
    """Measure in a new process, whose memory is its own."""
    command = [sys.executable, "-m", "benchmarks.large_models", "--measure"]
    command += [json.dumps([hubs, graph, megabytes, workers])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, peak = json.loads(done.stdout.splitlines()[-1])
    return float(seconds), float(peak)


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the table."""
    parser = report.options("A round of a large model.", repeats=3)
    parser.add_argument("--megabytes", type=float, default=210.0, help="size of the model")
    parser.add_argument("--workers", type=int, default=8, help="number of workers")
    parser.add_argument("--measure", help="one measurement, in this process (used internally)")
    choice = parser.parse_args(arguments)
    if choice.measure:
        print(json.dumps(measure(*json.loads(choice.measure))))
        return
    if choice.quick:
        choice.repeats, choice.megabytes = 1, 4.0
    touch_memory(2.5 * choice.megabytes * choice.workers)
    peaks: dict[str, list[float]] = {}

    def seconds_of(name: str, hubs: int, graph: str) -> float:
        seconds, peak = in_a_process(hubs, graph, choice.megabytes, choice.workers)
        peaks.setdefault(name, []).append(peak)
        return seconds

    cases = {
        "FedAvg": (0, ""),
        "1 hub": (1, "complete"),
        "4 hubs, complete graph": (4, "complete"),
        "4 hubs, ring": (4, "ring"),
    }
    actions: dict[str, Callable[[], float]] = {
        name: partial(seconds_of, name, *case) for name, case in cases.items()
    }
    found = report.interleave(actions, choice.repeats, "s")
    rows = []
    for name, times in found.items():
        row = [name, Spread.of(times).text(), Spread.of(peaks[name]).text()]
        if name == "FedAvg":
            rows.append([*row, "", ""])
            continue
        time_ratio, memory_ratio = (
            ratios(times, found["FedAvg"]),
            ratios(peaks[name], peaks["FedAvg"]),
        )
        rows.append(
            [
                *row,
                f"{time_ratio.text()}, {verdict(time_ratio, MOST_TIME)}",
                f"{memory_ratio.text()}, {verdict(memory_ratio, MOST_MEMORY)}",
            ]
        )
    headings = ["", "seconds", "MB", "time over FedAvg's", "memory over FedAvg's"]
    text = report.table(headings, rows)
    text += f"\n\nOne `aggregate_train` of a model of {number(choice.megabytes)} MB with "
    text += f"{choice.workers} workers; median (range) of {choice.repeats} processes each. On a "
    text += "complete graph all hubs mix to one model. On a ring each has its own, so that the "
    text += "memory is that of FedAvg and of the hubs' models."
    report.write(choice.docs, "large-models", text)


if __name__ == "__main__":
    main()
