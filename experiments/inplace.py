"""What averaging hubs in place, one after another, does to their weights.

The authors' code does not mix by an H. It goes through the hubs in order, and gives each the
mean of its own and its neighbours' models, weighted by their shares b and divided by the sum of
these; hubs that come later see what earlier ones have already become. One such sweep is a
row-stochastic operator P on the hubs' models, y <- P y. Repeated sweeps bring all hubs to
pi y, with pi the left eigenvector of P to eigenvalue 1; and one sweep turns the averaged model
b y into (b P) y. With an H of the paper both would be b y.
"""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mll_flower.algorithm.graphs import hub_graph

FloatArray = NDArray[np.float64]


def neighbour_matrix(graph: nx.Graph[int], b: ArrayLike) -> FloatArray:
    """Rows of the neighbour-normalised weights: row d averages d's neighbourhood by b."""
    shares = np.asarray(b, dtype=np.float64)
    near = np.eye(len(graph))
    for i, j in graph.edges:
        near[i, j] = near[j, i] = 1
    weights = near * shares
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def sweep(graph: nx.Graph[int], b: ArrayLike) -> FloatArray:
    """P of one in-place sweep through the hubs 0, 1, ..."""
    rows = neighbour_matrix(graph, b)
    product = np.eye(len(graph))
    for hub in range(len(graph)):
        product[hub] = rows[hub] @ product
    return product


def stationary(matrix: ArrayLike) -> FloatArray:
    """Left eigenvector to eigenvalue 1 of a row-stochastic matrix, summing to 1."""
    p = np.asarray(matrix, dtype=np.float64)
    hubs = len(p)
    system = np.vstack([p.T - np.eye(hubs), np.ones(hubs)])
    solution, *_ = np.linalg.lstsq(system, np.append(np.zeros(hubs), 1.0), rcond=None)
    return np.asarray(solution)


@dataclass(frozen=True)
class Departure:
    """How far in-place averaging departs from b, for one hub network.

    Parameters
    ----------
    name : str
        The network.
    b, pi, after : ndarray
        Hub shares; weights of the consensus of repeated sweeps; weights of the averaged model
        after one sweep, b P.
    at_once : ndarray
        Weights of the consensus when the same neighbour means are taken all at once.
    """

    name: str
    b: FloatArray
    pi: FloatArray
    after: FloatArray
    at_once: FloatArray

    @property
    def misplaced(self) -> float:
        """Share of the weight that is with the wrong hubs: half the sum of |pi - b|."""
        return float(np.abs(self.pi - self.b).sum() / 2)

    @property
    def moved(self) -> float:
        """Share of the averaged model that one sweep moves: half the sum of |bP - b|."""
        return float(np.abs(self.after - self.b).sum() / 2)


def departure(name: str, graph: nx.Graph[int], b: ArrayLike) -> Departure:
    """Compute it for a hub graph and hub shares."""
    shares = np.asarray(b, dtype=np.float64)
    p = sweep(graph, shares)
    at_once = stationary(neighbour_matrix(graph, shares))
    return Departure(name, shares, stationary(p), shares @ p, at_once)


def departures() -> list[Departure]:
    """Compute it for the paper's hub networks, and for unequal shares."""
    cases = [
        ("path of 3", "path", np.ones(3)),
        ("path of 5", "path", np.ones(5)),
        ("path of 10", "path", np.ones(10)),
        ("path of 20", "path", np.ones(20)),
        ("complete, 10", "complete", np.ones(10)),
        ("path of 10, shares 1 to 10", "path", np.arange(1.0, 11)),
        ("complete, 10, shares 1 to 10", "complete", np.arange(1.0, 11)),
    ]
    return [departure(name, hub_graph(graph, len(w), 0), w / w.sum()) for name, graph, w in cases]
