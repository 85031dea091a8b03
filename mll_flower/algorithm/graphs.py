"""Hub graphs: by name, from networkx, or from a file.

The hub graph says which hubs mix with which. `hub_graph` makes one and checks that it is
undirected and connected, has no self-loops, and has one node per hub.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

MAX_HUBS = 10_000
"""The largest number of hubs: H, a dense matrix, then has 0.8 GB."""


def _grid(hubs: int, _: int) -> nx.Graph[Any]:
    rows = max(r for r in range(1, math.isqrt(hubs) + 1) if hubs % r == 0)
    graph: nx.Graph[Any] = nx.grid_2d_graph(rows, hubs // rows)
    return graph


def _ring(hubs: int, _: int) -> nx.Graph[Any]:
    # A cycle of one or two hubs would have a self-loop or a double edge: use a path.
    graph: nx.Graph[Any] = nx.cycle_graph(hubs) if hubs > 2 else nx.path_graph(hubs)
    return graph


def _random_regular(hubs: int, seed: int) -> nx.Graph[Any]:
    # Degree 3 needs an even number of hubs; an odd number gets degree 4.
    degree = 3 if hubs % 2 == 0 else 4
    if hubs <= degree:
        return GRAPHS["complete"](hubs, seed)
    return _first_connected(lambda s: nx.random_regular_graph(degree, hubs, seed=s), seed)


def _erdos_renyi(hubs: int, seed: int) -> nx.Graph[Any]:
    # Twice the edge probability at which random graphs become connected.
    probability = min(1.0, 2 * math.log(max(hubs, 2)) / hubs)
    return _first_connected(lambda s: nx.gnp_random_graph(hubs, probability, seed=s), seed)


def _watts_strogatz(hubs: int, seed: int) -> nx.Graph[Any]:
    if hubs <= 4:
        return GRAPHS["complete"](hubs, seed)
    graph: nx.Graph[Any] = nx.connected_watts_strogatz_graph(hubs, 4, 0.2, tries=200, seed=seed)
    return graph


GRAPHS: dict[str, Callable[[int, int], nx.Graph[Any]]] = {
    "complete": lambda hubs, _: nx.complete_graph(hubs),
    "path": lambda hubs, _: nx.path_graph(hubs),
    "ring": _ring,
    "star": lambda hubs, _: nx.star_graph(hubs - 1),
    "grid": _grid,
    "random-regular": _random_regular,
    "erdos-renyi": _erdos_renyi,
    "watts-strogatz": _watts_strogatz,
}
"""The named graphs: each a function (hubs, seed) -> graph."""


def hub_graph(source: str | Path | nx.Graph[Any], hubs: int, seed: int = 0) -> nx.Graph[int]:
    """Make and check a hub graph with nodes 0 to hubs - 1.

    Parameters
    ----------
    source : str, Path or networkx.Graph
        A name in `GRAPHS`, a graph, or a file: ``.graphml``, ``.json`` (node-link), a network
        that `HubNetwork.save` wrote (``.toml`` or ``.json``, of which the edges are used), or text
        that is either an adjacency matrix (one row and one column per hub) or an edge list
        (two nodes per line).
    hubs : int
        D, the number of hubs.
    seed : int
        Seed of the random graphs.
    """
    if hubs > MAX_HUBS:
        raise ValueError(
            f"hubs={hubs}: at most {MAX_HUBS:,} are possible, because the mixing matrix has "
            f"hubs x hubs entries (here {8e-9 * hubs**2:,.0f} GB); use fewer hubs with more "
            "workers each"
        )
    if isinstance(source, nx.Graph):
        graph = source
    elif isinstance(source, str) and source in GRAPHS:
        graph = GRAPHS[source](hubs, seed)
    elif isinstance(source, Path) or "/" in source or "." in source:
        graph = _read_file(Path(source), hubs)
    else:
        raise ValueError(
            f"graph={source!r} is not known: give the path of a file, or one of {', '.join(GRAPHS)}"
        )
    return _checked_and_numbered(graph, hubs)


def _first_connected(make: Callable[[int], nx.Graph[Any]], seed: int) -> nx.Graph[Any]:
    for attempt in range(200):
        graph = make(seed + 7919 * attempt)
        if nx.is_connected(graph):
            return graph
    raise ValueError(f"no connected random graph in 200 tries from seed {seed}: try another seed")


def _checked_and_numbered(graph: nx.Graph[Any], hubs: int) -> nx.Graph[int]:
    """Return a frozen copy with nodes 0 to hubs - 1, after the checks that every graph needs."""
    if graph.is_directed() or graph.is_multigraph():
        raise ValueError("the hub graph must be a plain undirected graph: convert it to nx.Graph")
    if len(graph) != hubs:
        raise ValueError(f"the hub graph has {len(graph)} nodes for {hubs} hubs: make them agree")
    loops = list(nx.selfloop_edges(graph))
    if loops:
        raise ValueError(
            f"the hub graph has a self-loop at {loops[0][0]!r}: remove it (a hub always "
            "keeps a part of its own model)"
        )
    if not nx.is_connected(graph):
        parts = sorted((sorted(map(str, part)) for part in nx.connected_components(graph)), key=len)
        raise ValueError(
            f"the hub graph is not connected: hubs {parts[0]} have no path to the others; "
            "add an edge between the parts"
        )
    nodes = list(graph.nodes)
    order = sorted(nodes) if all(isinstance(n, (int, np.integer)) for n in nodes) else nodes
    clean: nx.Graph[int] = nx.Graph()
    clean.add_nodes_from(range(hubs))
    number = {node: index for index, node in enumerate(order)}
    clean.add_edges_from(sorted((number[i], number[j]) for i, j in graph.edges))
    frozen: nx.Graph[int] = nx.freeze(clean)
    return frozen


def _read_file(path: Path, hubs: int) -> nx.Graph[Any]:
    if not path.is_file():
        raise ValueError(
            f"graph file {path} does not exist: check the path, or name one of {', '.join(GRAPHS)}"
        )
    try:
        if path.suffix == ".graphml":
            graph: nx.Graph[Any] = nx.read_graphml(path, node_type=str)
            # GraphML stores node names as text. If all are numbers, they number the hubs.
            if all(node.isdigit() for node in graph):
                graph = nx.relabel_nodes(graph, {node: int(node) for node in graph})
            return graph
        if path.suffix == ".json":
            data = json.loads(path.read_text())
            if isinstance(data, dict) and "nodes" not in data and "edges" in data:
                return _from_pairs(data["edges"], hubs)
            if not isinstance(data, dict) or "nodes" not in data:
                raise ValueError(
                    "node-link JSON must be an object with 'nodes' and 'edges', and a network "
                    "must have 'edges'"
                )
            return nx.node_link_graph(data, edges="links" if "links" in data else "edges")
        if path.suffix == ".toml":
            data = tomllib.loads(path.read_text())
            if "edges" not in data:
                raise ValueError(
                    "a TOML file must be a network with 'edges', as mll-flower network --save "
                    "writes it; an edge list is a text file with two hubs per line"
                )
            return _from_pairs(data["edges"], hubs)
        return _read_text(path, hubs)
    except (ValueError, KeyError, TypeError, SyntaxError, nx.NetworkXError) as error:
        raise ValueError(f"graph file {path} cannot be read: {error}") from None


def _from_pairs(pairs: Any, hubs: int) -> nx.Graph[Any]:
    """Return the graph of a network file: its edges are pairs of the hubs' numbers."""
    graph: nx.Graph[Any] = nx.Graph()
    graph.add_nodes_from(range(hubs))
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"edge {pair!r}: give two hubs")
        graph.add_edge(int(pair[0]), int(pair[1]))
    return graph


