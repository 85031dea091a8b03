"""The data of a run that the script of its HTML report draws, as values that JSON can hold.

The evaluations, the hub graph with its state after each recorded round, and the workers.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import networkx as nx
import numpy as np

from mll_flower.results.figure_style import PALETTE, colours
from mll_flower.results.hub_layout import hub_layout
from mll_flower.results.runs import HubRow, Run

FRAMES = 400
"""Largest number of rounds on the page; more could not be told apart on slider or curve."""

POINTS = 1000
"""Largest number of evaluations that a curve is drawn through."""


Pick = Callable[[int, int], Sequence[int]]
"""Chooses at most so many (the second argument) of the indices below a number (the first)."""


def evenly_spaced(number: int, most: int) -> Sequence[int]:
    """Return at most ``most`` of the indices below ``number``, with the first and the last."""
    if number <= most:
        return range(number)
    return sorted({round(float(i)) for i in np.linspace(0, number - 1, most)})


def payload(run: Run) -> dict[str, Any]:
    """Return everything about a run that the script draws; None for values that are not finite."""
    workers = [
        {**worker, "expected": expected}
        for worker, expected in zip(run.end["workers"], run.expected_steps().tolist(), strict=True)
    ]
    return {**network_data(run), **finite({"workers": workers}), **curves_data(run)}


def network_data(run: Run) -> dict[str, Any]:
    """Return what stays as it is while a run goes on: the hubs, their graph, the labels."""
    network, end = run.network, run.end
    matrix = end["network"]["H"]
    data = {
        "names": [f"hub {d}" for d in range(network.hubs)],
        "short": [str(d) for d in range(network.hubs)],
        "colours": {"hubs": colours(network.hubs)},
        "positions": positions(network.graph),
        "edges": [[i, j, matrix[i][j], matrix[j][i]] for i, j in end["network"]["edges"]],
        "shares": network.b.tolist(),
        "labels": end.get("labels"),
    }
    cleaned: dict[str, Any] = finite(data)
    return cleaned


def curves_data(
    run: Run, most_frames: int = FRAMES, most_points: int = POINTS, pick: Pick = evenly_spaced
) -> dict[str, Any]:
    """Return what grows while a run goes on: its rounds and its evaluations.

    Parameters
    ----------
    run : Run
        The run.
    most_frames, most_points : int
        Largest number of rounds, and of evaluations.
    pick : callable
        Chooses those that are shown if there are more.
    """
    data = {
        "evaluations": evaluation_columns(run, most_points, pick),
        "hub_evaluations": _hub_evaluations(run),
        "charts": charts(run),
        "frames": frames(run, most_frames, pick),
    }
    cleaned: dict[str, Any] = finite(data)
    return cleaned


def evaluation_columns(run: Run, most: int = POINTS, pick: Pick = evenly_spaced) -> dict[str, Any]:
    """Return the evaluations of a run as columns; ``accuracy`` is its metric, whatever that is."""
    keys = ("slot", "round", "steps", "bytes", "seconds", "loss", "test_loss")
    picked = [run.evaluations[i] for i in pick(len(run.evaluations), most)]
    return {
        **{key: [e[key] for e in picked] for key in keys},
        "accuracy": [e[run.metric] for e in picked],
    }


def charts(run: Run) -> list[dict[str, Any]]:
    """Return the charts of a run: which columns of the data each shows."""
    of_metric = f"{run.metric[:1].upper()}{run.metric[1:]} of"
    lines = [
        {"name": "training loss", "key": "loss", "colour": PALETTE[0]},
        {"name": "test loss", "key": "test_loss", "colour": PALETTE[1], "dash": "5 3"},
    ]
    metric = [{"name": run.metric, "key": "accuracy", "colour": PALETTE[2]}]
    averaged = {"columns": "evaluations", "empty": "No evaluation was recorded."}
    found: list[dict[str, Any]] = [
        {"id": "loss", "title": "Loss of the averaged model", "series": lines, **averaged},
        {"id": "accuracy", "title": f"{of_metric} the averaged model", "series": metric} | averaged,
        {
            "id": "disagreement",
            "title": "Hub disagreement",
            "columns": "frames",
            "perHub": "distance",
            "fromZero": True,
            "empty": "No round was recorded.",
        },
    ]
    if run.hub_evaluations:
        found.append(
            {
                "id": "hub-accuracy",
                "title": f"{of_metric} each hub's own model",
                "columns": "hub_evaluations",
                "perHub": "accuracy",
                "empty": "No hub's model was evaluated.",
            }
        )
    return found


def _hub_evaluations(run: Run) -> dict[str, Any]:
    """Return the evaluations of the hubs' own models as columns, with one metric per hub."""
    keys = ("slot", "round", "steps", "bytes", "seconds")
    at = {e["slot"]: e for e in run.evaluations}
    known = [e for e in run.hub_evaluations if e["slot"] in at]
    return {
        **{key: [at[e["slot"]][key] for e in known] for key in keys},
        "accuracy": [e[run.metric] for e in known],
    }


