"""The hub-to-hub layer: hubs show each other their models and mix them.

`InProcessGossip` carries snapshots within a process, `mll_flower.gossip.network.GrpcGossip`
over gRPC with mutual TLS (a module of its own, so that only a deployment loads grpc).
"""

from mll_flower.gossip.in_process import InProcessBoard, InProcessGossip
from mll_flower.gossip.local_mixing import local_metropolis, mix_with_neighbours
from mll_flower.gossip.protocol import Gossip
from mll_flower.gossip.results import Counters, Exchange, PeerSilent, PeerStatus
from mll_flower.gossip.snapshot import RejectedSnapshot, Rejection, Snapshot

__all__ = [
    "Counters",
    "Exchange",
    "Gossip",
    "InProcessBoard",
    "InProcessGossip",
    "PeerSilent",
    "PeerStatus",
    "RejectedSnapshot",
    "Rejection",
    "Snapshot",
    "local_metropolis",
    "mix_with_neighbours",
]
