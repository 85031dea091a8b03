"""From figures to runs, and from runs to files: the work of ``python -m experiments``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.drawing import draw_figure, draw_published
from experiments.figures import Figure
from experiments.published import compare
from experiments.summary import save, summarise
from mll_flower.sweeps.cache import run_folder
from mll_flower.sweeps.curves import Curves, finished_curves, write_csv
from mll_flower.sweeps.estimate import estimate
from mll_flower.sweeps.runner import Job, Progress, missing, play_all


@dataclass
class Outcome:
    """What a reproduction led to.

    Parameters
    ----------
    summaries : list of dict
        One per figure that has a seed whose runs have all ended.
    without : list of str
        The figures that have none.
    played : int
        Runs that were played now; the others existed already.
    failures : dict
        Names of the runs that failed, with the reasons.
    """

    summaries: list[dict[str, Any]] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    played: int = 0
    failures: dict[str, str] = field(default_factory=dict)


def plan(
    figures: Sequence[Figure], out: Path, data_dir: str, processes: int = 1, measured: bool = True
) -> list[Job]:
    """Return the runs that are still to be played, with estimates of their time."""
    configs = [config for figure in figures for config in figure.configs()]
    jobs = missing(out, [replace(config, data_dir=data_dir) for config in configs])
    return estimate(jobs, processes) if measured else jobs


def jobs_of(figure: Figure, jobs: Sequence[Job], out: Path) -> list[Job]:
    """Return the jobs that a figure needs; several figures may need the same run."""
    wanted = {run_folder(out, config) for config in figure.configs()}
    return [job for job in jobs if job.folder in wanted]


def reproduce(
    figures: Sequence[Figure],
    jobs: Sequence[Job],
    out: Path,
    processes: int,
    command: str,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Play the jobs, then write each figure's CSV, plot and summary.

    Parameters
    ----------
    figures : Sequence[Figure]
        The figures.
    jobs : Sequence[Job]
        The missing runs, as `plan` returns them; none to use only what has ended. A figure shows
        the seeds whose runs have ended in all its set-ups.
    out : Path
        Folder of the results.
    processes : int
        Runs that are played at the same time.
    command : str
        What the user typed, for the document.
    on_progress : callable
        As in `play_all`.
    """
    out.mkdir(parents=True, exist_ok=True)
    failed = play_all(jobs, processes, on_progress) if jobs else {}
    outcome = Outcome(played=len(jobs) - len(failed))
    outcome.failures = {folder.name: error for folder, error in failed.items()}
    for figure in figures:
        found = finished_curves(figure.setups, range(figure.seeds), out)
        if any(found.values()):
            outcome.summaries.append(_finish(figure, found, out, command))
        else:
            outcome.without.append(figure.key)
    return outcome


def _finish(figure: Figure, found: Curves, out: Path, command: str) -> dict[str, Any]:
    """Write a figure's files from its runs, and return its summary."""
    cores = len(os.sched_getaffinity(0))
    summary = summarise(figure, found, command, cores)
    write_csv(found, out / f"{figure.key}.csv")
    comparisons = compare(figure, found)
    if comparisons:
        draw_published(comparisons, out / f"{figure.key}.png")
        summary["comparisons"] = [
            {
                "label": c.label,
                "name": c.name,
                "evaluations": c.evaluations,
                "published": c.published.tolist(),
                "ours": c.ours.tolist(),
                "final": float(c.relative[-1]),
                "largest": float(max(c.relative, key=abs)),
                "largest_at": c.evaluations[int(abs(c.relative).argmax())],
            }
            for c in comparisons
        ]
    else:
        draw_figure(figure, found, out / f"{figure.key}.png")
    save(summary, out / f"{figure.key}.json")
    return summary
