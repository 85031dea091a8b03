"""A sweep from its file to its results: what is to be played, and what the runs show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mll_flower.results import files
from mll_flower.results.runs import Run
from mll_flower.sweeps.cache import run_folder
from mll_flower.sweeps.curves import (
    Curves,
    finished_curves,
    last_slot,
    values_at,
    verdicts,
    write_csv,
)
from mll_flower.sweeps.drawing import plot_curves, plot_last_values
from mll_flower.sweeps.runner import Job, missing
from mll_flower.sweeps.sweep_file import Sweep
from mll_flower.sweeps.verdicts import Verdict, interval
from mll_flower.tasks.data import find_published
from mll_flower.training.own_work import try_own_work

CURVES, VALUES = "curves.png", "values.png"
"""Plots in the sweep's folder: loss and metric over the slots; their values at the end."""
EVALUATIONS, RESULTS = "evaluations.csv", "results.json"
"""All evaluations of all runs; means, intervals and verdicts."""


def check_data(sweep: Sweep) -> None:
    """Find or download the data, and try what is the user's own, once for each kind of run."""
    tried = set()
    for setup in sweep.setups:
        config = setup.config(sweep.seeds[0])
        names = (config.dataset, config.data_dir, config.model, config.loss, config.metric)
        task = (*names, config.partition, config.hubs, config.workers_per_hub, config.code_dir)
        if task not in tried:
            tried.add(task)
            find_published(config.dataset, config.data_dir)
            try_own_work(config)


def missing_runs(sweep: Sweep, out: Path) -> list[Job]:
    """Return the runs of a sweep that have not been played yet."""
    return missing(out, sweep.configs())


def runs_of(sweep: Sweep, out: Path) -> int:
    """Return the number of different runs; two set-ups may be the same run."""
    return len({run_folder(out, config) for config in sweep.configs()})


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the finished runs of a sweep show.

    Parameters
    ----------
    found : Curves
        For each set-up the curves of the seeds that are finished in all set-ups.
    slot : int
        The last slot that all of them have reached, at which set-ups are compared.
    verdicts : list of Verdict
        One per claim.
    """

    found: Curves
    slot: int
    verdicts: list[Verdict]

    @property
    def seeds(self) -> list[int]:
        """The seeds that are finished in all set-ups."""
        return [curve.seed for curve in next(iter(self.found.values()))]

    @property
    def runs(self) -> list[list[Run]]:
        """The runs of each set-up."""
        return [[curve.run for curve in many] for many in self.found.values()]


def outcome(sweep: Sweep, out: Path) -> Outcome | None:
    """Read the finished runs and judge the claims; None if no seed is finished in all set-ups."""
    found = finished_curves(sweep.setups, sweep.seeds, out)
    if not all(found.values()):
        return None
    slot = last_slot(found)
    return Outcome(found, slot, verdicts(sweep.setups, sweep.claims, found, slot))


def write_results(sweep: Sweep, shown: Outcome, out: Path) -> list[Path]:
    """Write plots, CSV and JSON of a sweep; return the files."""
    paths = [out / name for name in (CURVES, VALUES, EVALUATIONS, RESULTS)]
    plot_curves(sweep.setups, shown.found, sweep.title, paths[0])
    plot_last_values(sweep.setups, shown.found, shown.slot, sweep.title, paths[1])
    write_csv(shown.found, paths[2])
    files.write_json(paths[3], _as_json(sweep, shown))
    return paths


def _as_json(sweep: Sweep, shown: Outcome) -> dict[str, Any]:
    return {
        "title": sweep.title,
        "slot": shown.slot,
        "seeds": shown.seeds,
        "planned": list(sweep.seeds),
        "setups": [
            {"name": name, **_numbers(values_at(many, shown.slot))}
            for name, many in shown.found.items()
        ],
        "verdicts": [{**_finite(asdict(v)), "text": v.text} for v in shown.verdicts],
    }


def _numbers(values: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return mean, interval and single values of each metric."""
    return {
        metric: _finite(
            {"mean": float(np.mean(of_seeds)), "interval": interval(np.array(of_seeds))}
        )
        | {"values": [_finite({"x": x})["x"] for x in of_seeds]}
        for metric, of_seeds in values.items()
    }


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with None for numbers that are not finite, which JSON does not have."""
    return {
        key: None if isinstance(value, float) and not np.isfinite(value) else value
        for key, value in values.items()
    }
