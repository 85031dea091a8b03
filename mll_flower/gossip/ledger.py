"""A hub's ledger: what it has published, and what its neighbours said about it.

It keeps the hub's snapshots (its model for one mixing each) and its neighbours' verdicts on them:
accepted, or refused and why.

Neighbours fetch from the ledger and deliver their verdicts to it: directly within a process, or
through `mll_flower.gossip.grpc_server` over the network.
"""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from mll_flower.gossip.snapshot import Snapshot

# Mixings whose verdicts are kept, for neighbours that repeat them.
_REMEMBERED = 8


@dataclass(frozen=True, eq=False)
class Published:
    """A snapshot on offer.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    token : str
        Drawn at random for each publication, so that a confirmation of a snapshot that a hub
        published before a restart does not count for one published after it.
    body : bytes
        The snapshot's arrays as bytes, for carriers that send bytes.
    """

    snapshot: Snapshot
    token: str
    body: bytes = b""

    @cached_property
    def sha256(self) -> str:
        """Checksum of the body, computed once for all neighbours."""
        return hashlib.sha256(self.body).hexdigest()


@dataclass(frozen=True)
class Verdict:
    """A neighbour's verdict on a snapshot.

    Parameters
    ----------
    run : str
        The run that the neighbour is in.
    mixing : int
        Number of the mixing.
    token : str
        Token of the snapshot's publication.
    accepted : bool
        True for a confirmation, False for a refusal.
    reason : str
        Why it was refused.
    """

    run: str
    mixing: int
    token: str
    accepted: bool
    reason: str = ""


class Ack(StrEnum):
    """The answer to a verdict."""

    # It counts.
    RECORDED = "recorded"
    # It came after the exchange of its mixing had ended.
    CLOSED = "closed"
    # It is about a snapshot that this hub does not offer, or from a hub that is no neighbour.
    UNKNOWN = "unknown"


class Missing(StrEnum):
    """Why the ledger cannot give the snapshot of a mixing."""

    # The hub is past this mixing and no longer keeps the snapshot.
    GONE = "gone"
    # The hub has not published it.
    NOT_YET = "not yet"


