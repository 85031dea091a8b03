"""Candidates: the settings that a plan may choose from, and what a slot of each costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from mll_flower.algorithm.mixing import mixing_matrix, zeta
from mll_flower.algorithm.network import HubNetwork
from mll_flower.planning.plan_file import Plan
from mll_flower.timing.clock import Clock, FloatArray

ONE_SERVER = "one-server"
"""Name of the graph of a single hub that serves all workers, as in FedAvg."""

# Up to so many hubs all rings are tried; beyond, each hub goes on to its nearest neighbour.
_ALL_RINGS = 8
# Two rules whose zeta differs by less are as good as each other.
_SAME_ZETA = 1e-3

Edges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Candidate:
    """A setting that may be chosen.

    Parameters
    ----------
    graph : str
        One of `mll_flower.planning.plan_file.GRAPHS`.
    edges : tuple of pairs
        Links of the hub graph.
    mixing : str
        The rule that makes H.
    tau, q : int
        Slots (or steps) of a round; rounds between two mixings.
    waits : bool
        Whether a round lasts until each worker has taken tau steps.
    zeta : float
        Of its mixing matrix.
    """

    graph: str
    edges: Edges
    mixing: str
    tau: int
    q: int
    waits: bool
    zeta: float = 0.0

    @property
    def name(self) -> str:
        """A short name, which no other candidate has."""
        q = "" if self.graph == ONE_SERVER else f" q={self.q}"
        return f"{self.graph} tau={self.tau}{q}" + (" waiting" if self.waits else "")

    @property
    def one_server(self) -> bool:
        """Whether a single hub serves all workers."""
        return self.graph == ONE_SERVER

    def hub_graph(self, hubs: int) -> nx.Graph[int]:
        """Return the graph of its hubs."""
        graph: nx.Graph[int] = nx.Graph()
        graph.add_nodes_from(range(1 if self.one_server else hubs))
        graph.add_edges_from(self.edges)
        return graph


@dataclass(frozen=True)
class Costs:
    """Times and bytes of the candidates of a plan.

    Parameters
    ----------
    clock : Clock
        The plan's clock.
    model_bytes : int
        Bytes of a model on the links.
    """

    clock: Clock
    model_bytes: int

    def clock_of(self, candidate: Candidate) -> Clock:
        """Return the clock on which a candidate runs."""
        return self.clock.central(self.model_bytes) if candidate.one_server else self.clock

    def ends(self, candidate: Candidate) -> Iterator[float]:
        """Yield the second at which the last hub ends each round."""
        graph = candidate.hub_graph(self.clock.hubs)
        settings = (candidate.tau, candidate.q, candidate.waits, self.model_bytes)
        for ends in self.clock_of(candidate).ends(graph, *settings):
            yield float(ends.max())

    def seconds_per_slot(self, candidate: Candidate) -> float:
        """Return the seconds per slot (or per step of each worker, if it waits), on average."""
        rounds = candidate.q * max(8, len(self.clock.step_seconds))
        last = next(itertools.islice(self.ends(candidate), rounds - 1, None))
        return last / (rounds * candidate.tau)

    def bytes_after(self, candidate: Candidate, rounds: int) -> int:
        """Return the bytes that the first rounds send, as a run records them."""
        models = 2 * len(self.clock.hub_of) * rounds
        models += 2 * len(candidate.edges) * (rounds // candidate.q)
        return models * self.model_bytes

    def rounds_within(
        self,
        candidate: Candidate,
        seconds: float | None,
        bytes: float | None,
        longest_slots: int,
    ) -> int:
        """Return the rounds that fit into a time, into bytes, and into the longest run."""
        most = max(1, longest_slots // candidate.tau)
        rounds = 0
        for end in itertools.islice(self.ends(candidate), most):
            spent = self.bytes_after(candidate, rounds + 1)
            if (seconds is not None and end > seconds) or (bytes is not None and spent > bytes):
                break
            rounds += 1
        return rounds


def possible_graphs(costs: Costs, wanted: Sequence[str]) -> dict[str, Edges]:
    """Return the graphs that the links allow, each with its fastest edges; no two are equal."""
    clock = costs.clock
    links, exchange = clock.links(), clock.exchange(costs.model_bytes)
    makers: dict[str, Callable[[], Any]] = {
        "complete": lambda: links.edges if nx.density(links) == 1 else None,
        "links": lambda: links.edges,
        "ring": lambda: _ring(links, exchange),
        "star": lambda: _star(links, exchange),
        "tree": lambda: _tree(links, exchange),
        ONE_SERVER: lambda: (),
    }
    found: dict[str, Edges] = {}
    for name in makers:
        edges = makers[name]() if name in wanted else None
        if edges is None or (clock.hubs == 1 and name != ONE_SERVER):
            continue
        ordered = tuple(sorted((min(i, j), max(i, j)) for i, j in edges))
        if ordered not in found.values():
            found[name] = ordered
    return found


def _cost(edges: Sequence[tuple[int, int]], exchange: FloatArray) -> tuple[float, float]:
    """Return what makes one set of edges slower than another: the slowest link, then all."""
    seconds = [float(exchange[i, j]) for i, j in edges]
    return max(seconds), sum(seconds)


def _ring(links: nx.Graph[int], exchange: FloatArray) -> Any:
    hubs = len(links)
    if hubs < 3:
        return None
    if hubs <= _ALL_RINGS:
        orders: Any = ((0, *rest) for rest in itertools.permutations(range(1, hubs)))
    else:
        orders = (_nearest(exchange, start) for start in range(hubs))
    rings = ([*itertools.pairwise(order), (order[-1], order[0])] for order in orders)
    best = min(rings, key=lambda ring: _cost(ring, exchange))
    return best if np.isfinite(_cost(best, exchange)[0]) else None


def _nearest(exchange: FloatArray, start: int) -> list[int]:
    order, left = [start], set(range(len(exchange))) - {start}
    while left:
        here = order[-1]
        order.append(min(left, key=lambda hub: (exchange[here, hub], hub)))
        left.remove(order[-1])
    return order


def _star(links: nx.Graph[int], exchange: FloatArray) -> Any:
    stars = [
        [(centre, other) for other in links if other != centre]
        for centre in links
        if links.degree[centre] == len(links) - 1 and len(links) > 1
    ]
    return min(stars, key=lambda star: _cost(star, exchange)) if stars else None


def _tree(links: nx.Graph[int], exchange: FloatArray) -> Any:
    for i, j in links.edges:
        links[i][j]["seconds"] = float(exchange[i, j])
    return nx.minimum_spanning_tree(links, weight="seconds").edges


def all_candidates(plan: Plan, costs: Costs, b: FloatArray) -> list[Candidate]:
    """Return every setting that the plan may try.

    Of the rules of mixing, which cost the same on one graph, only the one with the smallest zeta
    is tried; ``metropolis``, which hubs can compute themselves, if no other is better.

    Parameters
    ----------
    plan, costs
        The plan, and what its candidates cost.
    b : ndarray
        The hubs' shares of the weight.
    """
    found = []
    for name, edges in possible_graphs(costs, plan.search.graphs).items():
        plain = Candidate(name, edges, "auto", 1, 1, False)
        rule, value = "metropolis", 0.0
        if not plain.one_server:
            rule, value = _best_rule(plain.hub_graph(plan.clock.hubs), b, plan.search.mixing)
        for waits in plan.search.waiting:
            taus = plan.search.tau or _taus(costs, plain, waits)
            qs = (1,) if plain.one_server else plan.search.q or (1, 2, 4, 8)
            found += [
                Candidate(name, edges, rule, tau, q, waits, value)
                for tau, q in itertools.product(taus, qs)
            ]
    return found


def _best_rule(graph: nx.Graph[int], b: FloatArray, rules: Sequence[str]) -> tuple[str, float]:
    values = {}
    for rule in rules:
        if rule != "complete" or nx.density(graph) == 1:
            values[rule] = zeta(mixing_matrix(graph, b, rule))
    if not values:  # only "complete" was wanted, on another graph
        values["metropolis"] = zeta(mixing_matrix(graph, b, "metropolis"))
    best = min(values, key=lambda rule: values[rule])
    if values.get("metropolis", np.inf) <= values[best] + _SAME_ZETA:
        best = "metropolis"
    return best, values[best]


def _taus(costs: Costs, candidate: Candidate, waits: bool) -> tuple[int, ...]:
    """Return periods around the one at which transfers take as long as computing."""
    clock = costs.clock_of(candidate)
    unit = float(clock.step_seconds.max()) if waits else clock.slot
    transfer = float(clock.transfer(costs.model_bytes).max()) / unit
    first = 2
    while first < transfer / 8:
        first *= 2
    return tuple(first * factor for factor in (1, 2, 4, 8, 16))


def network_of(candidate: Candidate, costs: Costs, weights: FloatArray) -> HubNetwork:
    """Return the network of a candidate; all rates are 1 if it waits."""
    clock = costs.clock_of(candidate)
    rates = np.ones(len(clock.hub_of)) if candidate.waits else clock.rates()
    graph = candidate.hub_graph(costs.clock.hubs)
    return HubNetwork(graph, clock.hub_of.copy(), weights.copy(), rates)
