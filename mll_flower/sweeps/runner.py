"""Many runs in a few processes; a run that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from mll_flower.config import RunConfig
from mll_flower.processes.answering import start_answering
from mll_flower.sweeps.cache import is_finished, run_folder
from mll_flower.sweeps.parts import part_folder, remove_unless_begun, share_begun, share_done
from mll_flower.sweeps.playing import serve

# Seconds between two reports of progress.
_REPORT_EVERY = 0.5


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
        Estimate of the time that the whole run takes.
    begun : float
        The share of it that an earlier command has done.
    """

    config: RunConfig
    folder: Path
    seconds: float = 1.0
    begun: float = 0.0

    @property
    def seconds_left(self) -> float:
        """Estimate of the time that is left."""
        return self.seconds * (1 - self.begun)


@dataclass
class Progress:
    """How far a batch of runs is.

    Parameters
    ----------
    running : dict
        For each run that is being played, by its folder, the folder of its part.
    finished : list of Path
        Folders of the runs that have ended.
    failures : dict
        The errors of those that failed, by folder.
    seconds : float
        The estimated seconds of all that is done.
    """

    running: dict[Path, Path] = field(default_factory=dict)
    finished: list[Path] = field(default_factory=list)
    failures: dict[Path, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def ended(self) -> int:
        """Number of runs that are no longer played, whether they succeeded or not."""
        return len(self.finished) + len(self.failures)


def missing(out: Path, configs: Sequence[RunConfig]) -> list[Job]:
    """Return one job for each run that has not been played yet."""
    jobs = {run_folder(out, config): config for config in configs}
    return [
        Job(config, folder, begun=share_begun(folder))
        for folder, config in jobs.items()
        if not is_finished(folder)
    ]


class Player:
    """A process that plays runs, and the job that it is playing."""

    def __init__(self) -> None:
        self.process, self.pipe = start_answering(serve)
        self.job: Job | None = None

    def play(self, job: Job) -> None:
        """Give the order to play a run."""
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        self.job = job
        self.pipe.send(("run", asdict(job.config), str(job.folder)))

    def answer(self) -> tuple[Any, str | None]:
        """Receive the answer to an order: a value, or an error as text."""
        try:
            value, error = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join(10)
            value, error = None, f"its process died (exit code {self.process.exitcode})"
        return value, error

    def stop(self) -> None:
        """End the process: by an order when it is idle, by a signal when it is busy."""
        if self.job is not None:
            self.process.terminate()
        elif self.process.is_alive():
            self.pipe.send(None)
        self.process.join(30)
        self.pipe.close()
        if self.job is not None:
            remove_unless_begun(part_folder(self.job.folder, self.process.pid))


@contextmanager
def players(number: int) -> Iterator[list[Player]]:
    """Start processes that play runs, and end them at the end."""
    started = [Player() for _ in range(number)]
    try:
        yield started
    finally:
        for player in started:
            player.stop()


def play_all(
    jobs: Sequence[Job],
    processes: int,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Mapping[Path, str]:
    """Play runs; return the errors of those that failed, by folder.

    Seed by seed, so that a batch that is stopped has complete seeds to show; of one seed, long
    runs first, or one process might be playing at the end while the others are idle.

    Parameters
    ----------
    jobs : Sequence[Job]
        The runs.
    processes : int
        Number of runs at the same time.
    on_progress : callable
        Called at least twice per second.
    """
    queue = sorted(jobs, key=lambda job: (job.config.seed, -job.seconds_left))
    progress = Progress()
    done = 0.0
    with players(min(processes, len(queue))) as team:
        while queue or any(player.job for player in team):
            for place, player in enumerate(team):
                if player.job is None and queue:
                    if not player.process.is_alive():
                        player = team[place] = Player()
                    player.play(queue.pop(0))
            busy: dict[Any, Player] = {p.pipe: p for p in team if p.job}
            for pipe in wait(list(busy), timeout=_REPORT_EVERY):
                assert isinstance(pipe, Connection)
                player = busy[pipe]
                job = player.job
                assert job is not None
                _, error = player.answer()
                player.job = None
                done += job.seconds_left
                if error is None:
                    progress.finished.append(job.folder)
                else:
                    progress.failures[job.folder] = error
            playing = {p.job.folder: (p.job, p.process.pid) for p in team if p.job}
            progress.running = {
                folder: part_folder(folder, process) for folder, (_, process) in playing.items()
            }
            progress.seconds = done + sum(
                max(share_done(progress.running[folder]) - job.begun, 0.0) * job.seconds
                for folder, (job, _) in playing.items()
            )
            on_progress(progress)
    return progress.failures
