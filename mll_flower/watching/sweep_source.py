"""A sweep as a source of the live page: the table of its runs, and the curves of all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mll_flower.results.figure_style import colours
from mll_flower.results.formatting import format_duration, format_number
from mll_flower.results.html_report import sections
from mll_flower.results.html_report.data import POINTS, evaluation_columns, finite
from mll_flower.results.runs import Run
from mll_flower.watching.run_follower import RunFollower
from mll_flower.watching.source import FLOATS, Phase, Source, View, stable_pick

FILE = "sweep.json"
"""What makes a folder that of a sweep: its runs, and how far each has got."""

_PHASES: dict[str, Phase] = {
    "running": "running",
    "finished": "finished",
    "failed": "trouble",
    "interrupted": "stopped",
}


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Parameters
    ----------
    label, name : str
        Its set-up; the same with its seed, if that is given.
    state : str
        waiting, running, finished, failed...
    folder : Path or None
        Where it writes now; None if it has none inside the sweep's folder.
    share : float
        How much of it is done, from 0 to 1.
    error : str
        Why it failed.
    """

    label: str
    name: str
    state: str
    folder: Path | None
    share: float
    error: str


def read_sweep(folder: Path) -> tuple[dict[str, Any], list[SweepRun]]:
    """Read the file of a sweep: what it says of the whole, and its runs.

    Only ``runs`` is needed; whatever else is missing or is of another kind is left out.

    Raises
    ------
    ValueError
        If the file cannot be read, or has no runs.
    """
    path = folder / FILE
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    entries = values.get("runs") if isinstance(values, dict) else None
    if not isinstance(entries, list):
        raise ValueError(f"{path}: it has no list of runs")
    runs = [_read_run(folder, e, n) for n, e in enumerate(entries) if isinstance(e, dict)]
    return values, runs


def _read_run(root: Path, entry: Mapping[str, Any], number: int) -> SweepRun:
    label = str(entry.get("label") or entry.get("setup") or entry.get("name") or f"run {number}")
    seed = f", seed {entry['seed']}" if "seed" in entry else ""
    state = str(entry.get("state", "unknown"))
    share = entry.get("share", 1.0 if state == "finished" else 0.0)
    place = entry.get("part") or entry.get("folder")
    folder = (root / place).resolve() if isinstance(place, str) else None
    if folder is not None and not folder.is_relative_to(root.resolve()):
        folder = None  # nothing outside of the sweep's folder is read
    known = float(share) if isinstance(share, int | float) and 0 <= share <= 1 else 0.0
    return SweepRun(label, f"{label}{seed}", state, folder, known, str(entry.get("error", "")))


class SweepSource(Source):
    """Follows the folder of a sweep.

    Parameters
    ----------
    folder : Path
        The sweep's output, which has a `FILE`.
    """

    kind = "sweep"
    pause = 1.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._followers: dict[Path, RunFollower] = {}
        self._before: Any = None

    def look(self) -> View | None:
        """Return what there is to show; None if nothing has changed."""
        values, runs = read_sweep(self.folder)
        changed = [self._follow(run) for run in runs]
        # The time of the file's last version is no news.
        said = {key: value for key, value in values.items() if key != "updated"}
        if not any(changed) and said == self._before:
            return None
        self._before = said
        found = [self._run(run) for run in runs]
        done = sum(run.state == "finished" for run in runs)
        phase = _PHASES.get(str(values.get("state")), "running")
        return View(
            title=str(values.get("title") or self.folder.resolve().name),
            subtitle=f"sweep of {len(runs)} runs in {self.folder}",
            phase=phase,
            status=_status(values, runs, phase),
            done=done,
            total=len(runs),
            parts={"runs": _table(runs, found)},
            moving=_curves(runs, found),
        )

    def _follow(self, run: SweepRun) -> bool:
        if run.folder is None:
            return False
        follower = self._followers.get(run.folder)
        if follower is None:
            follower = self._followers[run.folder] = RunFollower(run.folder, hub_rows=False)
        if follower.finished:
            return False
        try:
            return follower.look()
        except ValueError:
            return False  # a file that cannot be read now; the sweep's table says what it knows

    def _run(self, run: SweepRun) -> Run | None:
        follower = self._followers.get(run.folder) if run.folder else None
        return follower.run() if follower is not None and follower.config else None


def _status(values: Mapping[str, Any], runs: list[SweepRun], phase: Phase) -> str:
    counts = {state: sum(run.state == state for run in runs) for state in dict.fromkeys(
        ["finished", "running", "waiting", "failed", *(run.state for run in runs)]
    )}  # fmt: skip
    text = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    left = values.get("seconds_left")
    known = isinstance(left, int | float) and phase == "running"
    more = f"; about {format_duration(float(left))} left" if known and left is not None else ""
    return f"{str(values.get('state', 'running')).capitalize()}: {text}{more}"


def _table(runs: list[SweepRun], found: list[Run | None]) -> str:
    rows = []
    for run, result in zip(runs, found, strict=True):
        known = result is not None and bool(result.evaluations)
        last = result.evaluations[-1] if known and result is not None else {}
        metric = result.metric if result is not None else "accuracy"
        rows.append(
            (
                run.name,
                run.state,
                f"{100 * run.share:.0f} %",
                format_number(last.get("slot")),
                format_number(last.get("loss")),
                format_number(last.get(metric)),
                run.error[:300],
            )
        )
    metrics = sorted({result.metric for result in found if result is not None}) or ["accuracy"]
    head = ("run", "state", "done", "slot", "training loss", " or ".join(metrics), "error")
    return sections.table(head, rows, "Runs, with the newest evaluation of each")


def _curves(runs: list[SweepRun], found: list[Run | None]) -> dict[str, Any]:
    drawn = [
        (n, run, result)
        for n, (run, result) in enumerate(zip(runs, found, strict=True))
        if result is not None and result.evaluations
    ]
    # The seeds of one set-up have one colour.
    labels = list(dict.fromkeys(run.label for run in runs))
    palette = dict(zip(labels, colours(max(len(labels), 1)), strict=False))
    points = max(40, min(POINTS, FLOATS // max(len(drawn), 1)))
    metrics = " or ".join(sorted({result.metric for _, _, result in drawn})) or "accuracy"
    charts = [
        {
            "id": key,
            "title": title,
            "empty": "No evaluation yet.",
            "series": [
                {"name": run.name, "key": key, "colour": palette[run.label], "columns": f"run{n}"}
                for n, run, _ in drawn
            ],
        }
        for key, title in (("loss", "Training loss"), ("accuracy", f"Test {metrics}"))
    ]
    columns = {f"run{n}": evaluation_columns(run, points, stable_pick) for n, _, run in drawn}
    data: dict[str, Any] = finite({"charts": charts, "workers": [], "live": True, **columns})
    return data
