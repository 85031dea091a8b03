"""From a network file to a hub's gossip, and to the status of any hub."""

from __future__ import annotations

from typing import Any

from mll_flower.deployment.certs import operator_files
from mll_flower.deployment.network_entries import NetworkFile
from mll_flower.gossip.grpc_client import MAX_BYTES, GrpcGossip, call, open_channel


def connect(
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
    run : str | None
        Name of the run, the same at every hub; the network's name if not given.
    insecure : bool
        True: without TLS. Never the default.
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
    )


def read_status(
    network: NetworkFile, hub: str, timeout: float = 2.0, *, insecure: bool = False
) -> dict[str, Any]:
    """Ask a hub how it is, with the operator's certificate.

    Raises
    ------
    PeerSilent, RejectedSnapshot
        The hub does not answer, or is not who it should be; the text says why.
    """
    tls = None if insecure else operator_files(network.certs)
    channel = open_channel(network.hub(hub).gossip, hub, tls)
    try:
        return call(channel, "Status", b"{}", timeout)
    finally:
        channel.close()
