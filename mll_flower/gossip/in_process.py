"""Gossip, the exchange of models between hubs, within one process: each hub in a thread.

Hubs find each other in a shared table, the board, and read directly what the others have published.
For tests, and for several hubs in one program. The protocol and its checks are those of
`mll_flower.gossip.protocol`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from mll_flower.gossip.agreement import Terms, differences
from mll_flower.gossip.ledger import Ack, Ledger, Missing, Published, Verdict
from mll_flower.gossip.protocol import Gossip
from mll_flower.gossip.results import PeerSilent
from mll_flower.gossip.snapshot import RejectedSnapshot, Rejection


class InProcessBoard:
    """Where the hubs of one process find each other; links can be cut, each way separately."""

    def __init__(self) -> None:
        self._hubs: dict[str, InProcessGossip] = {}
        self._cut: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def cut(self, caller: str, called: str) -> None:
        """Make every call from one hub to another fail from now on; not the other way round."""
        with self._lock:
            self._cut.add((caller, called))

    def mend(self, caller: str, called: str) -> None:
        """Undo `cut`."""
        with self._lock:
            self._cut.discard((caller, called))

    def _join(self, gossip: InProcessGossip) -> None:
        with self._lock:
            if gossip.hub in self._hubs:
                raise ValueError(
                    f"hub {gossip.hub!r} is already on the board; close its gossip first"
                )
            self._hubs[gossip.hub] = gossip

    def _leave(self, gossip: InProcessGossip) -> None:
        with self._lock:
            if self._hubs.get(gossip.hub) is gossip:
                del self._hubs[gossip.hub]

    def _reach(self, caller: str, called: str) -> InProcessGossip:
        with self._lock:
            if (caller, called) in self._cut or called not in self._hubs:
                raise PeerSilent("unreachable")
            return self._hubs[called]


class InProcessGossip(Gossip):
    """Gossip over an `InProcessBoard`.

    Parameters
    ----------
    board : InProcessBoard
        The board that the hubs of the process share.
    hub, neighbours, run, keep, terms, pace
        See `Gossip`.
    """

    def __init__(
        self,
        board: InProcessBoard,
        hub: str,
        neighbours: Iterable[str],
        run: str,
        keep: int = 2,
        terms: Terms | None = None,
        pace: float = 0.0,
    ) -> None:
        super().__init__(hub, neighbours, run, keep, terms, pace)
        self._board = board
        board._join(self)

    def close(self, grace: float = 0.0) -> None:
        """Leave the board after `grace` seconds."""
        time.sleep(max(0.0, grace))
        self._board._leave(self)
        self._ledger.shut()

    def _ledger_of(self, peer: str) -> Ledger:
        return self._board._reach(self.hub, peer)._ledger

    def _fetch(self, peer: str, mixing: int | None, until: float) -> Published:
        ledger = self._ledger_of(peer)
        wrong = differences(self.terms, self._board._reach(self.hub, peer).terms)
        if wrong:
            raise RejectedSnapshot(Rejection.TERMS, wrong)
        found = ledger.wait_for(mixing, until, lambda: not self._ledger.is_shut)
        if isinstance(found, Missing):
            raise PeerSilent.missing(found, mixing, ledger.latest)
        return found

    def _deliver(self, peer: str, verdict: Verdict, until: float) -> Ack:
        return self._ledger_of(peer).record(self.hub, verdict)

    def _ask_status(self, peer: str, until: float) -> dict[str, Any]:
        return self._board._reach(self.hub, peer).status()
