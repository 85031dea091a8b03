"""What comes of talking to neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mll_flower.gossip.snapshot import Rejection, Snapshot


class PeerSilent(Exception):
    """A neighbour has nothing for us; `final` if asking again before the deadline is no use."""

    def __init__(self, reason: str, *, final: bool = False, ahead: int | None = None) -> None:
        super().__init__(reason)
        self.final = final
        self.ahead = ahead


@dataclass(frozen=True)
class Exchange:
    """The outcome of one mixing's exchange.

    Attributes
    ----------
    arrived : dict[str, Snapshot]
        Neighbours whose link is used, with their snapshots.
    silent : dict[str, str]
        The others, with the reason.
    ahead : int | None
        The newest mixing number among neighbours that are already past this one: this hub
        has fallen behind and should catch up with it.
    """

    arrived: dict[str, Snapshot]
    silent: dict[str, str]
    ahead: int | None = None


@dataclass(frozen=True)
class PeerStatus:
    """What a neighbour says of itself; `status` is all of it, `reason` why it is unreachable."""

    hub: str
    reachable: bool
    mixing: int | None = None
    round: int | None = None
    reason: str = ""
    status: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Counters:
    """What the gossip has cost and turned away since it started."""

    exchanges: int = 0
    silent: int = 0
    rejected: Mapping[Rejection, int] = field(default_factory=dict)
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds: float = 0.0
