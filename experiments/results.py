"""A figure's numbers: the curves of its runs, its CSV, and the summary with its verdicts."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.cache import is_finished, run_folder
from experiments.derived import LABEL, NAME
from experiments.figures import METRICS, Figure, Setup
from experiments.verdicts import Verdict, judge
from mll_flower.results.runs import Run, load_run

FloatArray = NDArray[np.float64]
COLUMNS = ("setup", "seed", "slot", "steps", "loss", "accuracy", "test_loss", "distance")


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


def curves(figure: Figure, out: Path) -> dict[str, list[Curve]]:
    """Return the curves of each set-up, for the seeds whose runs have ended."""
    return {setup.name: _curves(setup, figure.seeds, out) for setup in figure.setups}


def _curves(setup: Setup, seeds: int, out: Path) -> list[Curve]:
    found = []
    for seed in range(seeds):
        folder = run_folder(out, setup.config(seed))
        if is_finished(folder):
            run = load_run(folder)
            found.append(Curve(seed, run, _distances(run)))
    return found


def _distances(run: Run) -> FloatArray:
    """Return the mean distance of the hubs from the averaged model at each evaluation."""
    at: dict[int, list[float]] = {}
    for row in run.hub_rows:
        at.setdefault(row.round, []).append(row.distance)
    means = {number: float(np.mean(values)) for number, values in at.items()}
    return np.array([means.get(e["round"], 0.0) for e in run.evaluations], dtype=np.float64)


def write_csv(figure: Figure, found: Mapping[str, list[Curve]], path: Path) -> None:
    """Write one line per evaluation of every run."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for setup in figure.setups:
            for curve in found[setup.name]:
                for e, distance in zip(curve.run.evaluations, curve.distance, strict=True):
                    numbers = (e["loss"], e["accuracy"], e["test_loss"], distance)
                    row = [setup.name, curve.seed, e["slot"], e["steps"]]
                    writer.writerow(row + [f"{x:.6g}" for x in numbers])


def last_slot(found: Mapping[str, list[Curve]]) -> int:
    """Return the last slot that every run has reached; set-ups are compared there."""
    return min(int(c.run.evaluations[-1]["slot"]) for many in found.values() for c in many)


def summarise(
    figure: Figure, found: Mapping[str, list[Curve]], command: str, cores: int
) -> dict[str, Any]:
    """Return everything that the document needs about a figure, as plain values."""
    runs = [curve for many in found.values() for curve in many]
    if not runs or not all(found.values()):
        missing = [name for name, many in found.items() if not many]
        raise ValueError(f"figure {figure.key}: no finished runs of {', '.join(missing)}")
    slot = last_slot(found)
    return {
        "figure": figure.name,
        "model": figure.model,
        "scale": figure.scale,
        "title": figure.title,
        "source": figure.source,
        "command": command,
        "cores": cores,
        "seeds": figure.seeds,
        "data": _label(runs[0].run),
        "slot": slot,
        "minutes": sum(c.run.end["summary"]["seconds"] for c in runs) / 60,
        "setups": [_setup(setup, found[setup.name], slot) for setup in figure.setups],
        "verdicts": [asdict(v) for v in _verdicts(figure, found, slot)],
    }


def _label(run: Run) -> str:
    label = str(run.end["data"])
    return LABEL if label == NAME else label


def _setup(setup: Setup, found: list[Curve], slot: int) -> dict[str, Any]:
    first = found[0].run
    config = first.config
    values = {m: [c.at(slot, m) for c in found] for m in METRICS}
    return {
        "name": setup.name,
        "label": setup.label,
        "seeds": len(found),
        "zeta": first.zeta,
        "workers": first.network.workers,
        "hubs": config["hubs"],
        "graph": config["graph"],
        "tau": config["tau"],
        "q": config["q"],
        "slots": config["slots"],
        "batch": config["batch-size"],
        "step": config["learning-rate"],
        "published": list(setup.published),
        "data": _label(first),
        **{metric: _mean_sd(numbers) for metric, numbers in values.items()},
    }


def _mean_sd(numbers: list[float]) -> list[float | None]:
    spread = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
    return [float(np.mean(numbers)), spread]


def _verdicts(figure: Figure, found: Mapping[str, list[Curve]], slot: int) -> list[Verdict]:
    labels = {setup.name: setup.label for setup in figure.setups}
    seeds = set.intersection(*({c.seed for c in many} for many in found.values()))
    verdicts = []
    for claim in figure.claims:
        values = {
            name: [c.at(slot, claim.metric) for c in many if c.seed in seeds]
            for name, many in found.items()
        }
        verdicts.append(judge(claim, values, labels, 10_000))
    return verdicts


def save(summary: Mapping[str, Any], path: Path) -> None:
    """Write a summary as JSON; numbers that are not finite become null."""
    path.write_text(json.dumps(_plain(summary), indent=1) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
