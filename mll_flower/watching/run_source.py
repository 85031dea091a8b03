"""A simulated run as a source of the live page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from mll_flower.results import files
from mll_flower.results.formatting import format_duration, format_number
from mll_flower.results.html_report import sections
from mll_flower.results.html_report.data import (
    FRAMES,
    POINTS,
    curves_data,
    finite,
    network_data,
)
from mll_flower.results.runs import Run
from mll_flower.watching.run_follower import RunFollower
from mll_flower.watching.source import (
    FLOATS,
    Phase,
    Source,
    View,
    rounds_per_minute,
    stable_pick,
)


class RunSource(Source):
    """Follows the folder of a run.

    Parameters
    ----------
    folder : Path
        The run's output; it need not exist yet.
    """

    kind = "run"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.follower = RunFollower(folder)
        self._looked = False
        self._drawn: tuple[Any, dict[str, Any]] = (None, {})  # the network's data, of a result

    def look(self) -> View | None:
        """Return what there is to show; None if the run has written nothing new."""
        changed = self.follower.look()
        if not changed and self._looked:
            return None
        self._looked = True
        if not self.follower.begun:
            return self._waiting()
        run = self.follower.run()
        hubs = run.network.hubs
        frames = max(40, min(FRAMES, FLOATS // hubs))
        phase = _phase(self.follower)
        return View(
            title=run.name,
            subtitle=_subtitle(run),
            phase=phase,
            status=_status(run, phase),
            done=int(run.summary["slot"] or 0),
            total=int(run.config["slots"]),
            parts=_parts(run),
            still=self._still(run),
            moving={**curves_data(run, frames, POINTS, stable_pick), "live": True},
            age=self.follower.age,
        )

    def _waiting(self) -> View:
        name = self.folder.resolve().name
        claimed = (self.folder / files.CONFIG).is_file()
        status = "The run is starting." if claimed else f"No run has begun in {self.folder} yet."
        return View(title=name, status=status, age=self.follower.age)

    def _still(self, run: Run) -> dict[str, Any]:
        """Return the data that stay; made again only if the run has written its result again."""
        made_from, data = self._drawn
        if made_from is not self.follower.result:
            expected = run.expected_steps().tolist() if run.finished else []
            workers = [
                {**worker, "expected": expected[i] if expected else None}
                for i, worker in enumerate(run.end["workers"])
            ]
            data = {**network_data(run), **finite({"workers": workers})}
            self._drawn = (self.follower.result, data)
        return data


def _phase(follower: RunFollower) -> Phase:
    if follower.finished:
        return "finished"
    return "stopped" if follower.stopped else "running"


def _subtitle(run: Run) -> str:
    config, network = run.config, run.network
    return (
        f"{config['preset']}: {config['model']} on {run.end['data']}; {network.hubs} hubs "
        f"({config['graph']}), {network.workers} workers, tau = {config['tau']}, q = {config['q']}"
    )


def speed(run: Run) -> float | None:
    """Return the rounds per minute of a run lately; None if they are not known yet."""
    rows = run.hub_rows[-4000:]
    return rounds_per_minute([row.round for row in rows], [row.seconds for row in rows])


def _status(run: Run, phase: Phase) -> str:
    summary = run.summary
    slot, slots = summary["slot"] or 0, run.config["slots"]
    text = f"slot {format_number(slot)} of {format_number(slots)}, round {summary['rounds']}"
    if phase == "finished":
        return f"Finished: {text}, after {format_duration(summary['seconds'])}"
    if phase == "stopped":
        return f"Interrupted: {text}; `mll-flower resume` goes on with it"
    rate = speed(run)
    left = ""
    if rate and summary["rounds"]:
        rounds = (slots - slot) * summary["rounds"] / slot if slot else math.nan
        left = f", about {format_duration(60 * rounds / rate)} left" if rounds > 0 else ""
    return f"Running: {text}{left}"


def _parts(run: Run) -> dict[str, str]:
    rate = None if run.finished else speed(run)
    diverged = "This run diverged: its last training loss is not finite." if run.diverged else ""
    return {
        "notice": f'<p class="notice">{diverged}</p>' if diverged else "",
        "tiles": sections.headline(run, rate),
        "absences": sections.absences(run),
        "config": sections.config(run),
    }
