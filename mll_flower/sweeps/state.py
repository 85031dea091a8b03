"""How far a batch of runs is, in a file that other programs read: sweep.json.

docs/sweeps.md describes its keys. It is replaced as a whole, at least every few seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mll_flower.results import files
from mll_flower.sweeps.cache import is_finished, run_folder
from mll_flower.sweeps.parts import share_done
from mll_flower.sweeps.runner import Job, Progress
from mll_flower.sweeps.setups import Setup

FILE = "sweep.json"
FORMAT = 1
"""Raised when older readers could not read a file."""

# Seconds between two versions of the file, if no run has begun or ended meanwhile.
_EVERY = 2.0


class StateWriter:
    """Writes the state of a batch of runs.

    Parameters
    ----------
    out : Path
        The folder of the batch; folders in the file are relative to it.
    title, source : str
        What the batch is called, and the file or command that describes it.
    setups : sequence of (Setup, seeds)
        All runs: each set-up with its seeds.
    jobs : sequence of Job
        Those that are still to be played, with estimates of their time.
    processes : int
        Runs at the same time.
    """

    def __init__(
        self,
        out: Path,
        title: str,
        source: str,
        setups: Sequence[tuple[Setup, Sequence[int]]],
        jobs: Sequence[Job],
        processes: int,
    ) -> None:
        self.out = out
        self.runs: dict[Path, list[dict[str, Any]]] = {}
        for setup, seeds in setups:
            for seed in seeds:
                folder = run_folder(out, setup.config(seed))
                state = "finished" if is_finished(folder) else "waiting"
                run = {"setup": setup.name, "label": setup.label, "seed": seed}
                run |= {"folder": self._relative(folder), "state": state}
                self.runs.setdefault(folder, []).append(run)
        for job in jobs:
            for run in self.runs.get(job.folder, []):
                run["seconds"] = round(job.seconds_left, 1)
        self.total = sum(job.seconds_left for job in jobs)
        self.values: dict[str, Any] = {
            "format": FORMAT,
            "title": title,
            "source": source,
            "state": "running",
            "process": os.getpid(),
            "processes": processes,
            "started": _now(),
        }
        self._started = time.monotonic()
        self._written = 0.0
        self._known: Any = None

    def update(self, progress: Progress) -> None:
        """Take the progress of the runs; write it if something has changed, or now and then."""
        known = (set(progress.running), progress.ended)
        if known == self._known and time.monotonic() - self._written < _EVERY:
            return
        self._known = known
        for folder in progress.finished:
            self._set(folder, state="finished")
        for folder, error in progress.failures.items():
            self._set(folder, state="failed", error=error)
        for folder, part in progress.running.items():
            share = round(share_done(part), 4)
            self._set(folder, state="running", part=self._relative(part), share=share)
        self.values["seconds_left"] = round(
            seconds_left(
                self.total,
                progress.seconds,
                time.monotonic() - self._started,
                self.values["processes"],
            )
        )
        self._write()

    def end(self, state: str) -> None:
        """Write that the batch has ended: ``finished``, ``failed`` or ``interrupted``."""
        self.values["state"] = state
        self.values.pop("seconds_left", None)
        for runs in self.runs.values():
            for run in runs:
                if run["state"] == "running":
                    run["state"] = "waiting"
                    run.pop("part", None)
        self._write()

    def _set(self, folder: Path, **values: Any) -> None:
        for run in self.runs.get(folder, []):
            run.pop("part", None)
            run.pop("share", None)
            run.update(values)

    def _write(self) -> None:
        self._written = time.monotonic()
        runs = [run for runs in self.runs.values() for run in runs]
        files.write_json(self.out / FILE, {**self.values, "updated": _now(), "runs": runs})

    def _relative(self, folder: Path) -> str:
        return str(folder.relative_to(self.out))


def seconds_left(total: float, done: float, passed: float, processes: int) -> float:
    """Return the seconds that are left, by the estimate or, once it can be told, by the pace.

    Parameters
    ----------
    total, done : float
        Estimated seconds of one process for all runs, and of what is done.
    passed : float
        Seconds since the start.
    processes : int
        Runs at the same time.
    """
    if done <= 0:
        return total / processes
    return max(passed * (total - done) / done, 0.0)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
