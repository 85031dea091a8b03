"""The start of a run: hubs wait for one another, so that all begin together.

A hub sees only its neighbours, so what it knows spreads from neighbour to neighbour. A hub that is
ready publishes a table in its status: the hubs that it knows to be ready, itself first, each with
its neighbours. It adds the tables of its neighbours to its own. When every hub that the table names
has an entry of its own, the whole network is ready, and the hub begins. A hub whose time is up
begins without the others, and its neighbours with it: nobody waits for a hub that never comes.

The table stays in the status of a hub that has begun: a neighbour that finds itself in it has begun
together with that hub; one that does not comes late, and has to catch up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from mll_flower.gossip.protocol import Gossip
from mll_flower.gossip.results import PeerStatus

log = logging.getLogger("flwr")  # what a hub's operator reads

BEGUN: dict[str, Any] = {"begun": True, "ready": {}}
"""What a hub that goes on without waiting publishes under ``start``, the key of its status."""

PAUSE = 0.3
"""Seconds between two questions to the neighbours."""

ANSWER = 2.0
"""Seconds that a neighbour has to answer."""

Ready = dict[str, list[str]]


def wait_for_hubs(gossip: Gossip, publish: Callable[..., None], timeout: float) -> bool:
    """Wait until all hubs of the network are ready, or a neighbour has begun; then begin.

    Parameters
    ----------
    gossip : Gossip
        The hub's link to its neighbours.
    publish : callable
        ``publish(start=...)`` adds what this hub knows to its status.
    timeout : float
        Seconds to wait at most.

    Returns
    -------
    bool
        Whether the hub begins together with its neighbours. False if the time was up, or if a
        neighbour had begun without it.
    """
    ready: Ready = {gossip.hub: list(gossip.neighbours)}
    together = _wait(gossip, publish, ready, timeout)
    publish(start={"begun": True, "ready": dict(ready)})
    return together


def _wait(gossip: Gossip, publish: Callable[..., None], ready: Ready, timeout: float) -> bool:
    """Wait, and fill in the table of hubs that are ready."""
    end = time.monotonic() + timeout
    while True:
        missing = {hub for linked in ready.values() for hub in linked} - set(ready)
        publish(start={"begun": False, "ready": dict(ready)})
        if not missing:
            return True
        if time.monotonic() >= end:
            names = ", ".join(sorted(missing))
            log.warning("Not ready after %g s: hub %s; this hub begins without", timeout, names)
            return False
        time.sleep(PAUSE)
        for answer in gossip.peer_status(ANSWER).values():
            begun, theirs = _start_of(answer, gossip.run)
            if begun:
                return gossip.hub in theirs
            for hub, linked in theirs.items():
                ready.setdefault(hub, linked)


def _start_of(answer: PeerStatus, run: str) -> tuple[bool, Ready]:
    """Return whether a neighbour has begun, and the hubs that it knows to be ready.

    Whatever a neighbour sends, this raises no error: what cannot be understood is left out.
    """
    start = answer.status.get("start")
    if answer.status.get("run") != run or not isinstance(start, dict):
        return False, {}
    table = start.get("ready")
    entries = table.items() if isinstance(table, dict) else ()
    ready = {
        str(hub): [str(peer) for peer in linked]
        for hub, linked in entries
        if isinstance(linked, list)
    }
    return start.get("begun") is True, ready
