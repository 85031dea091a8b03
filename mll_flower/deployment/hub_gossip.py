"""Start a hub's gossip, its exchange of models with its neighbours.

Addresses and certificates come from the network file, the TOML file that describes a deployment.
"""

from __future__ import annotations

from mll_flower.deployment.network_entries import NetworkFile
from mll_flower.deployment.shared_terms import shared_terms
from mll_flower.gossip.grpc_client import MAX_BYTES, GrpcGossip


def start_gossip(
    network: NetworkFile,
    hub: str,
    run: str | None = None,
    *,
    insecure: bool = False,
    max_bytes: int = MAX_BYTES,
) -> GrpcGossip:
    """Start the gossip of one hub of a network.

    Parameters
    ----------
    network : NetworkFile
        The deployment.
    hub : str
        Id of this hub.
    run : str, optional
        Name of the run, the same at every hub; the network's name if not given.
    insecure : bool
        Without TLS. Never the default.
    max_bytes : int
        Largest model accepted, in bytes.
    """
    entry = network.hub(hub)
    return GrpcGossip(
        hub,
        entry.gossip_listen,
        {peer: network.hub(peer).gossip for peer in network.neighbours(hub)},
        run or network.name,
        tls=None if insecure else entry.tls,
        insecure=insecure,
        max_bytes=max_bytes,
        terms=shared_terms(network),
        # A round lasts at least its tau slots.
        pace=network.q * network.tau * network.slot,
    )
