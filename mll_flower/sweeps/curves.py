"""The curves of finished runs, what they show up to one slot, and the verdicts on claims."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mll_flower.results.runs import Run, load_run
from mll_flower.sweeps.cache import is_finished, run_folder
from mll_flower.sweeps.setups import LAST, MEAN, METRICS, Claim, Setup
from mll_flower.sweeps.verdicts import Verdict, judge

FloatArray = NDArray[np.float64]
COLUMNS = ("setup", "seed", "slot", "steps", "loss", "accuracy", "test_loss", "distance")

# Images on which an accuracy is measured, for claims about a single run.
_TEST_ROWS = 10_000


@dataclass(frozen=True, eq=False)
class Curve:
    """A run's evaluations.

    Parameters
    ----------
    seed : int
        Its seed.
    run : Run
        The run.
    distance : ndarray
        At each evaluation, the mean distance of the hubs' averages from the averaged model.
    """

    seed: int
    run: Run
    distance: FloatArray

    def series(self, metric: str) -> tuple[FloatArray, FloatArray]:
        """Return slots and values of ``loss``, ``accuracy`` or ``distance``."""
        if metric == "distance":
            return self.run.series("slots", "loss")[0], self.distance
        return self.run.series("slots", metric)

    def at(self, slot: float, metric: str) -> float:
        """Return the value at a slot; between two evaluations, on a straight line."""
        x, y = self.series(metric)
        return float(np.interp(slot, x, y))

    def mean_until(self, slot: float, metric: str) -> float:
        """Return the mean over all slots up to one; between two evaluations, on a straight line."""
        x, y = self.series(metric)
        before = x < slot
        if not before.any():
            return self.at(slot, metric)
        x, y = np.append(x[before], slot), np.append(y[before], self.at(slot, metric))
        return float(np.trapezoid(y, x) / (slot - x[0]))


Curves = Mapping[str, list[Curve]]
"""For each set-up, by name, the curves of the seeds that are finished in all set-ups."""


def finished_curves(setups: Sequence[Setup], seeds: Iterable[int], out: Path) -> Curves:
    """Return the curves of each set-up, for the seeds whose runs have ended in all set-ups.

    Set-ups are compared seed by seed, so a seed that only some of them have shows nothing.
    """
    folders = {
        setup.name: {seed: run_folder(out, setup.config(seed)) for seed in seeds}
        for setup in setups
    }
    complete = [
        seed for seed in seeds if all(is_finished(of_seed[seed]) for of_seed in folders.values())
    ]
    return {
        name: [_curve(seed, of_seed[seed]) for seed in complete]
        for name, of_seed in folders.items()
    }


def _curve(seed: int, folder: Path) -> Curve:
    run = load_run(folder)
    at: dict[int, list[float]] = {}
    for row in run.hub_rows:
        at.setdefault(row.round, []).append(row.distance)
    means = {number: float(np.mean(values)) for number, values in at.items()}
    distance = np.array([means.get(e["round"], 0.0) for e in run.evaluations], dtype=np.float64)
    return Curve(seed, run, distance)


def last_slot(found: Curves) -> int:
    """Return the last slot that every run has reached; set-ups are compared there."""
    return min(int(c.run.evaluations[-1]["slot"]) for many in found.values() for c in many)


def values_at(many: Sequence[Curve], slot: float) -> dict[str, list[float]]:
    """Return, for each metric, one value per seed."""
    return {metric: [curve.at(slot, metric) for curve in many] for metric in METRICS}


def compared(claim: Claim, many: Sequence[Curve], slot: float) -> list[float]:
    """Return what a claim compares of a set-up, one value per seed."""
    if claim.value == MEAN:
        return [curve.mean_until(slot, claim.metric) for curve in many]
    return [curve.at(slot, claim.metric) for curve in many]


def verdicts(
    setups: Sequence[Setup], claims: Sequence[Claim], found: Curves, slot: float
) -> list[Verdict]:
    """Decide on each claim, from the values at a slot or the means until then."""
    labels = {setup.name: setup.label for setup in setups}
    return [
        judge(
            claim,
            {name: compared(claim, found[name], slot) for name in claim.names},
            labels,
            _TEST_ROWS if claim.value == LAST else None,
        )
        for claim in claims
    ]


def write_csv(found: Curves, path: Path) -> None:
    """Write one line per evaluation of every run."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for name, many in found.items():
            for curve in many:
                for e, distance in zip(curve.run.evaluations, curve.distance, strict=True):
                    numbers = (e["loss"], e[curve.run.metric], e["test_loss"], distance)
                    row: list[Any] = [name, curve.seed, e["slot"], e["steps"]]
                    writer.writerow(row + [f"{_number(x):.6g}" for x in numbers])


def _number(value: float | None) -> float:
    return np.nan if value is None else value
