"""Gossip: neighbouring hubs exchange their models and mix them.

`mll_flower.gossip.protocol` explains the hub-to-hub protocol. Two classes carry it:
`InProcessGossip` between hubs of one process, and `mll_flower.gossip.grpc_client.GrpcGossip` over
gRPC with mutual TLS (not imported here, so that only a deployment loads its gRPC code).
"""

from mll_flower.gossip.in_process import InProcessBoard, InProcessGossip
from mll_flower.gossip.local_mixing import local_metropolis, mix_with_neighbours
from mll_flower.gossip.protocol import Gossip
from mll_flower.gossip.results import Counters, Exchange, PeerSilent, PeerStatus
from mll_flower.gossip.snapshot import RejectedSnapshot, Rejection, Snapshot
from mll_flower.gossip.start_barrier import wait_for_hubs

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
    "wait_for_hubs",
]
