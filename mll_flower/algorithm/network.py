"""The multi-level network: hubs, their workers, the workers' weights and rates, and the hub graph.

A worker's rate p(i) is the probability that it takes a step in a slot. All other parts read
`HubNetwork`, which also gives the shares of the paper: v(i), worker i's share of its hub's weight;
b(d), hub d's share of the total weight; a(i), worker i's share of the total weight. A network can
be built from a few values, and saved to and loaded from a file.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import tomli_w
from numpy.typing import ArrayLike, NDArray

from mll_flower.algorithm.graphs import hub_graph

FloatArray = NDArray[np.float64]

_PER_HUB = "hub:"

RATES = ("fixed", "uniform", "skewed-fast", "skewed-slow", "two-speed")
"""The named distributions of rates; see `HubNetwork.build`."""


@dataclass(frozen=True, eq=False)
class HubNetwork:
    """Hubs, workers, weights, rates and the hub graph of section 3 of the paper.

    Make one with `HubNetwork.build` or `HubNetwork.load`; both check their input.

    Parameters
    ----------
    graph : networkx.Graph
        G, the hub graph, with nodes 0 to D - 1: undirected, connected, without self-loops.
    hub_of : ndarray of int
        d(i): the hub of each worker.
    w : ndarray
        w(i) > 0: the weight of each worker.
    p : ndarray
        p(i) in (0, 1]: the rate of each worker.
    """

    graph: nx.Graph[int]
    hub_of: NDArray[np.int64]
    w: FloatArray
    p: FloatArray

    def __post_init__(self) -> None:
        for array in (self.hub_of, self.w, self.p):
            array.setflags(write=False)
        counts = np.bincount(self.hub_of, minlength=len(self.graph))
        if counts.size > len(self.graph) or np.any(counts == 0):
            raise ValueError(
                f"workers per hub: {counts.tolist()} for {len(self.graph)} hubs; "
                "each hub needs at least one worker"
            )
        _check_vector("weights", self.w, self.workers, above=0.0, at_most=np.inf)
        _check_vector("rates", self.p, self.workers, above=0.0, at_most=1.0)

    @classmethod
    def build(
        cls,
        hubs: int | None = None,
        workers_per_hub: int | Sequence[int] = 1,
        graph: str | Path | nx.Graph[Any] = "complete",
        weights: str | ArrayLike = "equal",
        rates: float | str | ArrayLike = 1.0,
        seed: int = 0,
    ) -> HubNetwork:
        """Build a network from a few values.

        Parameters
        ----------
        hubs : int, optional
            D. Not needed if ``workers_per_hub`` is a sequence or ``graph`` is a graph.
        workers_per_hub : int or sequence of int
            One number for all hubs, or one per hub.
        graph : str, Path or networkx.Graph
            A name (`mll_flower.algorithm.graphs.GRAPHS`), a graph, or a file: an edge list,
            an adjacency matrix, GraphML, or node-link JSON.
        weights : "equal" or array
            w(i): 1 for all, or one number per worker, such as its number of examples.
        rates : float, str or array
            p(i): one number for all, one per worker, one per hub (``"hub:1,0.5"``), or a named
            distribution: ``fixed`` (0.55), ``uniform`` (0.1 to 1 in equal steps across a hub),
            ``skewed-fast`` (every tenth worker 1, the others 0.5), ``skewed-slow`` (every
            tenth 0.1, the others 0.6), ``two-speed`` (every tenth 0.6, the others 0.9).
        seed : int
            Seed of the random graphs.
        """
        counts = _worker_counts(hubs, workers_per_hub, graph)
        hub_of = np.repeat(np.arange(len(counts)), counts)
        return cls(
            graph=hub_graph(graph, len(counts), seed),
            hub_of=hub_of,
            w=_weights(weights, hub_of.size),
            p=_rates(rates, counts),
        )

    @cached_property
    def hubs(self) -> int:
        """D, the number of hubs."""
        return len(self.graph)

    @cached_property
    def workers(self) -> int:
        """N, the number of workers."""
        return int(self.hub_of.size)

    @cached_property
    def hub_weights(self) -> FloatArray:
        """The sum of the weights of each hub's workers."""
        totals = np.bincount(self.hub_of, weights=self.w, minlength=self.hubs)
        return np.asarray(totals, dtype=np.float64)

    @cached_property
    def a(self) -> FloatArray:
        """a(i): each worker's share of all weights."""
        return np.asarray(self.w / self.w.sum())

    @cached_property
    def b(self) -> FloatArray:
        """b(d): each hub's share of all weights."""
        return np.asarray(self.hub_weights / self.w.sum())

    @cached_property
    def v(self) -> FloatArray:
        """v(i): each worker's share of its hub's weights."""
        return np.asarray(self.w / self.hub_weights[self.hub_of])

    def members(self, hub: int) -> NDArray[np.int64]:
        """M(d): the workers of a hub."""
        return np.flatnonzero(self.hub_of == hub)

    def to_dict(self) -> dict[str, Any]:
        """Return the network as plain values, as `save` writes them."""
        return {
            "workers_per_hub": np.bincount(self.hub_of).tolist(),
            "edges": [[int(i), int(j)] for i, j in self.graph.edges],
            "weights": self.w.tolist(),
            "rates": self.p.tolist(),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> HubNetwork:
        """Make a network from the values of `to_dict`, or from the arguments of `build`."""
        known = {"hubs", "workers_per_hub", "graph", "edges", "weights", "rates", "seed"}
        unknown = sorted(set(data) - known)
        if unknown:
            raise ValueError(f"unknown keys {unknown}; the known ones are {sorted(known)}")
        data = dict(data)
        if "edges" in data:
            if "graph" in data:
                raise ValueError("'edges' and 'graph' both define the hub graph: give one of them")
            counts = _worker_counts(data.get("hubs"), data.get("workers_per_hub", 1), "edges")
            graph: nx.Graph[int] = nx.Graph()
            graph.add_nodes_from(range(len(counts)))
            graph.add_edges_from((int(i), int(j)) for i, j in data.pop("edges"))
            data["graph"] = graph
        return cls.build(**data)

    def save(self, path: str | Path) -> None:
        """Write the network to a .toml or .json file."""
        path, data = Path(path), self.to_dict()
        if path.suffix == ".toml":
            text = tomli_w.dumps(data)
        elif path.suffix == ".json":
            text = json.dumps(data, indent=1) + "\n"
        else:
            raise ValueError(f"{path}: the name must end in .toml or .json")
        path.write_text(text)

    @classmethod
    def load(cls, path: str | Path) -> HubNetwork:
        """Read a network from a .toml or .json file."""
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"network file {path} does not exist: check the path")
        try:
            data = (
                tomllib.loads(path.read_text())
                if path.suffix == ".toml"
                else json.loads(path.read_text())
            )
        except ValueError as error:
            kind = "TOML" if path.suffix == ".toml" else "JSON"
            raise ValueError(f"network file {path} is not {kind}: {error}") from None
        try:
            return cls.from_dict(data)
        except (ValueError, TypeError) as error:
            raise ValueError(f"network file {path}: {error}") from None


