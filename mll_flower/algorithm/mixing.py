"""The mixing matrix H: ways to make it, its three conditions, and zeta.

H[j, d] is the weight that hub d gives to hub j's model. H is zero off the graph's edges
(the diagonal aside), its columns sum to 1, and H[i, j] b(j) = H[j, i] b(i). Then
H b = b: mixing never changes the averaged model (Assumption 2 of the paper).
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

TOLERANCE = 1e-9
# Up to here all eigenvalues of the dense matrix are faster than a sparse solver.
_DENSE = 400


def mixing_matrix(
    graph: nx.Graph[int], b: ArrayLike, rule: str | Path = "metropolis"
) -> FloatArray:
    """Make H for a hub graph and the hubs' shares.

    Parameters
    ----------
    graph : networkx.Graph
        Hub graph with nodes 0 to D - 1.
    b : array
        Hub shares: positive, summing to 1.
    rule : str or Path
        ``metropolis``, ``complete``, ``diffusion``, ``optimal``; ``auto`` is ``complete``
        on a complete graph and ``metropolis`` on any other; or a file for `load_mixing`.
    """
    shares = _shares(graph, b)
    if rule == "auto":
        rule = "complete" if nx.density(graph) == 1 or len(graph) == 1 else "metropolis"
    if rule in RULES:
        matrix = RULES[str(rule)](graph, shares)
        check_mixing(matrix, graph, shares)
        return matrix
    if is_file(rule):
        return load_mixing(rule, graph, shares)
    raise ValueError(
        f"mixing={rule!r} is not known: give the path of a file, or one of auto, {', '.join(RULES)}"
    )


def is_file(rule: str | Path) -> bool:
    """Whether a rule for H is the path of a file, not a name."""
    return isinstance(rule, Path) or "/" in rule or "." in rule


def _metropolis(graph: nx.Graph[int], b: FloatArray) -> FloatArray:
    """b(d) H[j, d] = min(b(j) / (deg j + 1), b(d) / (deg d + 1)) on edges."""
    degree = np.array([graph.degree[d] for d in range(len(graph))])
    i, j = _edges(graph)
    return _from_flows(graph, b, np.minimum(b[i] / (degree[i] + 1), b[j] / (degree[j] + 1)))


def _complete(graph: nx.Graph[int], b: FloatArray) -> FloatArray:
    """H[j, d] = b(j): every hub gets the averaged model."""
    hubs = len(graph)
    if graph.number_of_edges() < hubs * (hubs - 1) // 2:
        raise ValueError(
            f"mixing='complete' needs the complete graph; this one has "
            f"{graph.number_of_edges()} of {hubs * (hubs - 1) // 2} edges: use 'metropolis'"
        )
    return np.repeat(b[:, None], hubs, axis=1)


def _diffusion(graph: nx.Graph[int], b: FloatArray) -> FloatArray:
    """I - alpha L diag(b)^-1 with the largest alpha that keeps H's entries from 0 to 1.

    Rotaru and Naegeli (2004). The largest safe alpha is min over hubs of b(d) / deg d, less
    one in 2 * D where equality would make zeta 1 (a bipartite graph with equal b / deg).
    """
    degree = np.array([graph.degree[d] for d in range(len(graph))], dtype=float)
    if degree.size == 1:
        return np.ones((1, 1))
    alpha = float(np.min(b / degree))
    flows = np.full(graph.number_of_edges(), alpha)
    matrix = _from_flows(graph, b, flows)
    if np.all(np.diag(matrix) <= TOLERANCE):
        matrix = _from_flows(graph, b, flows * (1 - 1 / (2 * len(graph))))
    return matrix


def _optimal(graph: nx.Graph[int], b: FloatArray) -> FloatArray:
    """Smallest zeta for this graph and this b (Boyd, Diaconis, Xiao 2004).

    With f(e) >= 0 the flow b(d) H[j, d] over edge e, S = B^-1/2 (H B) B^-1/2 is symmetric,
    has H's eigenvalues and is linear in f: the norm of S - sqrt(b) sqrt(b)^T, which is
    zeta, is minimised by a semidefinite programme.
    """
    try:
        import cvxpy as cp
    except ImportError:
        raise ValueError(
            "mixing='optimal' needs the solver cvxpy: pip install 'mll-flower[optimal]', "
            "or use mixing='metropolis'"
        ) from None
    best = _metropolis(graph, b)
    if len(graph) == 1:
        return best
    i, j = _edges(graph)
    root = np.sqrt(b)
    # vec(S) = vec(I) + A f: an edge takes f / b from both diagonals, gives f / root root.
    hubs, edges = len(graph), i.size
    e = np.arange(edges)
    rows = np.concatenate([i * hubs + j, j * hubs + i, i * hubs + i, j * hubs + j])
    cross = 1 / (root[i] * root[j])
    values = np.concatenate([cross, cross, -1 / b[i], -1 / b[j]])
    operator: Any = scipy.sparse.csr_array(
        (values, (rows, np.tile(e, 4))), shape=(hubs * hubs, edges)
    )
    incidence: Any = scipy.sparse.csr_array(
        (np.ones(2 * edges), (np.concatenate([i, j]), np.tile(e, 2))), shape=(hubs, edges)
    )
    # Scaled to the size of b, so that the solver's tolerances fit any number of hubs.
    flow, norm = cp.Variable(edges, nonneg=True), cp.Variable()
    scale = float(b.mean())
    deflated = np.eye(hubs) - np.outer(root, root)
    matrix = cp.reshape(scale * (operator @ flow), (hubs, hubs), order="C") + deflated
    identity = np.eye(hubs)
    problem = cp.Problem(
        cp.Minimize(norm),
        [
            norm * identity - matrix >> 0,
            norm * identity + matrix >> 0,
            scale * (incidence @ flow) <= b,
        ],
    )
    problem.solve(solver=cp.CLARABEL)
    if flow.value is None:
        raise ValueError(f"the solver found no optimal H ({problem.status}): use 'metropolis'")
    flows = np.maximum(np.asarray(flow.value) * scale, 0.0)
    # The solver meets the bounds only to its tolerance: pull the flows inside them.
    excess = np.max((incidence @ flows) / b)
    found = _from_flows(graph, b, flows / max(1.0, float(excess)))
    return found if zeta(found) <= zeta(best) else best


RULES: dict[str, Callable[[nx.Graph[int], FloatArray], FloatArray]] = {
    "metropolis": _metropolis,
    "complete": _complete,
    "diffusion": _diffusion,
    "optimal": _optimal,
}
"""The ways to make H that have a name."""


def check_mixing(matrix: ArrayLike, graph: nx.Graph[int], b: ArrayLike) -> FloatArray:
    """Check H's conditions; an error says which fails, where, and by how much.

    Returns
    -------
    ndarray
        The matrix, as float64.
    """
    h = np.asarray(matrix, dtype=np.float64)
    hubs = len(graph)
    shares = _shares(graph, b)
    if h.shape != (hubs, hubs):
        raise ValueError(f"H has shape {h.shape} for {hubs} hubs: it must be {(hubs, hubs)}")
    _fail(~np.isfinite(h), h, "H must be finite")
    _fail(h < 0, h, "H must not be negative")
    edges = np.eye(hubs, dtype=bool)
    i, j = _edges(graph)
    edges[i, j] = edges[j, i] = True
    _fail((h != 0) & ~edges, h, "H must be zero where hubs share no edge")
    columns = h.sum(axis=0) - 1
    _fail(np.abs(columns)[None] > TOLERANCE, columns[None], "H's columns must sum to 1 (off by)")
    flows = h * shares
    gap = flows - flows.T
    _fail(
        np.abs(gap) > TOLERANCE * shares.max(),
        gap,
        "detailed balance H[i, j] b(j) = H[j, i] b(i) must hold (off by)",
    )
    return h


def _fail(wrong: NDArray[np.bool_], values: FloatArray, condition: str) -> None:
    if wrong.any():
        # Of the entries that fail, the one that fails the most.
        size = np.where(np.isfinite(values), np.abs(values), np.inf)
        row, column = np.unravel_index(np.argmax(np.where(wrong, size, -1.0)), wrong.shape)
        where = f"column {column}" if wrong.shape[0] == 1 else f"[{row}, {column}]"
        raise ValueError(f"{condition}: {values[row, column]:.3g} at {where}")


def zeta(matrix: Any) -> float:
    """Second largest eigenvalue modulus of an H (dense or sparse) that meets `check_mixing`.

    Detailed balance makes H similar to a symmetric matrix. Large ones are solved sparsely,
    by shift and invert at both ends of the spectrum, where eigenvalues crowd together.
    """
    h: Any = scipy.sparse.csr_array(matrix)
    hubs = h.shape[0]
    if hubs == 1:
        return 0.0
    rows, columns = h.nonzero()
    root = np.sqrt(h[rows, columns] * h.T.tocsr()[rows, columns])
    symmetric: Any = scipy.sparse.csc_array((root, (rows, columns)), shape=h.shape)
    if hubs <= _DENSE or h.nnz > 0.1 * hubs * hubs:
        values = np.linalg.eigvalsh(symmetric.toarray())
        return float(np.clip(max(abs(values[0]), abs(values[-2])), 0.0, None))
    top = scipy.sparse.linalg.eigsh(
        symmetric, k=2, sigma=1 + 1e-4, which="LM", return_eigenvectors=False
    )
    low = scipy.sparse.linalg.eigsh(
        symmetric, k=1, sigma=-1 - 1e-4, which="LM", return_eigenvectors=False
    )
    return float(max(abs(low[0]), abs(np.min(top))))


def load_mixing(path: str | Path, graph: nx.Graph[int], b: ArrayLike) -> FloatArray:
    """Read H from a file and check it: .npy, .json (a list of rows) or text (rows of numbers)."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"mixing file {path} is not there: check the path")
    try:
        if path.suffix == ".npy":
            matrix = np.load(path, allow_pickle=False)
        elif path.suffix == ".json":
            matrix = np.array(json.loads(path.read_text()), dtype=np.float64)
        else:
            rows = path.read_text().replace(",", " ").splitlines()
            matrix = np.loadtxt(rows, ndmin=2)
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"mixing file {path} cannot be read as a matrix: {error}") from None
    try:
        return check_mixing(matrix, graph, b)
    except ValueError as error:
        raise ValueError(f"mixing file {path}: {error}") from None


def _edges(graph: nx.Graph[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    pairs = np.array(list(graph.edges), dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _from_flows(graph: nx.Graph[int], b: FloatArray, flows: FloatArray) -> FloatArray:
    """H with b(d) H[j, d] = flow over the edge, and the rest on the diagonal."""
    hubs = len(graph)
    i, j = _edges(graph)
    h = np.zeros((hubs, hubs))
    h[i, j] = flows / b[j]
    h[j, i] = flows / b[i]
    # max: a column that gives everything away must not keep a rounding error below zero.
    np.fill_diagonal(h, np.maximum(1 - h.sum(axis=0), 0.0))
    return h


def _shares(graph: nx.Graph[int], b: ArrayLike) -> FloatArray:
    shares = np.asarray(b, dtype=np.float64)
    if shares.shape != (len(graph),):
        raise ValueError(f"b has shape {shares.shape} for {len(graph)} hubs: give one share a hub")
    if np.any(~(shares > 0)) or not np.isfinite(shares).all():
        raise ValueError(f"b = {shares}: every hub's share must be positive and finite")
    if abs(shares.sum() - 1) > 1e-6:
        raise ValueError(f"b sums to {shares.sum():g}: the shares must sum to 1")
    return shares