def frames(run: Run, most: int = FRAMES, pick: Pick = evenly_spaced) -> dict[str, Any]:
    """Return the hubs' rounds as columns, one entry per frame of the page.

    A frame is a recorded round; the first frame is the start of the run. In a run with more
    than ``most`` recorded rounds, a frame also shows the absences and mixings of the rounds that
    are left out just before it.
    """
    hubs, q = run.network.hubs, int(run.config["q"])
    by_round: dict[int, list[HubRow]] = {}
    for row in run.hub_rows:
        by_round.setdefault(row.round, []).append(row)
    numbers = sorted(by_round)
    chosen = [numbers[i] for i in pick(len(numbers), most)]
    # All hubs start from the same model, so that every distance is 0.
    columns: dict[str, list[Any]] = {
        "slot": [0],
        "round": [0],
        "steps": [0],
        "bytes": [0],
        "seconds": [run.evaluations[0]["seconds"] if run.evaluations else 0.0],
        "mixed": [False],
        "distance": [[0.0] * hubs],
        "loss": [[math.nan] * hubs],
        "absent": [[]],
    }
    absent: list[set[int]] = [set() for _ in chosen]
    for absence in run.end["absences"]:
        frame = bisect_left(chosen, absence["round"])
        if frame < len(chosen):
            absent[frame].add(absence["worker"])
    before, taken = 0, _steps_by_round(run.hub_rows)
    for number, absent_workers in zip(chosen, absent, strict=True):
        rows = by_round[number]
        distance, loss = [math.nan] * hubs, [math.nan] * hubs
        for row in rows:
            distance[row.hub], loss[row.hub] = row.distance, row.loss
        columns["slot"].append(max(row.slot for row in rows))
        columns["round"].append(number)
        columns["steps"].append(taken[number])
        columns["bytes"].append(rows[-1].bytes)
        columns["seconds"].append(rows[-1].seconds)
        columns["mixed"].append(hubs > 1 and number // q > before // q)
        columns["distance"].append(distance)
        columns["loss"].append(loss)
        columns["absent"].append(sorted(absent_workers))
        before = number
    return {**columns, "recorded": len(numbers)}


def positions(graph: nx.Graph[int]) -> list[list[float]]:
    """Return the hubs' positions in the unit square, which they fill; y points downwards."""
    points = hub_layout(graph) * [1, -1]
    points -= points.min(axis=0)
    extent = points.max(axis=0)
    # Hubs that form a single row, or a single column, lie in the middle of the other axis.
    points = np.where(extent > 0, points / np.where(extent > 0, extent, 1), 0.5)
    rounded: list[list[float]] = points.round(4).tolist()
    return rounded


def _steps_by_round(rows: Sequence[HubRow]) -> dict[int, int]:
    """Return the steps of all workers up to each recorded round."""
    total, found = 0, {}
    for row in rows:
        total += row.steps
        found[row.round] = total
    return found


def finite(value: Any) -> Any:
    """Round floats to seven digits; JSON has no NaN and no infinity, so these become None."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [finite(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value
