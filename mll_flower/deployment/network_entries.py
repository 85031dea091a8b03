"""What a network file says, once it is read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import networkx as nx

from mll_flower.gossip.tls import TlsFiles

Value = bool | int | float | str


class NetworkFileError(ValueError):
    """A network file that cannot be used; the text says where and what to do."""


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
        How many workers are expected.
    listen : str
        Host to bind when it differs from those of the addresses (NAT, containers).
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
    def superlink_listen(self) -> tuple[str, int]:
        """Host and port to bind for the SuperLink."""
        return self.listen or host_of(self.superlink), port_of(self.superlink)


@dataclass(frozen=True)
class NetworkFile:
    """A deployment: hubs, their graph, and the numbers of the algorithm.

    Parameters
    ----------
    path : Path
        The file it was read from.
    name : str
        Name of the network; names the run, too.
    tau, q : int
        Slots a round, and rounds between two mixings.
    slot : float
        Length of a slot in seconds.
    rounds : int
        How many rounds are run.
    round_deadline, gossip_deadline : float
        Seconds a round, and an exchange between hubs, may last.
    mixing : str | Path
        ``"metropolis"``, or the file of a mixing matrix H.
    absent : str
        Where the share of an absent worker goes: ``"keep"`` or ``"renormalise"``.
    certs : Path
        Directory of certificates and keys.
    hubs : tuple[HubEntry, ...]
        In the order of the file.
    edges : tuple[tuple[str, str], ...]
        Links between hubs, by id.
    run_config : Mapping[str, bool | int | float | str]
        What the task is told (data set, model, batch size, ...).
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

    @property
    def period(self) -> float:
        """Seconds of training in a round: tau slots."""
        return self.tau * self.slot

    @cached_property
    def graph(self) -> nx.Graph[str]:
        """The hub graph."""
        graph: nx.Graph[str] = nx.Graph()
        graph.add_nodes_from(hub.id for hub in self.hubs)
        graph.add_edges_from(self.edges)
        return graph

    def hub(self, id: str) -> HubEntry:
        """The entry of a hub."""
        for hub in self.hubs:
            if hub.id == id:
                return hub
        known = ", ".join(hub.id for hub in self.hubs)
        raise NetworkFileError(f"{self.path}: no hub {id!r}; the hubs are {known}")

    def neighbours(self, id: str) -> tuple[str, ...]:
        """Ids of a hub's neighbours, in order."""
        return tuple(sorted(self.graph.neighbors(self.hub(id).id)))


def host_of(address: str) -> str:
    """The host of ``host:port``, without the brackets of an IPv6 address."""
    return address.rpartition(":")[0].strip("[]")


def port_of(address: str) -> int:
    """The port of ``host:port``."""
    return int(address.rpartition(":")[2])


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
