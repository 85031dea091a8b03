"""From figures to runs, and from runs to files: the work of ``python -m experiments``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments import results
from experiments.cache import run_folder
from experiments.drawing import draw_figure, draw_published
from experiments.figures import Figure
from experiments.published import compare
from experiments.runner import Job, estimate, missing, play_all


@dataclass
class Outcome:
    """What a reproduction led to.

    Parameters
    ----------
    summaries : list of dict
        One per figure whose runs all succeeded.
    played : int
        Runs that were played now; the others existed already.
    failures : dict
        Names of the runs that failed, with the reasons.
    """

    summaries: list[dict[str, Any]] = field(default_factory=list)
    played: int = 0
    failures: dict[str, str] = field(default_factory=dict)


def plan(
    figures: Sequence[Figure], out: Path, data_dir: str, processes: int = 1, measured: bool = True
) -> list[Job]:
    """Return the runs that are still to be played, with estimates of their time."""
    configs = [s.config(seed) for f in figures for s in f.setups for seed in range(f.seeds)]
    jobs = missing(out, configs)
    return estimate(jobs, data_dir, out, processes) if jobs and measured else jobs


def jobs_of(figure: Figure, jobs: Sequence[Job], out: Path) -> list[Job]:
    """Return the jobs that a figure needs; several figures may need the same run."""
    wanted = _folders(figure, out)
    return [job for job in jobs if job.folder in wanted]


def _folders(figure: Figure, out: Path) -> set[Path]:
    return {run_folder(out, s.config(seed)) for s in figure.setups for seed in range(figure.seeds)}


def reproduce(
    figures: Sequence[Figure],
    jobs: Sequence[Job],
    out: Path,
    data_dir: str,
    processes: int,
    command: str,
    on_progress: Callable[[float, int], None] = lambda seconds, runs: None,
) -> Outcome:
    """Play the jobs, then write each figure's CSV, plot and summary.

    Parameters
    ----------
    figures : Sequence[Figure]
        The figures.
    jobs : Sequence[Job]
        The missing runs, as `plan` returns them.
    out, data_dir : Path, str
        Folders of the results and of the data sets.
    processes : int
        Runs that are played at the same time.
    command : str
        What the user typed, for the document.
    on_progress : callable
        As in `play_all`.
    """
    out.mkdir(parents=True, exist_ok=True)
    failed = play_all(jobs, processes, data_dir, out, on_progress) if jobs else {}
    outcome = Outcome(played=len(jobs) - len(failed))
    for figure in figures:
        broken = {f.name: failed[f] for f in _folders(figure, out) if f in failed}
        outcome.failures.update(broken)
        if not broken:
            outcome.summaries.append(_finish(figure, out, command))
    return outcome


def _finish(figure: Figure, out: Path, command: str) -> dict[str, Any]:
    """Write a figure's files from its runs, and return its summary."""
    found = results.curves(figure, out)
    cores = len(os.sched_getaffinity(0))
    summary = results.summarise(figure, found, command, cores)
    results.write_csv(figure, found, out / f"{figure.key}.csv")
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
    results.save(summary, out / f"{figure.key}.json")
    return summary
