"""CPU time of a worker-step on one thread, for several networks.

Run with ``python -m benchmarks.steps``. CPU time, not wall time: other programs on the machine
disturb it less, and all cases take turns in one process, so that ratios hold on a busy machine too.
Every network is trained by our engine with compiled code and with autograd, and by the shortest
PyTorch loop; the paper's CNN also by the authors' loop and, with ``--pfl-python PYTHON``, by
pfl-research in the environment of that Python. The limit is the time in which a large matrix
product does as many multiplications and additions as the layers of the network.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import nn

from benchmarks import report
from benchmarks.authors import authors_loop
from benchmarks.images import image_data
from benchmarks.loops import module_operations, multiply_loop, plain_loop
from benchmarks.peak import PEAK, peak_loop
from benchmarks.report import Spread, number, ratios, verdict
from benchmarks.team import Work
from mll_flower.tasks.data import Dataset
from mll_flower.tasks.task import Task
from mll_flower.training.engine import Engine
from mll_flower.training.process import prepare_process, torch_threads

COMPILED = "our engine, compiled"
AUTOGRAD = "our engine, autograd"
BARE = "bare PyTorch loop"
AUTHORS = "the authors' loop"
PFL = "pfl-research, FedAvg"
EVALUATED = "evaluation"
LIMIT = "the limit: sgemm of the same operations"

BATCH, TAU, WORKERS, CLASSES = 32, 8, 10, 10


def three_convolutions() -> nn.Module:
    """Three 3x3 convolutions for colour images of 32x32 pixels."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64 * 16, CLASSES)),
    )


class LeNet(nn.Module):
    """Two 5x5 convolutions for colour images of 32x32 pixels, written as a class."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2)
        self.hidden1, self.hidden2 = nn.Linear(16 * 25, 120), nn.Linear(120, 84)
        self.out = nn.Linear(84, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a score for each class."""
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = torch.relu(self.hidden1(torch.flatten(x, 1)))
        return cast(torch.Tensor, self.out(torch.relu(self.hidden2(x))))


class WithDropout(nn.Module):
    """The network of PyTorch's example for MNIST."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.hidden, self.out = nn.Linear(64 * 12 * 12, 128), nn.Linear(128, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a score for each class."""
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        x = self.dropout1(nn.functional.max_pool2d(x, 2))
        x = self.dropout2(torch.relu(self.hidden(torch.flatten(x, 1))))
        return torch.log_softmax(self.out(x), dim=1)


def perceptron() -> nn.Module:
    """Two hidden layers for 784 numbers."""
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(784, 200), nn.ReLU()),
        *(nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, CLASSES)),
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module] | None, tuple[int, ...]]] = {
    "the paper's CNN, 28x28": (None, (1, 28, 28)),
    "three 3x3 convolutions, 32x32x3": (three_convolutions, (3, 32, 32)),
    "LeNet as a class, 32x32x3": (LeNet, (3, 32, 32)),
    "PyTorch's example for MNIST, 28x28": (WithDropout, (1, 28, 28)),
    "perceptron 784-200-200-10": (perceptron, (1, 28, 28)),
}


@dataclass(frozen=True)
class StepTask(Task):
    """A task with a network of the benchmark's own; without one, with the paper's CNN."""

    make: Callable[[], nn.Module] | None = None

    def new_model(self) -> nn.Module:
        """Build the network."""
        if self.make is None:
            return super().new_model()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self.make()


def task_of(name: str, rows: int) -> StepTask:
    """Return a network with random data."""
    make, shape = NETWORKS[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, *shape), dtype=np.float32)
    y = rng.integers(CLASSES, size=rows)
    return StepTask(Dataset("random", "random", x, y, x[:10], y[:10], CLASSES), "cnn", 0, make)


def engine_work(task: Task, engine: str, rounds: int) -> Work:
    """Set up rounds of one hub; the unit of work is a step."""
    shards = np.array_split(np.arange(len(task.data.y_train)), WORKERS)
    trained = Engine(task, shards, batch_size=BATCH, seed=0, engine=engine)
    model = trained.initial()
    steps = np.full((rounds, WORKERS), TAU)
    started = 0

    def work() -> int:
        nonlocal model, started
        numbers = range(started, started + rounds)
        started += rounds
        shares, rates = [1.0] * WORKERS, [0.01] * rounds
        model = trained.run_hub(model, range(WORKERS), shares, numbers, steps, rates).flat
        return int(steps.sum())

    return work


def evaluation_work(task: Task, engine: str) -> Work:
    """Set up an evaluation on training rows; the unit of work is as many rows as a batch has."""
    rows = min(2048, len(task.data.y_train)) // BATCH * BATCH
    made = Engine(task, [np.arange(rows)], batch_size=BATCH, seed=0, engine=engine)
    model = made.initial()

    def work() -> int:
        made.evaluate(model, "train", limit=rows, threads=1)
        return rows // BATCH

    return work


