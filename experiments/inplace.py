"""What averaging hubs in place, one after another, does to their weights.

The authors' code does not mix by a matrix H. It goes through the hubs in order, and replaces each
hub's model by the mean of its own and its neighbours' models, weighted by their shares b and
divided by the sum of these shares; hubs later in the order see the new models of earlier ones.
One such sweep is a row-stochastic matrix P applied to the hubs' models, y <- P y. Repeated sweeps
bring all hubs to pi y, where pi is the left eigenvector of P for eigenvalue 1, and one sweep turns
the averaged model b y into (b P) y. With the paper's H both would be b y.
"""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mll_flower.algorithm.graphs import hub_graph

FloatArray = NDArray[np.float64]


def neighbour_matrix(graph: nx.Graph[int], b: ArrayLike) -> FloatArray:
    """Return the matrix whose row d averages hub d and its neighbours, weighted by b."""
    shares = np.asarray(b, dtype=np.float64)
    near = np.eye(len(graph))
    for i, j in graph.edges:
        near[i, j] = near[j, i] = 1
    weights = near * shares
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def sweep(graph: nx.Graph[int], b: ArrayLike) -> FloatArray:
    """Return P of one in-place sweep through the hubs 0, 1, ..."""
    rows = neighbour_matrix(graph, b)
    product = np.eye(len(graph))
    for hub in range(len(graph)):
        product[hub] = rows[hub] @ product
    return product


def stationary(matrix: ArrayLike) -> FloatArray:
    """Return the left eigenvector of a row-stochastic matrix for eigenvalue 1, summing to 1."""
    p = np.asarray(matrix, dtype=np.float64)
    hubs = len(p)
    system = np.vstack([p.T - np.eye(hubs), np.ones(hubs)])
    solution, *_ = np.linalg.lstsq(system, np.append(np.zeros(hubs), 1.0), rcond=None)
    return np.asarray(solution)


@dataclass(frozen=True)
class Departure:
    """How far in-place averaging is from the weights b, for one hub network.

    Parameters
    ----------
    name : str
        Name of the network.
    b, pi, after : ndarray
        Hub shares; the hubs' weights in the consensus of repeated sweeps; their weights in the
        averaged model after one sweep, b P.
    at_once : ndarray
        The hubs' weights in the consensus when all take the same neighbour means simultaneously.
    """

    name: str
    b: FloatArray
    pi: FloatArray
    after: FloatArray
    at_once: FloatArray

    @property
    def misplaced(self) -> float:
        """Share of the weight that the wrong hubs have: half the sum of |pi - b|."""
        return float(np.abs(self.pi - self.b).sum() / 2)

    @property
    def moved(self) -> float:
        """Share of the averaged model's weight that one sweep moves: half the sum of |bP - b|."""
        return float(np.abs(self.after - self.b).sum() / 2)


def departure(name: str, graph: nx.Graph[int], b: ArrayLike) -> Departure:
    """Compute the departure for a hub graph and hub shares."""
    shares = np.asarray(b, dtype=np.float64)
    p = sweep(graph, shares)
    at_once = stationary(neighbour_matrix(graph, shares))
    return Departure(name, shares, stationary(p), shares @ p, at_once)


def departures() -> list[Departure]:
    """Compute the departures of the paper's hub networks, and of networks with unequal shares."""
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
