"""A deployment as data: what a network file describes, once it has been read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import networkx as nx

from mll_flower.algorithm.corrections import Corrections
from mll_flower.deployment.trust import Trust
from mll_flower.gossip.tls import TlsFiles

Value = bool | int | float | str

AUTO_LEAST = 5.0
"""Seconds of a round beyond its tau slots that it has at least, where hubs choose the deadline: a
worker stops 3 s before the deadline, and must have its whole time by then."""

AUTO_MOST = 60.0
"""Seconds of a round beyond its tau slots that it has at most, unless another limit is given."""


class NetworkFileError(ValueError):
    """A network file that cannot be used; the text names the place and the remedy."""


@dataclass(frozen=True)
class HubEntry:
    """One hub of the deployment.

    Parameters
    ----------
    id : str
        Its name: lower-case letters, digits and hyphens.
    superlink, gossip : str
        ``host:port`` under which its workers and the other hubs reach it.
    workers : int
        Number of its workers.
    listen : str
        Host to bind where it differs from those of the addresses (NAT, containers); else empty.
    tls : TlsFiles
        Its certificate, key and CA.
    """

    id: str
    superlink: str
    gossip: str
    workers: int
    listen: str
    tls: TlsFiles

    @property
    def gossip_listen(self) -> str:
        """``host:port`` to bind for gossip."""
        return _join(self.listen or host_of(self.gossip), port_of(self.gossip))

    @property
    def superlink_listen(self) -> str:
        """``host:port`` to bind for the SuperLink."""
        return _join(self.listen or host_of(self.superlink), port_of(self.superlink))


@dataclass(frozen=True)
class NetworkFile:
    """A deployment: hubs, their graph, and the parameters of the algorithm.

    Parameters
    ----------
    path : Path
        The file it was read from.
    name : str
        Name of the network and of its run.
    tau, q : int
        Slots per round, and rounds between two mixings.
    slot : float
        Length of a slot in seconds.
    rounds : int
        Number of rounds of the run.
    round_deadline, gossip_deadline : float
        Seconds that a round, and an exchange between hubs, may last.
    auto_deadline : bool
        Whether each hub learns the deadline of its rounds; ``round_deadline`` is then the longest.
    mixing : str | Path
        ``"metropolis"``, or the file of a mixing matrix H.
    absent : str
        What happens to the share of an absent worker: ``"keep"`` or ``"renormalise"``.
    certs : Path
        Directory of certificates and keys.
    hubs : tuple[HubEntry, ...]
        In the order of the file.
    edges : tuple[tuple[str, str], ...]
        Links between hubs, by id.
    run_config : Mapping[str, bool | int | float | str]
        What is trained (data set, model, batch size, ...), or the run config of ``app``.
    app : Path | None
        Folder of a Flower app of the user's own; None for this project's.
    trust : Trust
        How far hubs believe workers and neighbours.
    corrections : Corrections
        Which corrections that go past the paper are on.
    """

    path: Path
    name: str
    tau: int
    q: int
    slot: float
    rounds: int
    round_deadline: float
    gossip_deadline: float
    mixing: str | Path
    absent: str
    certs: Path
    hubs: tuple[HubEntry, ...]
    edges: tuple[tuple[str, str], ...]
    run_config: Mapping[str, Value] = field(default_factory=dict)
    app: Path | None = None
    trust: Trust = field(default_factory=Trust)
    auto_deadline: bool = False
    corrections: Corrections = field(default_factory=Corrections)

    @property
    def least_deadline(self) -> float:
        """The shortest deadline of a round that a hub may choose, in seconds."""
        return self.tau * self.slot + AUTO_LEAST if self.auto_deadline else self.round_deadline

    @cached_property
    def graph(self) -> nx.Graph[str]:
        """The hub graph."""
        graph: nx.Graph[str] = nx.Graph()
        graph.add_nodes_from(hub.id for hub in self.hubs)
        graph.add_edges_from(self.edges)
        return graph

    def hub(self, id: str) -> HubEntry:
        """Return the entry of a hub."""
        for hub in self.hubs:
            if hub.id == id:
                return hub
        known = ", ".join(hub.id for hub in self.hubs)
        raise NetworkFileError(f"{self.path}: hub {id!r} does not exist; the hubs are {known}")

    def neighbours(self, id: str) -> tuple[str, ...]:
        """Return the ids of a hub's neighbours, sorted."""
        return tuple(sorted(self.graph.neighbors(self.hub(id).id)))


def host_of(address: str) -> str:
    """Return the host of ``host:port``, without the brackets of an IPv6 address."""
    return address.rpartition(":")[0].strip("[]")


def port_of(address: str) -> int:
    """Return the port of ``host:port``."""
    return int(address.rpartition(":")[2])


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
