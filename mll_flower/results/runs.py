"""Runs read back from the folders that they left behind."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mll_flower.algorithm.network import HubNetwork

FloatArray = NDArray[np.float64]

X_AXES = {
    "slots": ("slot", "slot"),
    "rounds": ("round", "round"),
    "steps": ("steps", "gradient steps of all workers"),
    "bytes": ("bytes", "bytes sent"),
    "seconds": ("seconds", "seconds"),
}
"""What a curve may be drawn over: an evaluation's key, and the words for an axis."""

Y_AXES = {"accuracy": "test accuracy", "loss": "training loss", "test_loss": "test loss"}
"""What a curve may show: an evaluation's key, and the words for an axis."""

_EVALUATION = {
    "slot": int,
    "round": int,
    "steps": int,
    "loss": float,
    "accuracy": float,
    "test_loss": float,
    "bytes": int,
    "seconds": float,
}


@dataclass(frozen=True)
class HubRow:
    """A hub's round (or the rounds of one message) as metrics.csv has it.

    Parameters
    ----------
    slot, round, hub : int
        When it ended, its number, the hub.
    steps : int
        Steps of the hub's workers.
    loss, distance : float
        Their mean training loss; the distance of z(d) from the averaged model.
    bytes, absent : int
        Bytes sent since the start of the run; absent workers.
    seconds : float
        Since the start of the run.
    """

    slot: int
    round: int
    hub: int
    steps: int
    loss: float
    distance: float
    bytes: int
    absent: int
    seconds: float


@dataclass(frozen=True, eq=False)
class Run:
    """What a run left behind.

    Parameters
    ----------
    path : Path
        The folder.
    config : dict
        The run config, under its own names.
    evaluations : list of dict
        Evaluations of the averaged model, oldest first.
    hub_rows : list of HubRow
        The hubs' rounds, oldest first.
    result : dict or None
        metrics.json, or None for a run that has not finished.
    """

    path: Path
    config: dict[str, Any]
    evaluations: list[dict[str, Any]]
    hub_rows: list[HubRow]
    result: dict[str, Any] | None

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.result is not None

    @cached_property
    def end(self) -> dict[str, Any]:
        """metrics.json; ValueError for a run that has not finished."""
        if self.result is None:
            raise ValueError(
                f"{self.path} holds a run that has not finished (no metrics.json): wait for its "
                "end, or go on with it by resume"
            )
        return self.result

    @cached_property
    def network(self) -> HubNetwork:
        """The network that ran, with the weights that were in use."""
        keys = ("workers_per_hub", "edges", "weights", "rates")
        try:
            return HubNetwork.from_dict({key: self.end["network"][key] for key in keys})
        except KeyError as error:
            raise ValueError(f"{self.path / 'metrics.json'}: {error} is missing") from None

    @property
    def zeta(self) -> float:
        """Second largest eigenvalue modulus of the mixing matrix; NaN before the end."""
        return float(self.result["network"]["zeta"]) if self.result else math.nan

    def expected_steps(self) -> FloatArray:
        """Steps that each worker was expected to take: rate times slots, or tau a round."""
        summary = self.end["summary"]
        if self.config.get("wait-for-all"):
            return np.full(self.network.workers, float(self.config["tau"] * summary["rounds"]))
        return np.asarray(self.network.p * (summary["slot"] or self.config["slots"]))

    def series(self, x: str, y: str) -> tuple[FloatArray, FloatArray]:
        """Return a curve.

        Parameters
        ----------
        x, y : str
            One of `X_AXES`; one of `Y_AXES`.
        """
        for name, known in ((x, X_AXES), (y, Y_AXES)):
            if name not in known:
                raise ValueError(f"{name!r} is not known: use {', '.join(known)}")
        key = X_AXES[x][0]
        return (
            np.array([e[key] for e in self.evaluations], dtype=np.float64),
            np.array([_number(e[y]) for e in self.evaluations], dtype=np.float64),
        )

    def best(self, y: str) -> float:
        """Best finite value of a curve: the highest accuracy, the lowest loss; NaN for none."""
        values = self.series("slots", y)[1]
        values = values[np.isfinite(values)]
        if not values.size:
            return math.nan
        return float(values.max() if y == "accuracy" else values.min())

    def final(self, y: str) -> float:
        """Last value of a curve; NaN when there is no evaluation."""
        values = self.series("slots", y)[1]
        return float(values[-1]) if values.size else math.nan

    def reached(self, accuracy: float) -> dict[str, Any] | None:
        """Return the first evaluation with at least this accuracy; None when there is none."""
        return next((e for e in self.evaluations if _number(e["accuracy"]) >= accuracy), None)


def load_run(path: str | Path) -> Run:
    """Read a run's folder.

    Parameters
    ----------
    path : str or Path
        The run's ``output``.

    Raises
    ------
    ValueError
        When it is not a run's folder, or something in it cannot be read; says what.
    """
    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder: give the output of a run")
    if not (path / "config.json").is_file() or not (path / "metrics.csv").is_file():
        inside = sorted(p.parent for p in path.glob("*/metrics.csv"))
        hint = f"; there are runs in it, such as {inside[-1]}" if inside else ""
        raise ValueError(f"{path} is not a run's output (no config.json and metrics.csv){hint}")
    config = _read_json(path / "config.json")
    result = _read_json(path / "metrics.json") if (path / "metrics.json").is_file() else None
    evaluations, hub_rows = _read_rows(path / "metrics.csv", partial=result is None)
    if result is not None:
        missing = {"network", "evaluations", "workers", "absences", "summary"} - set(result)
        if missing:
            raise ValueError(f"{path / 'metrics.json'}: {', '.join(sorted(missing))} is missing")
        evaluations = result["evaluations"]
    return Run(path, config, evaluations, hub_rows, result)


def load_runs(paths: Sequence[str | Path]) -> list[Run]:
    """Read several runs' folders."""
    return [load_run(path) for path in paths]


def labels_for(runs: Sequence[Run], labels: Sequence[str] = ()) -> list[str]:
    """Return the labels given, or the folders' names, or their paths where names repeat."""
    if labels:
        if len(labels) != len(runs):
            raise ValueError(
                f"{len(labels)} labels for {len(runs)} runs: give one a run, in their order"
            )
        return list(labels)
    names = [run.name for run in runs]
    return [str(r.path) if names.count(r.name) > 1 else r.name for r in runs]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: an object was expected, not {type(value).__name__}")
    return value


def _read_rows(path: Path, partial: bool) -> tuple[list[dict[str, Any]], list[HubRow]]:
    """Evaluations and hubs' rounds; the last line of a run under way may be half written."""
    evaluations, hub_rows = [], []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        missing = set(_EVALUATION) | {"hub", "distance", "absent"}
        missing -= set(reader.fieldnames or ())
        if missing:
            raise ValueError(f"{path}: the columns {', '.join(sorted(missing))} are missing")
        for row in reader:
            if partial and None in row.values():
                break
            try:
                if row["hub"] == "all":
                    evaluations.append({k: kind(row[k]) for k, kind in _EVALUATION.items()})
                else:
                    hub_rows.append(
                        HubRow(
                            int(row["slot"]),
                            int(row["round"]),
                            int(row["hub"]),
                            int(row["steps"]),
                            float(row["loss"]),
                            float(row["distance"]),
                            int(row["bytes"]),
                            int(row["absent"]),
                            float(row["seconds"]),
                        )
                    )
            except (ValueError, TypeError):
                raise ValueError(
                    f"{path}, line {reader.line_num}: {list(row.values())} is not a row"
                ) from None
    return evaluations, hub_rows


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
