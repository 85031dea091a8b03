"""What the hub-to-hub protocol returns: outcomes, status, counters.

The outcome of an exchange of models with all neighbours, a neighbour's status, and counters of
exchanges, silent neighbours, rejections, bytes and seconds. `PeerSilent` is raised for a neighbour
that gives no usable answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mll_flower.gossip.ledger import Missing
from mll_flower.gossip.snapshot import Rejection, Snapshot


class PeerSilent(Exception):
    """A neighbour gave no usable answer; the text says why.

    Parameters
    ----------
    reason : str
        Why it is silent.
    final : bool
        Whether asking again before the deadline is useless.
    ahead : int | None
        The neighbour's newest mixing, if it is already past the one it was asked for.
    """

    def __init__(self, reason: str, *, final: bool = False, ahead: int | None = None) -> None:
        super().__init__(reason)
        self.final = final
        self.ahead = ahead

    @classmethod
    def missing(cls, why: Missing, mixing: int | None, latest: int | None) -> PeerSilent:
        """Return the exception for a neighbour, at mixing `latest`, that lacks the snapshot."""
        if why is Missing.GONE:
            return cls(f"is already past mixing {mixing}, at {latest}", final=True, ahead=latest)
        if mixing is None:
            return cls("has published nothing yet", final=True)
        return cls(f"has not published mixing {mixing}")


@dataclass(frozen=True)
class Exchange:
    """The outcome of one mixing's exchange.

    Attributes
    ----------
    arrived : dict[str, Snapshot]
        Snapshots of the neighbours whose link is used, by hub id.
    silent : dict[str, str]
        Why the links of the other neighbours are not used, by hub id.
    ahead : int | None
        The newest mixing number among neighbours that are already past this mixing: this hub
        has fallen behind and should catch up with it.
    """

    arrived: dict[str, Snapshot]
    silent: dict[str, str]
    ahead: int | None = None


@dataclass(frozen=True)
class PeerStatus:
    """A neighbour's answer to a status request.

    Attributes
    ----------
    hub : str
        Id of the neighbour.
    reachable : bool
        Whether it answered.
    mixing, round : int | None
        Its newest mixing and round, if it reports them.
    reason : str
        Why it did not answer.
    status : Mapping[str, Any]
        The whole answer.
    disagreement : str
        In what its terms of the run differ from this hub's, or why its mixing cannot be true.
    """

    hub: str
    reachable: bool
    mixing: int | None = None
    round: int | None = None
    reason: str = ""
    status: Mapping[str, Any] = field(default_factory=dict)
    disagreement: str = ""

    @classmethod
    def of(cls, hub: str, answer: Mapping[str, Any] | Exception) -> PeerStatus:
        """Return the status in a neighbour's answer, or in the exception raised in its place."""
        if isinstance(answer, Exception):
            return cls(hub, False, reason=str(answer))
        mixing, round = (_int_or_none(answer.get(key)) for key in ("mixing", "round"))
        return cls(hub, True, mixing, round, status=answer)


@dataclass(frozen=True)
class Counters:
    """What a hub's gossip has done since it started.

    Attributes
    ----------
    exchanges : int
        Exchanges finished.
    silent : int
        Neighbours that were silent, summed over all exchanges.
    rejected : Mapping[Rejection, int]
        Snapshots and calls turned away, by reason.
    bytes_sent, bytes_received : int
        Bytes of snapshots and their headers.
    seconds : float
        Time spent in exchanges.
    """

    exchanges: int = 0
    silent: int = 0
    rejected: Mapping[Rejection, int] = field(default_factory=dict)
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds: float = 0.0


def _int_or_none(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
