"""The hub-to-hub layer: hubs show each other their models and mix them.

`LocalGossip` carries snapshots within a process, `mll_flower.gossip.network.NetworkGossip`
over gRPC with mutual TLS (a module of its own, so that only a deployment loads grpc).
"""

from mll_flower.gossip.base import Gossip
from mll_flower.gossip.local import LocalBoard, LocalGossip
from mll_flower.gossip.mixing import local_metropolis, mix
from mll_flower.gossip.outcome import Counters, Exchange, PeerSilent, PeerStatus
from mll_flower.gossip.snapshot import RejectedSnapshot, Rejection, Snapshot

__all__ = [
    "Counters",
    "Exchange",
    "Gossip",
    "LocalBoard",
    "LocalGossip",
    "PeerSilent",
    "PeerStatus",
    "RejectedSnapshot",
    "Rejection",
    "Snapshot",
    "local_metropolis",
    "mix",
]
