"""The mixing matrix H: rules that make it, its three conditions, and zeta.

H[j, d] is the weight that hub d gives to hub j's model. H is zero off the graph's edges
(the diagonal aside), its columns sum to 1, and H[i, j] b(j) = H[j, i] b(i), with b(d) hub
d's share of the total weight (Assumption 2 of the paper). Then H b = b, so mixing never changes
the average of all hubs' models by these shares.
zeta, the second largest eigenvalue modulus of H, tells how slowly mixing brings the hubs'
models together: at 0 one mixing is enough, at 1 no number of them is.
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
"""Deviation from H's conditions that is accepted as rounding."""

# Up to this many hubs, all eigenvalues of the dense matrix take less time than a sparse solver.
_MAX_DENSE_HUBS = 400


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
        ``metropolis``, ``complete``, ``diffusion``, ``optimal``; ``auto``, which is
        ``complete`` on a complete graph and ``metropolis`` on any other; or the path of a
        file for `load_mixing`.
    """
    shares = _checked_shares(graph, b)
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
    """Return whether ``rule`` is the path of a file that holds H, not the name of a rule."""
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

    Rotaru and Naegeli (2004). The largest alpha is the minimum over hubs of b(d) / deg d. If
    b / deg is the same for all hubs, that leaves nothing on the diagonal, and on a bipartite
    graph zeta would be 1: then alpha is reduced by one part in 2 D.
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
    """H with the smallest zeta for this graph and this b (Boyd, Diaconis, Xiao 2004).

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
    metropolis = _metropolis(graph, b)
    if len(graph) == 1:
        return metropolis
    i, j = _edges(graph)
    root = np.sqrt(b)
    # vec(S) = vec(I) + A f. The flow f over the edge (i, j) adds f / sqrt(b(i) b(j)) at [i, j]
    # and [j, i], and takes f / b(i) and f / b(j) from the diagonal.
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
    # The solver meets the bounds only to its tolerance: scale the flows to lie inside them.
    excess = np.max((incidence @ flows) / b)
    found = _from_flows(graph, b, flows / max(1.0, float(excess)))
    return found if zeta(found) <= zeta(metropolis) else metropolis


RULES: dict[str, Callable[[nx.Graph[int], FloatArray], FloatArray]] = {
    "metropolis": _metropolis,
    "complete": _complete,
    "diffusion": _diffusion,
    "optimal": _optimal,
}
"""The named rules: each a function (hub graph, hub shares) -> H."""


def check_mixing(matrix: ArrayLike, graph: nx.Graph[int], b: ArrayLike) -> FloatArray:
    """Check H's conditions; the error says which one fails, where, and by how much.

    Returns
    -------
    ndarray
        The matrix, as float64.
    """
    h = np.asarray(matrix, dtype=np.float64)
    hubs = len(graph)
    shares = _checked_shares(graph, b)
    if h.shape != (hubs, hubs):
        raise ValueError(f"H has shape {h.shape} for {hubs} hubs: it must be {(hubs, hubs)}")
    _raise_if_any(~np.isfinite(h), h, "H must be finite")
    _raise_if_any(h < 0, h, "H must not be negative")
    allowed = np.eye(hubs, dtype=bool)
    i, j = _edges(graph)
    allowed[i, j] = allowed[j, i] = True
    _raise_if_any((h != 0) & ~allowed, h, "H must be zero where hubs share no edge")
    excess = h.sum(axis=0) - 1
    _raise_if_any(
        np.abs(excess)[None] > TOLERANCE, excess[None], "H's columns must sum to 1 (off by)"
    )
    flows = h * shares
    gap = flows - flows.T
    _raise_if_any(
        np.abs(gap) > TOLERANCE * shares.max(),
        gap,
        "detailed balance H[i, j] b(j) = H[j, i] b(i) must hold (off by)",
    )
    return h


def _raise_if_any(wrong: NDArray[np.bool_], values: FloatArray, condition: str) -> None:
    if wrong.any():
        # Of the entries that fail, name the one that is off the most.
        size = np.where(np.isfinite(values), np.abs(values), np.inf)
        row, column = np.unravel_index(np.argmax(np.where(wrong, size, -1.0)), wrong.shape)
        where = f"column {column}" if wrong.shape[0] == 1 else f"[{row}, {column}]"
        raise ValueError(f"{condition}: {values[row, column]:.3g} at {where}")


def zeta(matrix: Any) -> float:
    """Return the second largest eigenvalue modulus of an H that meets `check_mixing`.

    H may be dense or sparse. By detailed balance it is similar to a symmetric matrix. For many
    hubs a sparse solver finds both ends of the spectrum; it shifts and inverts, because
    eigenvalues lie close together there.
    """
    h: Any = scipy.sparse.csr_array(matrix)
    hubs = h.shape[0]
    if hubs == 1:
        return 0.0
    rows, columns = h.nonzero()
    root = np.sqrt(h[rows, columns] * h.T.tocsr()[rows, columns])
    symmetric: Any = scipy.sparse.csc_array((root, (rows, columns)), shape=h.shape)
    if hubs <= _MAX_DENSE_HUBS or h.nnz > 0.1 * hubs * hubs:
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
        raise ValueError(f"mixing file {path} does not exist: check the path")
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
    """Return H with b(d) H[j, d] = flow over the edge, and the rest on the diagonal."""
    hubs = len(graph)
    i, j = _edges(graph)
    h = np.zeros((hubs, hubs))
    h[i, j] = flows / b[j]
    h[j, i] = flows / b[i]
    # max: rounding must not leave a value below zero where the edges take the whole column.
    np.fill_diagonal(h, np.maximum(1 - h.sum(axis=0), 0.0))
    return h


def _checked_shares(graph: nx.Graph[int], b: ArrayLike) -> FloatArray:
    shares = np.asarray(b, dtype=np.float64)
    if shares.shape != (len(graph),):
        raise ValueError(
            f"b has shape {shares.shape} for {len(graph)} hubs: give one share per hub"
        )
    if np.any(~(shares > 0)) or not np.isfinite(shares).all():
        raise ValueError(f"b = {shares}: every hub's share must be positive and finite")
    if abs(shares.sum() - 1) > 1e-6:
        raise ValueError(f"b sums to {shares.sum():g}: the shares must sum to 1")
    return shares
