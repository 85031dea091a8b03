"""Runs, read back from their output folders.

Plots, the HTML report, the command line and the experiments read runs through this module. A run
that is still going on can be read too, as far as it has got.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mll_flower.algorithm.network import HubNetwork
from mll_flower.results import files
from mll_flower.results.events import add_events, parse_events
from mll_flower.tasks.metrics import LOWER_IS_BETTER

FloatArray = NDArray[np.float64]

X_AXES = {
    "slots": ("slot", "slot"),
    "rounds": ("round", "round"),
    "steps": ("steps", "gradient steps of all workers"),
    "bytes": ("bytes", "bytes sent"),
    "seconds": ("seconds", "seconds"),
}
"""What a curve may be drawn over: the key of an evaluation, and the label of the axis."""

Y_AXES = {"accuracy": "test accuracy", "loss": "training loss", "test_loss": "test loss"}
"""What a curve may show: the key of an evaluation, and the label of the axis.

``accuracy`` stands for the metric of the run, whatever that is; see `Run.metric`.
"""

# Columns of metrics.csv that an evaluation's row fills, and their types.
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
    """A row of metrics.csv about one hub in the rounds of one message.

    Parameters
    ----------
    slot, round, hub : int
        The slot at which the last of these rounds ended, its number, the hub.
    steps : int
        Steps of the hub's workers.
    loss, distance : float
        Mean training loss of these steps; the distance of z(d) from the averaged model.
    bytes, absent : int
        Bytes sent since the start of the run; number of absences.
    seconds : float
        Time since the start of the run.
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
    """The results of one run.

    Parameters
    ----------
    path : Path
        The run's output folder.
    config : dict
        The run config, under its own names.
    evaluations : list of dict
        Evaluations of the averaged model, oldest first; the metric is under its own name.
    hub_rows : list of HubRow
        The rows of metrics.csv that are about one hub, oldest first.
    result : dict or None
        Content of metrics.json. For a run that has not finished, the same as far as it is known:
        the workers' steps may be None. None if the folder does not have it.
    finished : bool
        Whether the run reached its end.
    metric : str
        Name of the metric, and its key in the evaluations.
    """

    path: Path
    config: dict[str, Any]
    evaluations: list[dict[str, Any]]
    hub_rows: list[HubRow]
    result: dict[str, Any] | None
    finished: bool
    metric: str = "accuracy"

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @cached_property
    def end(self) -> dict[str, Any]:
        """`result`; ValueError if the folder does not have it."""
        if self.result is None:
            raise ValueError(
                f"{self.path} holds a run that has not finished, without its network (neither "
                f"{files.METRICS} nor {files.UNFINISHED}): continue it with resume"
            )
        return self.result

    @property
    def summary(self) -> dict[str, Any]:
        """The last values and the totals, under the names of metrics.json."""
        return self.result["summary"] if self.result else _summary(self.evaluations, self.hub_rows)

    @property
    def diverged(self) -> bool:
        """Whether the last training loss is not finite."""
        return bool(self.evaluations) and not math.isfinite(self.final("loss"))

    @property
    def hub_evaluations(self) -> list[dict[str, Any]]:
        """Slot, round and the metric of each hub's own model, oldest first; the last at the end."""
        if self.result is None:
            return []
        found = list(self.result.get("hub_evaluations") or [])
        models = self.result.get("hub_models")
        if models and self.evaluations:
            last = {key: self.evaluations[-1][key] for key in ("slot", "round")}
            found.append({**last, self.metric: [hub[self.metric] for hub in models]})
        return found

    @cached_property
    def network(self) -> HubNetwork:
        """The network of the run, with the weights that were used."""
        keys = ("workers_per_hub", "edges", "weights", "rates")
        try:
            return HubNetwork.from_dict({key: self.end["network"][key] for key in keys})
        except KeyError as error:
            raise ValueError(f"{self.path / files.METRICS}: {error} is missing") from None

    @property
    def zeta(self) -> float:
        """Second largest eigenvalue modulus of the mixing matrix; NaN if it is not known."""
        return float(self.result["network"]["zeta"]) if self.result else math.nan

    def expected_steps(self) -> FloatArray:
        """Return the expected steps of each worker: rate times slots, or tau per round."""
        summary = self.end["summary"]
        if self.config.get("wait-for-all"):
            return np.full(self.network.workers, float(self.config["tau"] * summary["rounds"]))
        return np.asarray(self.network.p * (summary["slot"] or self.config["slots"]))

    def series(self, x: str, y: str) -> tuple[FloatArray, FloatArray]:
        """Return a curve: the values on each axis, one per evaluation.

        Parameters
        ----------
        x, y : str
            One of `X_AXES`; one of `Y_AXES`.
        """
        for name, known in ((x, X_AXES), (y, Y_AXES)):
            if name not in known:
                raise ValueError(f"{name!r} is not known: use {', '.join(known)}")
        key, value = X_AXES[x][0], self.metric if y == "accuracy" else y
        return (
            np.array([e[key] for e in self.evaluations], dtype=np.float64),
            np.array([_number(e[value]) for e in self.evaluations], dtype=np.float64),
        )

    def y_label(self, y: str) -> str:
        """Return the label of a y axis, one of `Y_AXES`, with the name of the run's metric."""
        return f"test {self.metric}" if y == "accuracy" else Y_AXES[y]

    def best(self, y: str) -> float:
        """Return the best metric or the lowest loss that is finite; NaN if none is."""
        values = self.series("slots", y)[1]
        values = values[np.isfinite(values)]
        if not values.size:
            return math.nan
        rises = y == "accuracy" and self.metric not in LOWER_IS_BETTER
        return float(values.max() if rises else values.min())

    def final(self, y: str) -> float:
        """Return the last value of a curve; NaN without evaluations."""
        values = self.series("slots", y)[1]
        return float(values[-1]) if values.size else math.nan

    def reached(self, target: float) -> dict[str, Any] | None:
        """Return the first evaluation whose metric is at least this good; None if none is."""
        sign = -1 if self.metric in LOWER_IS_BETTER else 1
        return next(
            (e for e in self.evaluations if sign * _number(e[self.metric]) >= sign * target), None
        )


