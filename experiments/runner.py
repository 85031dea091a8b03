"""Many runs in a few processes; a run that fails does not stop the others."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from experiments.cache import is_finished, run_folder
from experiments.derived import FEW_TESTS, is_derived
from experiments.playing import part_folder, serve
from mll_flower.config import RunConfig
from mll_flower.results.progress import read_progress

# Seconds between two reports of progress.
_REPORT_EVERY = 0.5
# The numbers below are rough: they serve only to estimate times.
# Rows of a test set and of a training set.
_TEST_ROWS, _TRAIN_ROWS = 10_000, 60_000
# Seconds that a message costs apart from its steps.
_MESSAGE = 0.002
# In rounds of at least this many steps, the cost of the round itself hardly counts.
_LONG_ROUND = 8


@dataclass
class Job:
    """A run to be played.

    Parameters
    ----------
    config : RunConfig
        The run.
    folder : Path
        The folder in which it will be kept.
    seconds : float
        Estimate of the time that it takes.
    """

    config: RunConfig
    folder: Path
    seconds: float = 1.0

    def progress(self, process: int | None) -> float:
        """Return the share of the run that a process has done, from its progress file."""
        now = read_progress(part_folder(self.folder, process))
        return float(min(now.get("slot", 0) / now["total"], 1.0)) if now else 0.0


def missing(out: Path, configs: Sequence[RunConfig]) -> list[Job]:
    """Return one job for each run that has not been played yet."""
    jobs = {run_folder(out, config): config for config in configs}
    return [Job(config, folder) for folder, config in jobs.items() if not is_finished(folder)]


class _Player:
    """A process that plays runs, and the job that it is playing."""

    def __init__(self, data_dir: str, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        with _one_thread():
            self.process = context.Process(
                target=serve, args=(theirs, data_dir, str(folder)), daemon=True
            )
            self.process.start()
        theirs.close()
        self.job: Job | None = None

    def stop(self) -> None:
        """End the process: by an order when it is idle, by a signal when it is busy."""
        if self.job is not None:
            self.process.terminate()
        elif self.process.is_alive():
            self.pipe.send(None)
        self.process.join(30)
        self.pipe.close()
        if self.job is not None:
            shutil.rmtree(part_folder(self.job.folder, self.process.pid), ignore_errors=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Set variables that limit the processes started in here to one thread each."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def play_all(
    jobs: Sequence[Job],
    processes: int,
    data_dir: str,
    out: Path,
    on_progress: Callable[[float, int], None] = lambda seconds, runs: None,
) -> dict[Path, str]:
    """Play runs; return the errors of those that failed, by folder.

    Parameters
    ----------
    jobs : Sequence[Job]
        The runs.
    processes : int
        Number of runs at the same time.
    data_dir : str
        Folder of the data sets.
    out : Path
        Folder of the results; the derived data set goes to data/ in it.
    on_progress : callable
        Called at least twice per second with the estimated seconds of all that is done, and the
        number of runs that have ended.
    """
    # Long runs first, or one process might be playing at the end while the others are idle.
    queue = sorted(jobs, key=lambda job: -job.seconds)
    failures: dict[Path, str] = {}
    done, finished = 0.0, 0
    players = [_Player(data_dir, out / "data") for _ in range(min(processes, len(queue)))]
    try:
        while queue or any(player.job for player in players):
            for place, player in enumerate(players):
                if player.job is None and queue:
                    if not player.process.is_alive():
                        player = players[place] = _Player(data_dir, out / "data")
                    player.job = queue.pop(0)
                    player.job.folder.parent.mkdir(parents=True, exist_ok=True)
                    order = ("run", asdict(player.job.config), str(player.job.folder))
                    player.pipe.send(order)
            busy: dict[Any, _Player] = {p.pipe: p for p in players if p.job}
            for pipe in wait(list(busy), timeout=_REPORT_EVERY):
                job = busy[pipe].job
                assert job is not None
                assert isinstance(pipe, Connection)
                try:
                    _, error = pipe.recv()
                except EOFError:
                    busy[pipe].process.join(10)
                    error = f"its process died (exit code {busy[pipe].process.exitcode})"
                busy[pipe].job = None
                if error is not None:
                    failures[job.folder] = error
                done, finished = done + job.seconds, finished + 1
            running = sum(p.job.progress(p.process.pid) * p.job.seconds for p in players if p.job)
            on_progress(done + running, finished)
    finally:
        for player in players:
            player.stop()
    return failures


def estimate(jobs: Sequence[Job], data_dir: str, out: Path, processes: int = 1) -> list[Job]:
    """Return the jobs with estimates of their time, from each model's speed on this machine.

    The speed is measured in all processes at once, since runs that are played at the same time
    compete for caches and memory.
    """
    speeds: dict[tuple[Any, ...], tuple[float, float]] = {}
    players = [_Player(data_dir, out / "data") for _ in range(max(1, min(processes, len(jobs))))]
    try:
        for job in jobs:
            kind = _kind(job.config)
            if kind not in speeds:
                # A small network: making the partition of a large one can take a minute.
                config = replace(job.config, hubs=1, workers_per_hub="10", partition="iid")
                config = replace(config, graph="complete", mixing="auto", rates="1", tau=kind[-1])
                speeds[kind] = _measure(players, config)
    finally:
        for player in players:
            player.stop()
    return [replace(job, seconds=_seconds(job.config, *speeds[_kind(job.config)])) for job in jobs]


def _measure(players: Sequence[_Player], config: RunConfig) -> tuple[float, float]:
    """Return the seconds per step and per evaluated row, in the slowest process."""
    for player in players:
        player.pipe.send(("measure", asdict(config)))
    steps, rows = [], []
    for player in players:
        speed, error = player.pipe.recv()
        if error is not None:
            raise ValueError(f"{config.model} on {config.dataset}: {error}")
        steps.append(speed[0])
        rows.append(speed[1])
    return max(steps), max(rows)


def _kind(config: RunConfig) -> tuple[Any, ...]:
    """Return what decides the time of a step."""
    tau = min(config.tau, _LONG_ROUND)
    return config.model, config.dataset, config.batch_size, config.momentum > 0, tau


def _seconds(config: RunConfig, step: float, row: float) -> float:
    """Estimate a run's time from the seconds per step and per evaluated row."""
    steps = float(config.network().p.sum()) * config.slots
    mixing = config.tau * config.q
    every = config.evaluate_every or mixing
    train = config.evaluate_limit or _TRAIN_ROWS
    test = FEW_TESTS if is_derived(config.dataset) else _TEST_ROWS
    messages = config.hubs * config.slots / mixing
    return steps * step + messages * _MESSAGE + (1 + config.slots / every) * (train + test) * row


def wall_time(jobs: Sequence[Job], processes: int) -> float:
    """Estimate the seconds until all jobs have ended, on this number of processes."""
    longest = max((job.seconds for job in jobs), default=0.0)
    return max(sum(job.seconds for job in jobs) / processes, longest)


def duration_text(seconds: float) -> str:
    """Return a duration in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 86400:.1f} days"
