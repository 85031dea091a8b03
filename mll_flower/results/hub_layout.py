"""Where the hubs of a graph are drawn: one layout for image files and the HTML report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from mll_flower.algorithm.graphs import hub_graph

# A path of at most this many hubs is one straight line.
_STRAIGHT = 4
# Kamada-Kawai draws graphs more clearly than the spring layout, but is slow for many hubs.
_KAMADA_KAWAI = 150


def hub_layout(graph: nx.Graph[int]) -> NDArray[np.float64]:
    """Return the positions of the hubs; the same graph always has the same ones.

    Parameters
    ----------
    graph : networkx.Graph
        The hub graph, connected, with the nodes 0, 1, ..., D - 1.

    Returns
    -------
    ndarray of shape (D, 2)
        One point per hub, x to the right and y upwards, in no particular unit.
    """
    hubs = len(graph)
    degrees = dict(graph.degree)
    at: Mapping[int, Any]
    columns = _grid_columns(graph)
    if hubs == 1:
        at = {0: (0.0, 0.0)}
    elif nx.is_tree(graph) and max(degrees.values()) <= 2:
        at = _in_rows(graph, min(d for d in graph if degrees[d] == 1))
    elif columns is not None:
        at = {d: (d % columns, -(d // columns)) for d in graph}
    elif set(degrees.values()) in ({2}, {hubs - 1}):
        at = _on_circle(graph)
    elif hubs <= _KAMADA_KAWAI:
        at = nx.kamada_kawai_layout(graph)
    else:
        at = nx.spring_layout(graph, seed=0, iterations=60, k=1.6 / math.sqrt(hubs))
    return np.array([at[d] for d in range(hubs)], dtype=np.float64)


def _in_rows(path: nx.Graph[int], end: int) -> Mapping[int, tuple[float, float]]:
    """Lay a path out to and fro in rows: one long line leaves no room for the hubs' names."""
    hubs = len(path)
    across = hubs if hubs <= _STRAIGHT else math.ceil(math.sqrt(1.3 * hubs))
    at = {}
    for place, hub in enumerate(nx.dfs_preorder_nodes(path, end)):
        row, column = divmod(place, across)
        at[hub] = (float(column if row % 2 == 0 else across - 1 - column), float(-row))
    return at


def _on_circle(graph: nx.Graph[int]) -> Mapping[int, tuple[float, float]]:
    """Lay a ring or a complete graph out clockwise on a circle, hub 0 at the top."""
    order = nx.dfs_preorder_nodes(graph, 0)
    turns = (2 * math.pi * place / len(graph) for place in range(len(graph)))
    return {d: (math.sin(turn), math.cos(turn)) for d, turn in zip(order, turns, strict=True)}


def _grid_columns(graph: nx.Graph[int]) -> int | None:
    """Return the columns of the graph named ``grid``; None for other graphs and a single row."""
    hubs = len(graph)
    if set(hub_graph("grid", hubs).edges) != set(graph.edges):
        return None
    columns = max((abs(i - j) for i, j in graph.edges), default=1)
    return columns if 1 < columns < hubs else None