def microseconds(work: Work, slices: int) -> float:
    """Return the CPU time per unit of work, of the fastest of some slices."""
    best = float("inf")
    for _ in range(slices):
        start = time.thread_time()
        units = work()
        best = min(best, 1e6 * (time.thread_time() - start) / units)
    return best


def _time_of_operations(work: Work, slices: int, millions: float) -> float:
    return microseconds(work, slices) * millions


def pfl_microseconds(python: str, rounds: int) -> float:
    """Let pfl-research train the CNN in its own environment."""
    script = Path(__file__).with_name("pfl_loop.py")
    command = [python, str(script), *map(str, (WORKERS, TAU, BATCH, rounds + 1))]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(run.stdout.split()[-1])


def loading_times(name: str) -> tuple[float, float]:
    """Return the CPU seconds to compile a network, and to load it from disk in a new process."""
    code = f"""
import time
import mll_flower.training.engine
from benchmarks.steps import engine_work, task_of
task = task_of({name!r}, 100)
before = engine_work(task, "autograd", 1)
start = time.process_time()
engine_work(task, "compiled", 1)
print(time.process_time() - start)
"""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": folder, "OMP_NUM_THREADS": "1"}
        first, second = (
            subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, check=True
            )
            for _ in range(2)
        )
    return float(first.stdout), float(second.stdout)


def measure(name: str, choice: Namespace, folder: Path) -> list[list[str]]:
    """Measure a network; return the rows of its table."""
    task = task_of(name, 500 if choice.quick else 10_000)
    rounds = 1 if choice.quick else 3
    size = 256 if choice.quick else 1024
    operations = module_operations(task.new_model(), task.tensors()[0][:1], BATCH) / 1e6
    works = {
        COMPILED: engine_work(task, "compiled", rounds),
        AUTOGRAD: engine_work(task, "autograd", rounds),
        BARE: plain_loop(task, BATCH, 0.01, TAU * WORKERS * rounds),
    }
    evaluations = {engine: evaluation_work(task, engine) for engine in ("compiled", "autograd")}
    if NETWORKS[name][0] is None:
        network = {"hubs": 1, "workers-per-hub": str(WORKERS), "tau": TAU, "model": "cnn"}
        values = {**image_data("", folder, 2_000), **network, "learning-rate": 0.01}
        works[AUTHORS] = authors_loop(values, 1, rounds)
    cases: dict[str, Callable[[], float]] = {
        case: partial(microseconds, work, choice.slices) for case, work in works.items()
    }
    if NETWORKS[name][0] is None and choice.pfl_python:
        cases[PFL] = partial(pfl_microseconds, choice.pfl_python, choice.slices * rounds)
    products = {LIMIT: multiply_loop(size, 10), PEAK: peak_loop()}
    for case, work in products.items():
        cases[case] = partial(_time_of_operations, work, choice.slices, operations)
    for engine, work in evaluations.items():
        cases[f"{EVALUATED}, {engine}"] = partial(microseconds, work, choice.slices)
    for work in (*works.values(), *evaluations.values(), *products.values()):
        work()  # the first time is not measured: it fills memory and caches
    found = report.interleave(cases, choice.repeats)
    rows = [
        [
            f"{name}: {case}",
            Spread.of(values).text(),
            "" if case.startswith(EVALUATED) else ratios(values, found[LIMIT]).text(),
            ratios(found[_compiled(case)], values).text(),
        ]
        for case, values in found.items()
    ]
    share = ratios(found[COMPILED], found[LIMIT])
    rows.append([f"{name}: compiled / the limit", "", "", verdict(share, 1.2)])
    cold, cached = loading_times(name)
    times = f"{number(cold)} s, {number(cached)} s"
    rows.append([f"{name}: to compile, to load from disk", times, "", ""])
    return rows


def _compiled(case: str) -> str:
    """Return the case with compiled code that another is compared with."""
    return f"{EVALUATED}, compiled" if case.startswith(EVALUATED) else COMPILED


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the table."""
    parser = report.options("CPU time of a worker-step.", repeats=9)
    parser.add_argument("--slices", type=int, default=3, help="per measurement; the fastest counts")
    parser.add_argument("--pfl-python", default="", help="a Python that has pfl, for its row")
    choice = parser.parse_args(arguments)
    if choice.quick:
        choice.repeats, choice.slices = 1, 1
    prepare_process()
    rows = []
    with tempfile.TemporaryDirectory() as name, torch_threads(1):
        for network in list(NETWORKS)[: 1 if choice.quick else None]:
            rows += measure(network, choice, Path(name))
    headings = ["", "us per step: median (range)", "of the limit", "compiled code takes of it"]
    text = report.table(headings, rows)
    text += (
        f"\n\nCPU time of one thread; {choice.repeats} repetitions in turn, each the fastest of "
    )
    text += f"{choice.slices} slices; batches of {BATCH}, rounds of {TAU} steps of {WORKERS} "
    text += f"workers, random data. An evaluation's time is that of {BATCH} rows.\n"
    if not choice.pfl_python:
        text += "\nWithout pfl-research, which was not installed for this measurement.\n"
    report.write(choice.docs, "steps", text)


if __name__ == "__main__":
    main()
