"""Play runs in a few processes, each over the in-process engine, and return their curves.

`Players.play_all` is all that the rest of the planning room knows of it. Curves are kept under the
key by which sweeps keep their runs.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mll_flower.config import RunConfig
from mll_flower.processes.answering import Answerer, answer_orders, answers
from mll_flower.sweeps.cache import run_key


@dataclass(frozen=True)
class Job:
    """A run to be played.

    Parameters
    ----------
    config : RunConfig
        The run; what its output holds is replaced.
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

    @property
    def key(self) -> str:
        """A name that is the same for jobs that give the same curve."""
        goal = f"{self.target}-{self.measure}".replace(".", "_")
        return f"{run_key(self.config)}-{goal}.json"

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
    shutil.rmtree(output, ignore_errors=True)  # what a plan that was killed has left
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
    kept : Path, optional
        A folder in which curves are kept, so that a plan that was killed does not play them again.
    """

    def __init__(self, processes: int, kept: Path | None = None) -> None:
        self._processes, self._kept = processes, kept
        self._team: list[Answerer] = []

    def __enter__(self) -> Players:
        return self

    def __exit__(self, *_: object) -> None:
        for player in self._team:
            player.stop()

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
        curves: dict[int, Curve] = {}
        for place, job in enumerate(jobs):
            if (curve := self._load(job)) is not None:
                curves[place] = curve
                on_done(curve)
        # Long runs first, so that no process plays alone at the end.
        left = sorted(set(range(len(jobs))) - set(curves), key=lambda k: -jobs[k].config.slots)
        while len(self._team) < min(self._processes, len(left)):
            self._team.append(Answerer(_serve))
        for done in answers(left, self._team, lambda place: jobs[place]):
            for place, curve, error in done:
                if error is not None:
                    raise RuntimeError(f"run {jobs[place].config.output}: {error}")
                self._save(jobs[place], curve)
                curves[place] = curve
                on_done(curve)
        return [curves[place] for place in range(len(jobs))]

    def _load(self, job: Job) -> Curve | None:
        """Return the curve that an earlier command has kept."""
        if self._kept is None or (job.keep and not Path(job.config.output).is_dir()):
            return None
        try:
            values: dict[str, Any] = json.loads((self._kept / job.key).read_text())
            lists = {key: tuple(v) for key, v in values.items() if isinstance(v, list)}
            return Curve(**{**values, **lists})
        except (OSError, ValueError, TypeError):
            return None

    def _save(self, job: Job, curve: Curve) -> None:
        if self._kept is None:
            return
        self._kept.mkdir(exist_ok=True)
        new = self._kept / f"{job.key}.new"
        new.write_text(json.dumps(asdict(curve)))
        new.rename(self._kept / job.key)


def with_output(job: Job, output: Path) -> Job:
    """Return the job with another folder."""
    return replace(job, config=replace(job.config, output=str(output)))
