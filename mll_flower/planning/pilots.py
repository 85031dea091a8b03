"""Play runs in a few processes, each over the in-process engine, and return their curves.

`play_all` is all that the rest of the planning room knows of it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from mll_flower.config import RunConfig
from mll_flower.processes.answering import answer_orders, start_answering

# Seconds between two looks at a process that is playing.
_LOOK_EVERY = 0.5


@dataclass(frozen=True)
class Job:
    """A run to be played.

    Parameters
    ----------
    config : RunConfig
        The run; its output is a folder that does not exist.
    target : float, optional
        The run ends when its measure has reached this value.
    measure : str
        ``metric`` or ``test_loss``.
    falls : bool
        Whether a lower value is a better one.
    keep : bool
        Whether the run's folder is kept.
    """

    config: RunConfig
    target: float | None = None
    measure: str = "metric"
    falls: bool = False
    keep: bool = False

    def reached(self, value: float) -> bool:
        """Return whether a value is at least as good as the target."""
        if self.target is None:
            return False
        return value <= self.target if self.falls else value >= self.target


@dataclass(frozen=True)
class Curve:
    """What was measured in a run, evaluation by evaluation.

    Parameters
    ----------
    seconds, bytes, values, metrics : tuple of float
        Seconds of the clock, bytes sent, the goal's measure, and the metric.
    rounds : tuple of int
        Rounds that had ended.
    reached : bool
        Whether the last value is the target's.
    cpu : float
        Seconds of processor time that it took.
    """

    seconds: tuple[float, ...]
    bytes: tuple[float, ...]
    values: tuple[float, ...]
    metrics: tuple[float, ...]
    rounds: tuple[int, ...]
    reached: bool
    cpu: float


class _TargetReached(Exception):
    """Ends a run."""


def play(job: Job) -> Curve:
    """Play a run in this process."""
    from mll_flower.apps.launch import run_in_process
    from mll_flower.results.runs import metric_name

    records: list[dict[str, Any]] = []

    def take(record: dict[str, Any]) -> None:
        records.append(record)
        if job.reached(record[_key(record)]):
            raise _TargetReached

    def _key(record: dict[str, Any]) -> str:
        return metric_name(record) if job.measure == "metric" else job.measure

    started, reached = time.process_time(), False
    output = Path(job.config.output)
    try:
        # One thread: other runs use the other cores.
        options = {"plots": False, "threads": 1, "lines": False, "on_evaluation": take}
        run_in_process(job.config.to_run_config(), **options)
    except _TargetReached:
        reached = True
    finally:
        if not job.keep:
            shutil.rmtree(output, ignore_errors=True)
    return Curve(
        seconds=tuple(record["seconds"] for record in records),
        bytes=tuple(record["bytes"] for record in records),
        values=tuple(record[_key(record)] for record in records),
        metrics=tuple(record[metric_name(record)] for record in records),
        rounds=tuple(record["round"] for record in records),
        reached=reached,
        cpu=time.process_time() - started,
    )


def _serve(pipe: Connection) -> None:
    """Answer jobs with their curves."""
    answer_orders(pipe, play)


class Players:
    """Processes that play runs; they stay until the end of the plan.

    Parameters
    ----------
    processes : int
        How many.
    """

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._players: list[tuple[Any, Connection]] = []
        self._busy: dict[Any, int] = {}  # pipe -> the place of the job that is played there

    def __enter__(self) -> Players:
        return self

    def __exit__(self, *_: object) -> None:
        for process, pipe in self._players:
            if pipe in self._busy:  # an interrupted plan ends at once
                process.terminate()
            elif process.is_alive():
                pipe.send(None)
        for process, pipe in self._players:
            process.join(30)
            pipe.close()

    def play_all(self, jobs: Sequence[Job], on_done: Callable[[Curve], None]) -> list[Curve]:
        """Play runs; return their curves in the order of the jobs.

        Parameters
        ----------
        jobs : sequence of Job
            The runs.
        on_done : callable
            Called with each curve as soon as it is there.

        Raises
        ------
        RuntimeError
            If a run fails; the message says which and why.
        """
        while len(self._players) < min(self._processes, len(jobs)):
            self._players.append(start_answering(_serve))
        curves: list[Curve | None] = [None] * len(jobs)
        # Long runs first, so that no process plays alone at the end.
        left = sorted(range(len(jobs)), key=lambda place: jobs[place].config.slots)
        busy = self._busy
        idle = [pipe for _, pipe in self._players]
        while left or busy:
            while left and idle:
                pipe, place = idle.pop(), left.pop()
                pipe.send(jobs[place])
                busy[pipe] = place
            for ready in wait(list(busy), timeout=_LOOK_EVERY):
                pipe, place = ready, busy.pop(ready)  # type: ignore[assignment]
                try:
                    curve, error = pipe.recv()
                except EOFError:
                    curve, error = None, "its process died (out of memory?)"
                if error is not None:
                    raise RuntimeError(f"run {jobs[place].config.output}: {error}")
                curves[place] = curve
                idle.append(pipe)
                on_done(curve)
        return [curve for curve in curves if curve is not None]


def with_output(job: Job, output: Path) -> Job:
    """Return the job with another folder."""
    return replace(job, config=replace(job.config, output=str(output)))
