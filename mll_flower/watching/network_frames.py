"""The curves of a deployment, from what its hubs told of their rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mll_flower.results.html_report.data import FRAMES, finite
from mll_flower.watching.hub_history import HubHistory
from mll_flower.watching.source import FLOATS, stable_pick


def network_curves(hubs: Sequence[HubHistory]) -> dict[str, Any]:
    """Return the frames and the charts of a deployment, as the page's script wants them."""
    metrics = sorted({hub.metric[0] for hub in hubs if hub.metric is not None})
    found = [_chart("loss", "Training loss of each hub", "loss")]
    if metrics:
        name = " or ".join(metrics)
        found.append(_chart("accuracy", f"Test {name} of each hub's own model", "metric"))
    if len(hubs) > 1:
        chart = _chart("disagreement", "Hub disagreement", "distance")
        found.append({**chart, "fromZero": True})
    return {"charts": found, "frames": _frames(hubs)}


def _chart(id: str, title: str, column: str) -> dict[str, Any]:
    values = {"columns": "frames", "perHub": column, "gaps": True}
    return {"id": id, "title": title, "empty": "No round is known yet.", **values}


def _frames(hubs: Sequence[HubHistory]) -> dict[str, Any]:
    """Return the rounds as columns, one entry per frame.

    The distance of a hub is known at mixings; between two of them it keeps its value, as long as
    the next is not known.
    """
    numbers = sorted({number for hub in hubs for number in hub.rows})
    most = max(40, min(FRAMES, FLOATS // len(hubs)))
    chosen = [numbers[i] for i in stable_pick(len(numbers), most)]
    start = min((row.time for hub in hubs for row in hub.rows.values()), default=0.0)
    columns: dict[str, list[Any]] = {
        "round": [0],
        "seconds": [0.0],
        "mixed": [False],
        "distance": [[0.0] * len(hubs)],
        "loss": [[None] * len(hubs)],
        "metric": [[None] * len(hubs)],
        "absent": [[]],
    }
    distance: list[float | None] = [None] * len(hubs)
    absent: set[int] = set()
    mixed = False
    shown = set(chosen)
    for number in numbers:
        rows = [hub.rows.get(number) for hub in hubs]
        for d, row in enumerate(rows):
            if row is None:
                continue
            distance[d] = row.distance if row.distance is not None else distance[d]
            mixed = mixed or row.mixed
            known = {a.number for a in row.absent if a.number is not None}
            absent |= known & set(range(hubs[d].first, hubs[d].first + hubs[d].workers))
        if number in shown:
            times = [row.time for row in rows if row is not None]
            columns["round"].append(number)
            columns["seconds"].append(max(max(times) - start, columns["seconds"][-1]))
            columns["mixed"].append(mixed)
            columns["distance"].append(list(distance))
            columns["loss"].append([row.loss if row else None for row in rows])
            columns["metric"].append([row.metric if row else None for row in rows])
            columns["absent"].append(sorted(absent))
            absent, mixed = set(), False
    cleaned: dict[str, Any] = finite(columns)
    return cleaned
