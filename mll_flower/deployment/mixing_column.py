"""A hub's column of the mixing matrix H, for networks whose H comes from a file.

In other networks a hub computes its column from what its neighbours send:
`mll_flower.gossip.local_mixing`.
"""

from __future__ import annotations

import networkx as nx

from mll_flower.algorithm.corrections import safe_for_exact_diffusion
from mll_flower.algorithm.mixing import load_mixing
from mll_flower.deployment.given_weights import given_weights
from mll_flower.deployment.network_entries import NetworkFile, NetworkFileError


def mixing_column(network: NetworkFile, hub: str) -> dict[str, float] | None:
    """Return H[j, d] by hub id, from the network's file of H; None for metropolis weights.

    Parameters
    ----------
    network : NetworkFile
        The deployment; rows and columns of H are in the order of its hubs. Its ``weights``
        give the hub shares b, against which H is checked.
    hub : str
        Id of hub d.
    """
    if isinstance(network.mixing, str):
        return None
    config = given_weights(network)
    if config.weights == "examples":
        raise NetworkFileError(
            f"{network.path}: mixing: {network.mixing.name} gives H, but the weights are the "
            "workers' example counts, which are not known beforehand, so that H cannot be "
            'checked: set weights = "equal" or the weights themselves in [run-config], or '
            'mixing = "metropolis"'
        )
    places = {entry.id: place for place, entry in enumerate(network.hubs)}
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(len(places)))
    graph.add_edges_from((places[a], places[b]) for a, b in network.edges)
    matrix = load_mixing(network.mixing, graph, config.network().b)
    if network.corrections.hub != "none":
        matrix = safe_for_exact_diffusion(matrix)
    d = places[hub]
    return {id: float(matrix[j, d]) for id, j in places.items() if matrix[j, d]}
