"""Call a function for several neighbours at the same time, and wait no longer than a deadline."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from mll_flower.gossip.results import PeerSilent
from mll_flower.gossip.snapshot import RejectedSnapshot

log = logging.getLogger(__name__)

T = TypeVar("T")


def call_all(
    peers: Iterable[str], function: Callable[[str], T], until: float
) -> dict[str, T | Exception]:
    """Call a function for every peer, each in a thread of its own.

    Parameters
    ----------
    peers : Iterable[str]
        Ids of the neighbours.
    function : Callable
        Called with a neighbour's id.
    until : float
        Time (`time.monotonic`) at which waiting for results ends.

    Returns
    -------
    dict[str, T | Exception]
        For each peer what the function returned or raised, or `PeerSilent` if the call was not
        done in time. Its thread then goes on alone, and its result is dropped.
    """
    peers = list(peers)
    outcomes: queue.SimpleQueue[tuple[str, T | Exception]] = queue.SimpleQueue()

    def work(peer: str) -> None:
        try:
            outcomes.put((peer, function(peer)))
        except (PeerSilent, RejectedSnapshot) as reason:
            outcomes.put((peer, reason))
        except Exception as bug:
            log.exception("gossip with hub %s failed", peer)
            outcomes.put((peer, bug))

    for peer in peers:
        threading.Thread(target=work, args=(peer,), name=f"gossip-{peer}", daemon=True).start()
    results: dict[str, T | Exception] = {}
    while len(results) < len(peers):
        try:
            peer, outcome = outcomes.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        results[peer] = outcome
    late = PeerSilent("no answer before the deadline")
    return {peer: results.get(peer, late) for peer in peers}