def is_network(data: dict[str, Any]) -> bool:
    """Return whether values read from a file are a network, as `HubNetwork.save` writes them."""
    return "edges" in data or "workers_per_hub" in data


def _worker_counts(
    hubs: int | None, workers_per_hub: int | Sequence[int], graph: object
) -> list[int]:
    if isinstance(workers_per_hub, (int, np.integer)):
        if hubs is None and isinstance(graph, nx.Graph):
            hubs = len(graph)
        if hubs is None:
            raise ValueError("how many hubs? give hubs=, or workers_per_hub as a list")
        if not _is_whole(hubs) or hubs < 1:
            raise ValueError(f"hubs={hubs!r}: give a whole number of at least one")
        counts = [int(workers_per_hub)] * int(hubs)
    else:
        if isinstance(workers_per_hub, (str, float)) or not all(map(_is_whole, workers_per_hub)):
            raise ValueError(
                f"workers_per_hub={workers_per_hub!r}: give a whole number, or a list of whole "
                "numbers, one per hub"
            )
        counts = [int(n) for n in workers_per_hub]
        if hubs is not None and hubs != len(counts):
            raise ValueError(
                f"hubs={hubs}, but workers_per_hub has {len(counts)} entries: make them agree"
            )
    if not counts or min(counts) < 1:
        raise ValueError(f"workers_per_hub={workers_per_hub!r}: each hub needs at least one worker")
    return counts


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _weights(weights: str | ArrayLike, workers: int) -> FloatArray:
    if isinstance(weights, str):
        if weights != "equal":
            raise ValueError(f"weights={weights!r}: give 'equal' or one number per worker")
        return np.ones(workers)
    return np.array(weights, dtype=np.float64)


def _rates(rates: float | str | ArrayLike, counts: list[int]) -> FloatArray:
    workers = sum(counts)
    if not isinstance(rates, str):
        if np.ndim(rates) == 0:
            return np.full(workers, float(rates))  # type: ignore[arg-type]
        return np.array(rates, dtype=np.float64)
    if rates.startswith(_PER_HUB):
        return np.repeat(_hub_rates(rates, len(counts)), counts)
    if rates == "fixed":
        return np.full(workers, 0.55)
    if rates == "uniform":
        return np.concatenate([np.linspace(0.1, 1.0, n) if n > 1 else [0.55] for n in counts])
    special = {"skewed-fast": (1.0, 0.5), "skewed-slow": (0.1, 0.6), "two-speed": (0.6, 0.9)}
    if rates not in special:
        raise ValueError(
            f"rates={rates!r} is not known: give a number, one number per worker, hub: and one "
            "number per hub, or one of "
            f"{', '.join(RATES)}"
        )
    every_tenth, others = special[rates]
    values = np.full(workers, others)
    values[::10] = every_tenth
    return values


def _hub_rates(rates: str, hubs: int) -> FloatArray:
    """Read ``hub:1,0.5,...``: the rate of all workers of each hub."""
    try:
        values = np.array([float(part) for part in rates.removeprefix(_PER_HUB).split(",")])
    except ValueError:
        raise ValueError(f"rates={rates!r}: give numbers with commas between them") from None
    if values.size != hubs:
        raise ValueError(
            f"rates={rates!r} has {values.size} entries for {hubs} hubs: give one per hub"
        )
    return values


def _check_vector(name: str, x: FloatArray, workers: int, above: float, at_most: float) -> None:
    if x.shape != (workers,):
        raise ValueError(f"{name} of shape {x.shape} for {workers} workers: give one per worker")
    wrong = np.flatnonzero(~((x > above) & (x <= at_most) & np.isfinite(x)))
    if wrong.size:
        bound = f"above {above:g}" + ("" if at_most == np.inf else f" and at most {at_most:g}")
        raise ValueError(
            f"{name}[{wrong[0]}] = {x[wrong[0]]:g} (worker {wrong[0]}): must be finite, {bound}"
        )