def load_run(path: str | Path) -> Run:
    """Read a run's folder.

    Parameters
    ----------
    path : str or Path
        The run's ``output``.

    Raises
    ------
    ValueError
        If this is not a run's folder, or a file in it cannot be read; the message names it.
    """
    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder: give the output of a run")
    config_file, rows_file = path / files.CONFIG, path / files.ROWS
    if not config_file.is_file() or not rows_file.is_file():
        inside = sorted(p.parent for p in path.glob(f"*/{files.ROWS}"))
        hint = f"; it contains runs, such as {inside[-1]}: name one of them" if inside else ""
        raise ValueError(
            f"{path} is not a run's output (it needs {files.CONFIG} and {files.ROWS}){hint}"
        )
    config = _read_json(config_file)
    # In this order: a run that finishes meanwhile removes the second after it writes the first.
    unfinished = _read_result(path / files.UNFINISHED)
    result = _read_result(path / files.METRICS)
    finished = result is not None
    evaluations, hub_rows, metric = _read_rows(rows_file, partial=not finished)
    if result is not None:
        evaluations = result["evaluations"]
    elif unfinished is not None:
        # It is as old as the start of the run, unless the run could write it when it stopped.
        result = unfinished_result(unfinished, evaluations, hub_rows, _read_events(path))
    return Run(path, config, evaluations, hub_rows, result, finished, metric)


