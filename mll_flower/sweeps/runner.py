"""Many runs in a few processes; a run that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mll_flower.config import RunConfig
from mll_flower.processes.answering import Answerer, answers
from mll_flower.sweeps.cache import is_finished, run_folder
from mll_flower.sweeps.parts import part_folder, remove_unless_begun, share_begun, share_done
from mll_flower.sweeps.playing import serve


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


@contextmanager
def players(number: int) -> Iterator[list[Answerer]]:
    """Start processes that play runs, and end them at the end."""
    started = [Answerer(serve) for _ in range(number)]
    try:
        yield started
    finally:
        for player in started:
            player.stop()
            if player.job is not None:
                remove_unless_begun(part_folder(player.job.folder, player.process.pid))


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
    ended = 0.0
    with players(min(processes, len(queue))) as team:
        for done in answers(queue, team, _order):
            for job, _, error in done:
                ended += job.seconds_left
                if error is None:
                    progress.finished.append(job.folder)
                else:
                    progress.failures[job.folder] = error
            playing = {p.job.folder: (p.job, p.process.pid) for p in team if p.job}
            progress.running = {
                folder: part_folder(folder, process) for folder, (_, process) in playing.items()
            }
            progress.seconds = ended + sum(
                max(share_done(progress.running[folder]) - job.begun, 0.0) * job.seconds
                for folder, (job, _) in playing.items()
            )
            on_progress(progress)
    return progress.failures


def _order(job: Job) -> tuple[Any, ...]:
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    return "run", asdict(job.config), str(job.folder)
