"""The data of a run that the script of its HTML report draws, as values that JSON can hold.

The evaluations, the hub graph with its state after each recorded round, and the workers.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
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


def payload(run: Run) -> dict[str, Any]:
    """Return everything about a run that the script draws; None for values that are not finite."""
    network, end = run.network, run.end
    matrix = end["network"]["H"]
    keys = ("slot", "round", "steps", "bytes", "seconds", "loss", "test_loss")
    picked = [run.evaluations[i] for i in evenly_spaced(len(run.evaluations), POINTS)]
    data = {
        "colours": {
            **dict(zip(("loss", "test_loss", "accuracy"), PALETTE, strict=False)),
            "hubs": colours(network.hubs),
        },
        "positions": positions(network.graph),
        "edges": [[i, j, matrix[i][j], matrix[j][i]] for i, j in end["network"]["edges"]],
        "shares": network.b.tolist(),
        "evaluations": {
            **{key: [e[key] for e in picked] for key in keys},
            "accuracy": [e[run.metric] for e in picked],
        },
        "metric": run.metric,
        "frames": frames(run),
        "workers": [
            {**worker, "expected": expected}
            for worker, expected in zip(end["workers"], run.expected_steps().tolist(), strict=True)
        ],
    }
    cleaned: dict[str, Any] = _finite(data)
    return cleaned


def frames(run: Run) -> dict[str, Any]:
    """Return the hubs' rounds as columns, one entry per frame of the page.

    A frame is a recorded round; the first frame is the start of the run. In a run with more
    than `FRAMES` recorded rounds, a frame also shows the absences and mixings of the rounds that
    are left out just before it.
    """
    hubs, q = run.network.hubs, int(run.config["q"])
    by_round: dict[int, list[HubRow]] = {}
    for row in run.hub_rows:
        by_round.setdefault(row.round, []).append(row)
    numbers = sorted(by_round)
    chosen = [numbers[i] for i in evenly_spaced(len(numbers), FRAMES)]
    # All hubs start from the same model, so that every distance is 0.
    columns: dict[str, list[Any]] = {
        "slot": [0],
        "round": [0],
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
    before = 0
    for number, absent_workers in zip(chosen, absent, strict=True):
        rows = by_round[number]
        distance, loss = [math.nan] * hubs, [math.nan] * hubs
        for row in rows:
            distance[row.hub], loss[row.hub] = row.distance, row.loss
        columns["slot"].append(max(row.slot for row in rows))
        columns["round"].append(number)
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


def evenly_spaced(number: int, most: int) -> Sequence[int]:
    """Return at most ``most`` of the indices below ``number``, with the first and the last."""
    if number <= most:
        return range(number)
    return sorted({round(float(i)) for i in np.linspace(0, number - 1, most)})


def _finite(value: Any) -> Any:
    """Round floats to seven digits; JSON has no NaN and no infinity, so these become None."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value