def _read_text(path: Path, hubs: int) -> nx.Graph[Any]:
    rows = [line.replace(",", " ").split() for line in path.read_text().splitlines()]
    rows = [row for row in rows if row and not row[0].startswith("#")]
    matrix = _square_matrix(rows)
    # Two hubs: the lines "0 1" and "1 0" are a matrix; an edge list needs only one line.
    if matrix is not None and len(matrix) == hubs:
        if not np.array_equal(matrix, matrix.T):
            raise ValueError("the adjacency matrix is not symmetric: the hub graph is undirected")
        return nx.from_numpy_array(matrix != 0)
    if matrix is not None and len(matrix) > 2 and np.array_equal(matrix, matrix.T):
        raise ValueError(
            f"an adjacency matrix of {len(matrix)} rows for {hubs} hubs: make them agree"
        )
    graph: nx.Graph[Any] = nx.Graph()
    numbers = all(cell.isdigit() for row in rows for cell in row[:2])
    for row in rows:
        if len(row) < 2:
            raise ValueError(f"line {' '.join(row)!r}: an edge needs two nodes")
        i, j = (int(row[0]), int(row[1])) if numbers else (row[0], row[1])
        graph.add_edge(i, j)
    if numbers:
        graph.add_nodes_from(range(hubs))
    return graph


def _square_matrix(rows: list[list[str]]) -> NDArray[np.float64] | None:
    """Return rows as a square matrix; None if they are something else, such as a list of edges."""
    if not rows or any(len(row) != len(rows) for row in rows):
        return None
    try:
        return np.array(rows, dtype=np.float64)
    except ValueError:
        return None
