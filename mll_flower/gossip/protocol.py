"""The hub-to-hub layer: one interface, whatever carries the snapshots.

**Both ends of a link agree.** Mixing keeps the averaged model u only if a link is used on
both sides or on neither. So a hub that has fetched and accepted a neighbour's snapshot
confirms it to that neighbour, and one that rejects it refuses it. A link is used in a mixing
when the hub holds the neighbour's snapshot, its own confirmation was acknowledged, and the
neighbour's confirmation is there. All else counts as silence.

No protocol can make two ends agree with certainty over a link that may fail (the two
generals). What remains here is small: confirmations are sent and taken only until a little
before the deadline, and failed ones are sent again; the time left then is for
acknowledgements alone. The ends disagree only if one acknowledgement is lost, or under way
for longer than that time, after the other side has everything it needs.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from mll_flower.gossip.ledger import Ack, Ledger, Published, Verdict
from mll_flower.gossip.results import Counters, Exchange, PeerSilent, PeerStatus
from mll_flower.gossip.snapshot import (
    Array,
    RejectedSnapshot,
    Rejection,
    Snapshot,
    check_snapshot,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

SETTLE = 0.5
"""Seconds before the deadline, at most, that are kept for acknowledgements alone."""

RETRY_PAUSE = 0.1
"""Seconds between two attempts to reach a neighbour."""


class Gossip(ABC):
    """A hub's link to its neighbours.

    Parameters
    ----------
    hub : str
        Id of this hub.
    neighbours : Iterable[str]
        Ids of its neighbours in the hub graph.
    run : str
        Name of the run; the same at every hub of the network.
    keep : int
        How many snapshots stay on offer (at least 2).
    """

    def __init__(self, hub: str, neighbours: Iterable[str], run: str, keep: int = 2) -> None:
        self.hub = hub
        self.neighbours: tuple[str, ...] = tuple(sorted(neighbours))
        self.run = run
        if hub in self.neighbours:
            raise ValueError(f"hub {hub!r} is listed as its own neighbour; leave it out")
        self._ledger = Ledger(run, hub, self.neighbours, keep)
        self._status: dict[str, Any] = {}
        self._met = dict.fromkeys(self.neighbours, "not met yet")
        self._count_lock = threading.Lock()
        self._rejected: Counter[Rejection] = Counter()
        self._tally: Counter[str] = Counter()
        self._seconds = 0.0

    # What a carrier of snapshots has to provide.

    @abstractmethod
    def _fetch(self, peer: str, mixing: int | None, until: float) -> Published:
        """A neighbour's snapshot (None: its newest); `PeerSilent` or `RejectedSnapshot`."""

    @abstractmethod
    def _deliver(self, peer: str, verdict: Verdict, until: float) -> Ack:
        """Tell a neighbour what became of its snapshot; `PeerSilent` if it cannot be told."""

    @abstractmethod
    def _ask(self, peer: str, until: float) -> dict[str, Any]:
        """A neighbour's status; `PeerSilent` if it does not answer."""

    @abstractmethod
    def close(self, grace: float = 0.0) -> None:
        """Serve for `grace` seconds more, so that slower neighbours can still fetch; then stop."""

    # What a hub uses.

    @property
    def counters(self) -> Counters:
        """Counts since the start."""
        with self._count_lock:
            return Counters(
                exchanges=self._tally["exchanges"],
                silent=self._tally["silent"],
                rejected=dict(self._rejected),
                bytes_sent=self._tally["sent"],
                bytes_received=self._tally["received"],
                seconds=self._seconds,
            )

    def set_status(self, status: Mapping[str, Any]) -> None:
        """Set what this hub answers when asked how it is (round, last loss, workers seen...)."""
        self._status = dict(status)

    def status(self) -> dict[str, Any]:
        """This hub's status as others see it.

        ``neighbours`` says of each what came of the last exchange: ``mixed``, or why it was
        silent.
        """
        own = {"run": self.run, "hub": self.hub, "mixing": self._ledger.latest}
        return {**self._status, **own, "neighbours": self._met}

    def publish(self, snapshot: Snapshot) -> None:
        """Offer this hub's snapshot of a mixing to the neighbours."""
        self._ledger.publish(snapshot)

    def exchange(self, mixing: int, deadline: float) -> Exchange:
        """Exchange the snapshots of a mixing with all neighbours.

        Parameters
        ----------
        mixing : int
            Number of the mixing; this hub's snapshot of it must be published.
        deadline : float
            Seconds from now; a neighbour that is not there by then is silent.

        Returns
        -------
        Exchange
            At the latest when the deadline has passed.
        """
        _check_deadline(deadline)
        started = time.monotonic()
        until = started + deadline
        last_call = until - min(SETTLE, deadline / 4)
        own = self._ledger.open(mixing, last_call)
        results = self._each(lambda peer: self._handshake(peer, own, last_call, until), until)
        self._ledger.close(mixing)
        arrived, silent, ahead = self._sort(results)
        self._met = {peer: silent.get(peer, "mixed") for peer in self.neighbours}
        for peer, reason in silent.items():
            log.warning("hub %s: %s is silent at mixing %d: %s", self.hub, peer, mixing, reason)
        with self._count_lock:
            self._tally["exchanges"] += 1
            self._tally["silent"] += len(silent)
            self._seconds += time.monotonic() - started
        return Exchange(arrived, silent, ahead)

    def fetch_latest(self, deadline: float, like: Mapping[str, Array] | None = None) -> Exchange:
        """The neighbours' newest snapshots, whatever their mixing, to catch up after a restart.

        Parameters
        ----------
        deadline : float
            Seconds from now. A neighbour that has published nothing yet answers at once.
        like : Mapping[str, numpy.ndarray] | None
            Arrays whose names, shapes and dtypes are expected.
        """
        _check_deadline(deadline)
        until = time.monotonic() + deadline

        def latest(peer: str) -> Snapshot:
            found = self._persist(lambda: self._fetch(peer, None, until), until)
            check_snapshot(found.snapshot, peer=peer, run=self.run, mixing=None, like=like)
            return found.snapshot

        arrived, silent, ahead = self._sort(self._each(latest, until))
        return Exchange(arrived, silent, ahead)

    def peer_status(self, timeout: float = 1.0) -> dict[str, PeerStatus]:
        """What each neighbour says of itself, asked now."""
        _check_deadline(timeout)
        until = time.monotonic() + timeout
        results = self._each(
            lambda peer: self._persist(lambda: self._ask(peer, until), until), until
        )
        return {
            peer: PeerStatus(peer, False, reason=str(result))
            if isinstance(result, Exception)
            else PeerStatus(
                peer, True, _whole(result.get("mixing")), _whole(result.get("round")), "", result
            )
            for peer, result in results.items()
        }

    def latest_mixing(self, timeout: float = 1.0) -> int | None:
        """The newest mixing number among the reachable neighbours of this run."""
        peers = self.peer_status(timeout).values()
        numbers = [p.mixing for p in peers if p.status.get("run") == self.run]
        return max((n for n in numbers if n is not None), default=None)

    # How it works.

    def _handshake(self, peer: str, own: Published, last_call: float, until: float) -> Snapshot:
        """Fetch, check, tell the peer, and hear from it; see the module's docstring."""
        mixing = own.snapshot.mixing
        token = ""
        try:
            found = self._persist(lambda: self._fetch(peer, mixing, last_call), last_call)
            token = found.token
            check_snapshot(
                found.snapshot, peer=peer, run=self.run, mixing=mixing, like=own.snapshot.arrays
            )
        except RejectedSnapshot as rejected:
            if rejected.rejection is not Rejection.UNTRUSTED:
                self._refuse(peer, Verdict(self.run, mixing, token, False, str(rejected)), until)
            raise
        if time.monotonic() >= last_call:
            raise PeerSilent("its snapshot came too late to be confirmed")
        confirmation = Verdict(self.run, mixing, token, True)
        ack = self._persist(lambda: self._deliver(peer, confirmation, until), last_call)
        # A peer that refuses our snapshot may end its mixing before our confirmation comes;
        # then its refusal is the better reason.
        in_time = ack is Ack.RECORDED
        verdict = self._ledger.await_verdict(peer, mixing, last_call if in_time else 0.0)
        if verdict is not None and not verdict.accepted:
            raise PeerSilent(f"refused our snapshot: {verdict.reason}")
        if ack is Ack.CLOSED:
            raise PeerSilent(f"had ended its mixing {mixing} before our confirmation came")
        if ack is Ack.UNKNOWN:
            raise PeerSilent(f"does not know the snapshot of mixing {mixing} that it gave us")
        if verdict is None:
            raise PeerSilent("did not confirm our snapshot in time")
        return found.snapshot

    def _refuse(self, peer: str, refusal: Verdict, until: float) -> None:
        """Spare the neighbour the wait for a confirmation; if it cannot be told, it waits."""
        try:
            self._deliver(peer, refusal, until)
        except (PeerSilent, RejectedSnapshot) as silent:
            log.info("hub %s: %s was not told of the refusal: %s", self.hub, peer, silent)

    def _persist(self, attempt: Callable[[], T], last_call: float) -> T:
        """Attempt again and again until the last call; always once."""
        while True:
            try:
                return attempt()
            except PeerSilent as silent:
                over = time.monotonic() + 2 * RETRY_PAUSE >= last_call
                if silent.final or over or self._ledger.is_shut:
                    raise
                time.sleep(RETRY_PAUSE)

    def _each(self, function: Callable[[str], T], until: float) -> dict[str, T | Exception]:
        """Call a function for every neighbour at once; what is not there in time is silence."""
        outcomes: queue.SimpleQueue[tuple[str, T | Exception]] = queue.SimpleQueue()

        def work(peer: str) -> None:
            try:
                outcomes.put((peer, function(peer)))
            except (PeerSilent, RejectedSnapshot) as reason:
                outcomes.put((peer, reason))
            except Exception as bug:
                log.exception("hub %s: gossip with %s failed", self.hub, peer)
                outcomes.put((peer, bug))

        for peer in self.neighbours:
            threading.Thread(target=work, args=(peer,), name=f"gossip-{peer}", daemon=True).start()
        results: dict[str, T | Exception] = {}
        while len(results) < len(self.neighbours):
            try:
                peer, outcome = outcomes.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            results[peer] = outcome
        late = PeerSilent("no answer before the deadline")
        return {peer: results.get(peer, late) for peer in self.neighbours}

    def _sort(
        self, results: Mapping[str, Snapshot | Exception]
    ) -> tuple[dict[str, Snapshot], dict[str, str], int | None]:
        arrived: dict[str, Snapshot] = {}
        silent: dict[str, str] = {}
        ahead: list[int] = []
        for peer, result in results.items():
            if isinstance(result, Snapshot):
                arrived[peer] = result
                continue
            silent[peer] = str(result)
            if isinstance(result, RejectedSnapshot):
                self._reject(result.rejection, f"from hub {peer}: {result}")
            if isinstance(result, PeerSilent) and result.ahead is not None:
                ahead.append(result.ahead)
        return arrived, silent, max(ahead, default=None)

    def _reject(self, rejection: Rejection, detail: str) -> None:
        with self._count_lock:
            self._rejected[rejection] += 1
        log.warning("hub %s: rejected %s", self.hub, detail)

    def _count(self, what: str, amount: int) -> None:
        with self._count_lock:
            self._tally[what] += amount


def _check_deadline(deadline: float) -> None:
    if not (math.isfinite(deadline) and deadline > 0):
        raise ValueError(f"deadline={deadline}: a hub waits for a positive number of seconds")


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
