"""What the report's script draws: plain values, fit for JSON."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import networkx as nx
import numpy as np

from mll_flower.results.plots import colours
from mll_flower.results.runs import HubRow, Run

FRAMES = 400
"""Rounds that the graph moves through, at most: more than these no eye and no line shows."""
POINTS = 1000
"""Evaluations that a curve is drawn through, at most."""


def payload(run: Run) -> dict[str, Any]:
    """Return all that the script draws of a run; values that are not finite become None."""
    network, end = run.network, run.end
    matrix = end["network"]["H"]
    keys = ("slot", "round", "steps", "bytes", "seconds", "loss", "test_loss", "accuracy")
    picked = [run.evaluations[i] for i in spread(len(run.evaluations), POINTS)]
    data = {
        "colours": colours(network.hubs),
        "places": places(network.graph),
        "edges": [[i, j, matrix[i][j], matrix[j][i]] for i, j in end["network"]["edges"]],
        "shares": network.b.tolist(),
        "evaluations": {key: [e[key] for e in picked] for key in keys},
        "frames": frames(run),
        "workers": [
            {**worker, "expected": expected}
            for worker, expected in zip(end["workers"], run.expected_steps().tolist(), strict=True)
        ],
    }
    cleaned: dict[str, Any] = _finite(data)
    return cleaned


def frames(run: Run) -> dict[str, Any]:
    """Return the hubs' rounds as columns: one entry a recorded round, from the common start."""
    hubs, q = run.network.hubs, int(run.config["q"])
    by_round: dict[int, list[HubRow]] = {}
    for row in run.hub_rows:
        by_round.setdefault(row.round, []).append(row)
    numbers = sorted(by_round)
    chosen = [numbers[i] for i in spread(len(numbers), FRAMES)]
    # All hubs start from one model.
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
    gone: list[set[int]] = [set() for _ in chosen]
    for absence in run.end["absences"]:
        at = bisect_left(chosen, absence["round"])
        if at < len(chosen):
            gone[at].add(absence["worker"])
    before = 0
    for number, missing in zip(chosen, gone, strict=True):
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
        columns["absent"].append(sorted(missing))
        before = number
    return {**columns, "recorded": len(numbers)}


def places(graph: nx.Graph[int]) -> list[list[float]]:
    """Places of the hubs in the unit square; the same for the same graph."""
    hubs = len(graph)
    if hubs == 1:
        return [[0.5, 0.5]]
    degrees = [d for _, d in graph.degree]
    at: Mapping[int, Any]
    path = nx.is_tree(graph) and max(degrees) <= 2
    if path:
        # To and fro in rows, as one line leaves no room for names on a small screen.
        order = list(nx.dfs_preorder_nodes(graph, degrees.index(1)))
        across = hubs if hubs <= 4 else math.ceil(math.sqrt(1.3 * hubs))
        rows = [divmod(i, across) for i in range(hubs)]
        at = {
            d: (column if row % 2 == 0 else across - 1 - column, -row)
            for d, (row, column) in zip(order, rows, strict=True)
        }
    elif len(set(degrees)) == 1 and degrees[0] in (2, hubs - 1):
        order = list(nx.dfs_preorder_nodes(graph, 0))
        angles = math.pi / 2 - 2 * math.pi * np.arange(hubs) / hubs
        at = {d: (math.cos(t), math.sin(t)) for d, t in zip(order, angles, strict=True)}
    elif hubs <= 150:
        at = nx.kamada_kawai_layout(graph)
    else:
        at = nx.spring_layout(graph, seed=0, iterations=60)
    points = np.array([at[d] for d in range(hubs)], dtype=np.float64)
    points -= points.min(axis=0)
    reach = points.max(axis=0)
    points /= np.where(reach > 0, reach, 1) if path else reach.max()
    points += (1 - points.max(axis=0)) / 2
    points[:, 1] = 1 - points[:, 1]
    rounded: list[list[float]] = points.round(4).tolist()
    return rounded


def spread(number: int, most: int) -> Sequence[int]:
    """Return at most so many of the indices, evenly spread, the first and the last among them."""
    if number <= most:
        return range(number)
    return sorted({round(float(i)) for i in np.linspace(0, number - 1, most)})


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value