class Ledger:
    """Published snapshots and the neighbours' verdicts on the newest; thread-safe.

    Parameters
    ----------
    run, hub : str
        The run, and the hub that the ledger belongs to.
    neighbours : Iterable[str]
        The hubs that may give a verdict.
    keep : int
        How many snapshots stay on offer, at least 2: a slower neighbour may still be at the
        previous mixing.
    """

    def __init__(self, run: str, hub: str, neighbours: Iterable[str], keep: int = 2) -> None:
        if keep < 2:
            raise ValueError(f"keep={keep}: a slower neighbour needs at least the last 2 snapshots")
        self.run = run
        self.hub = hub
        self._neighbours = frozenset(neighbours)
        self._keep = keep
        self._published: dict[int, Published] = {}
        self._verdicts: dict[int, dict[str, Verdict]] = {}
        self._last_call: float | None = None
        self._closed = False
        self._shut = False
        self._changed = threading.Condition()

    @property
    def latest(self) -> int | None:
        """The newest mixing number published."""
        with self._changed:
            return max(self._published, default=None)

    @property
    def is_shut(self) -> bool:
        """Whether the ledger has been shut for good."""
        return self._shut

    def publish(self, snapshot: Snapshot, body: bytes = b"") -> None:
        """Put a snapshot on offer; from now on no new verdicts on earlier ones count."""
        if (snapshot.run, snapshot.hub) != (self.run, self.hub):
            raise ValueError(
                f"snapshot of hub {snapshot.hub!r} in run {snapshot.run!r} published by hub "
                f"{self.hub!r} in run {self.run!r}; a hub may publish only its own model"
            )
        with self._changed:
            latest = max(self._published, default=None)
            if latest == snapshot.mixing and _same_content(
                self._published[latest].snapshot, snapshot
            ):
                return
            if latest is not None and snapshot.mixing <= latest:
                raise ValueError(
                    f"mixing {snapshot.mixing} published after mixing {latest}; snapshots are "
                    "immutable and their numbers must grow"
                )
            self._published[snapshot.mixing] = Published(snapshot, uuid.uuid4().hex, body)
            for old in sorted(self._published)[: -self._keep]:
                del self._published[old]
            self._verdicts[snapshot.mixing] = {}
            for old in sorted(self._verdicts)[:-_REMEMBERED]:
                del self._verdicts[old]
            self._last_call = None
            self._closed = False
            self._changed.notify_all()

    def open(self, mixing: int, last_call: float) -> Published:
        """Start the exchange of the newest mixing; verdicts count until `last_call`."""
        with self._changed:
            if mixing != max(self._published, default=None):
                raise ValueError(
                    f"exchange of mixing {mixing}, but the newest published is "
                    f"{max(self._published, default=None)}; publish this hub's snapshot first"
                )
            if self._closed:
                raise ValueError(f"the exchange of mixing {mixing} has ended; it happens only once")
            self._last_call = last_call
            return self._published[mixing]

    def close(self, mixing: int) -> None:
        """End the exchange: verdicts that come from now on are answered with `CLOSED`."""
        with self._changed:
            if mixing == max(self._published, default=None):
                self._closed = True
                self._changed.notify_all()

    def shut(self) -> None:
        """End all waits, those in progress and those to come."""
        with self._changed:
            self._shut = True
            self._changed.notify_all()

    def wake(self) -> None:
        """Wake all waiting callers, so that each checks whether to go on waiting."""
        with self._changed:
            self._changed.notify_all()

    def wait_for(
        self, mixing: int | None, until: float, still_wanted: Callable[[], bool] = lambda: True
    ) -> Published | Missing:
        """Return the snapshot of a mixing, and wait for it if it is not published yet.

        Parameters
        ----------
        mixing : int | None
            Number of the mixing. None stands for the newest, and does not wait.
        until : float
            Time (`time.monotonic`) until which to wait.
        still_wanted : Callable
            Asked again after each change; False ends the wait.
        """
        with self._changed:
            while True:
                latest = max(self._published, default=None)
                if mixing is None:
                    return Missing.NOT_YET if latest is None else self._published[latest]
                if mixing in self._published:
                    return self._published[mixing]
                if latest is not None and latest > mixing:
                    return Missing.GONE
                left = until - time.monotonic()
                if left <= 0 or self._shut or not still_wanted():
                    return Missing.NOT_YET
                self._changed.wait(left)

    def record(self, peer: str, verdict: Verdict) -> Ack:
        """Record a neighbour's verdict.

        A repeated one gets the same answer, also if this hub has published its next snapshot
        meanwhile: the neighbour repeats a verdict when it has not received the answer, and without
        that it would leave the link unused, which this hub has used.
        """
        with self._changed:
            latest = max(self._published, default=None)
            if peer not in self._neighbours or latest is None or verdict.run != self.run:
                return Ack.UNKNOWN
            if verdict.mixing > latest:
                return Ack.UNKNOWN
            known = self._verdicts.get(verdict.mixing, {}).get(peer)
            if verdict.mixing < latest:
                return Ack.RECORDED if known == verdict else Ack.CLOSED
            if verdict.accepted and verdict.token != self._published[latest].token:
                return Ack.UNKNOWN
            if known is not None:
                return Ack.RECORDED if known.accepted == verdict.accepted else Ack.CLOSED
            late = self._last_call is not None and time.monotonic() > self._last_call
            if self._closed or late:
                return Ack.CLOSED
            self._verdicts[latest][peer] = verdict
            self._changed.notify_all()
            return Ack.RECORDED

    def await_verdict(self, peer: str, mixing: int, until: float) -> Verdict | None:
        """Wait for a neighbour's verdict on this hub's snapshot; None if none comes in time."""
        with self._changed:
            while True:
                if mixing != max(self._published, default=None):
                    return None
                if peer in self._verdicts[mixing]:
                    return self._verdicts[mixing][peer]
                left = until - time.monotonic()
                if left <= 0 or self._shut or self._closed:
                    return None
                self._changed.wait(left)


def _same_content(one: Snapshot, other: Snapshot) -> bool:
    return (
        (one.weight, one.degree) == (other.weight, other.degree)
        and one.arrays.keys() == other.arrays.keys()
        and all(
            one.arrays[name].dtype == array.dtype
            and np.array_equal(one.arrays[name], array, equal_nan=array.dtype.kind in "fc")
            for name, array in other.arrays.items()
        )
    )
