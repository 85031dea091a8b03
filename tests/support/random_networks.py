"""Hypothesis strategies: random connected hub graphs, weights, rates, and whole networks."""

from __future__ import annotations

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from mll_flower.algorithm.network import HubNetwork

weights = st.floats(0.01, 100.0, allow_nan=False)
rates = st.floats(0.01, 1.0, allow_nan=False)


@st.composite
def hub_graphs(draw: st.DrawFn, min_hubs: int = 1, max_hubs: int = 8) -> nx.Graph:
    """A random tree, which connects the hubs, and a random set of further edges."""
    hubs = draw(st.integers(min_hubs, max_hubs))
    graph = nx.Graph()
    graph.add_nodes_from(range(hubs))
    for hub in range(1, hubs):
        graph.add_edge(draw(st.integers(0, hub - 1)), hub)
    others = sorted(nx.non_edges(graph))
    if others:
        graph.add_edges_from(draw(st.lists(st.sampled_from(others), unique=True)))
    return graph


@st.composite
def networks(draw: st.DrawFn, min_hubs: int = 1, max_hubs: int = 8) -> HubNetwork:
    """A whole network with one to four workers per hub."""
    graph = draw(hub_graphs(min_hubs, max_hubs))
    counts = draw(st.lists(st.integers(1, 4), min_size=len(graph), max_size=len(graph)))
    total = sum(counts)
    return HubNetwork.build(
        workers_per_hub=counts,
        graph=graph,
        weights=draw(st.lists(weights, min_size=total, max_size=total)),
        rates=draw(st.lists(rates, min_size=total, max_size=total)),
    )


def operators(network: HubNetwork, H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the paper's N x N matrices V and Z, entry by entry from their definition."""
    N, d, w = network.workers, network.hub_of, network.w
    hub_weight = {hub: sum(w[i] for i in range(N) if d[i] == hub) for hub in range(network.hubs)}
    V, Z = np.zeros((N, N)), np.zeros((N, N))
    for i in range(N):
        v = w[i] / hub_weight[d[i]]
        for j in range(N):
            V[i, j] = v if d[i] == d[j] else 0.0
            Z[i, j] = H[d[i], d[j]] * v
    return V, Z