def unfinished_result(
    start: dict[str, Any],
    evaluations: list[dict[str, Any]],
    hub_rows: list[HubRow],
    events: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return what is known of a run that has not finished: what it wrote at its start, brought up
    to date by its rows and its events."""
    result = {**start, "evaluations": evaluations, "summary": _summary(evaluations, hub_rows)}
    add_events(result, events)
    return result


def load_runs(paths: Sequence[str | Path]) -> list[Run]:
    """Read the folders of several runs."""
    return [load_run(path) for path in paths]


def labels_for(runs: Sequence[Run], labels: Sequence[str] = ()) -> list[str]:
    """Return the given labels; without any, the folders' names, or paths where names repeat."""
    if labels:
        if len(labels) != len(runs):
            raise ValueError(
                f"{len(labels)} labels for {len(runs)} runs: give one per run, in their order"
            )
        return list(labels)
    names = [run.name for run in runs]
    return [str(r.path) if names.count(r.name) > 1 else r.name for r in runs]


def shared_y_label(runs: Sequence[Run], y: str) -> str:
    """Return the label of a y axis on which several runs are drawn."""
    return " or ".join(dict.fromkeys(run.y_label(y) for run in runs)) or Y_AXES[y]


def _read_events(path: Path) -> list[dict[str, Any]]:
    try:
        return parse_events((path / files.EVENTS).read_bytes().splitlines())
    except OSError:
        return []


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: an object was expected, not {type(value).__name__}")
    return value


def _read_result(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    result = _read_json(path)
    missing = {"network", "evaluations", "workers", "absences", "summary"} - set(result)
    if missing:
        raise ValueError(f"{path}: {', '.join(sorted(missing))} is missing")
    return result


def _summary(evaluations: list[dict[str, Any]], hub_rows: list[HubRow]) -> dict[str, Any]:
    """Return how far a run has got, under the names of metrics.json."""
    last: Any = evaluations[-1] if evaluations else {}
    return {
        **{key: last.get(key) for key in ("loss", "test_loss", metric_name(last))},
        "slot": max((row.slot for row in hub_rows), default=0),
        "rounds": max((row.round for row in hub_rows), default=0),
        "steps": sum(row.steps for row in hub_rows),
        "absent": sum(row.absent for row in hub_rows),
        "bytes": hub_rows[-1].bytes if hub_rows else 0,
        "seconds": max([row.seconds for row in hub_rows] + [last.get("seconds", 0.0)]),
    }


def metric_name(evaluation: Mapping[str, Any]) -> str:
    """Return the name of the metric in an evaluation: accuracy, or what stands in its place."""
    others = {*_EVALUATION, "evaluation_seconds"} - {"accuracy"}
    return next((name for name in evaluation if name not in others), "accuracy")


def parse_row(row: Mapping[str, Any]) -> HubRow | dict[str, Any]:
    """Read a row of metrics.csv: one about a hub, or an evaluation; ValueError if it is neither."""
    if row["hub"] == "all":
        whole = ("slot", "round", "steps", "bytes")
        measured = [key for key in row if key not in (*whole, "hub", "distance", "absent")]
        return {
            **{key: int(row[key]) for key in whole},
            **{key: float(row[key]) for key in measured},
        }
    return HubRow(
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


def _read_rows(path: Path, partial: bool) -> tuple[list[dict[str, Any]], list[HubRow], str]:
    """Read the rows of evaluations and of hubs, and the name of the metric.

    A partial file may end in half a line.
    """
    evaluations, hub_rows = [], []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        names = list(reader.fieldnames or ())
        others = [name for name in names if name not in files.COLUMNS]
        metric = others[0] if others and "accuracy" not in names else "accuracy"
        kinds = {metric if key == "accuracy" else key: kind for key, kind in _EVALUATION.items()}
        missing = set(kinds) | {"hub", "distance", "absent"}
        missing -= set(names)
        if missing:
            raise ValueError(f"{path}: the columns {', '.join(sorted(missing))} are missing")
        for row in reader:
            if partial and None in row.values():
                break
            try:
                record = parse_row(row)
            except (ValueError, TypeError):
                raise ValueError(
                    f"{path}, line {reader.line_num}: {list(row.values())} is not a row of metrics"
                ) from None
            if isinstance(record, HubRow):
                hub_rows.append(record)
            else:
                evaluations.append(record)
    return evaluations, hub_rows, metric


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
