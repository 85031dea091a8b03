"""The hub-to-hub protocol: how neighbouring hubs exchange their models at a mixing.

At a mixing every hub replaces its model by a weighted average of its own and its neighbours'
models; H[B, A] is the weight that hub A gives to hub B's model. For that hub A needs z(B), the
average of B's workers' models, from each neighbour B, and B needs z(A). A hub calls
`Gossip.publish` (step 1) and `Gossip.exchange` (steps 2 to 4, with all neighbours at once):

1. **Publish.** Each hub puts its snapshot on offer: z, the total weight of its workers, its
   degree in the hub graph, and the number of the mixing. Each publication gets a random token.
2. **Fetch.** A asks B for its snapshot of this mixing, and waits if B has not published it yet.
   A checks what it gets: the run, the hub, the mixing, shapes, dtypes, finite values, and the
   distance from its own model if that is limited.
3. **Verdict.** A sends B a confirmation (the snapshot with this token is accepted) or a refusal
   with the reason. B records the verdict and acknowledges it.
4. **Use.** A uses the link if it holds B's snapshot, B has acknowledged A's confirmation, and
   B's confirmation of A's own snapshot has arrived. In every other case B counts as silent, and
   the weight H[B, A] stays with A's own model.

**The hubs agree beforehand.** A hub states the terms of the run that it takes part in (tau, q, the
learning rate...) with every fetch and in its status. If a neighbour's differ, neither end uses the
link, and both name the difference. A number of mixings that a neighbour cannot have reached in the
time since the two last met is not believed. `mll_flower.gossip.agreement` has both.

A deadline bounds all of this: no hub ever waits for another for longer.

**Both ends of a link agree.** The weights are chosen so that mixing keeps u, the average of all
hubs' models by their weights. That holds only if a link is used at both ends or at neither; the
confirmations exist for this. No protocol can guarantee agreement over a link that may fail (the
two generals' problem). Here the remaining risk is small. Verdicts are sent, repeated after a
failure, and accepted only until the *last call*, a little before the deadline. The time after the
last call is for acknowledgements alone. The ends disagree only if an acknowledgement is lost, or
takes longer than that time, after the other end has everything it needs.

`Gossip` holds the protocol. Its subclasses carry the messages, by `_fetch`, `_deliver`,
`_ask_status` and `close`: `mll_flower.gossip.in_process.InProcessGossip` within a process,
`mll_flower.gossip.grpc_client.GrpcGossip` over the network. A hub's publications and the verdicts
on them are kept in `mll_flower.gossip.ledger`. `mll_flower.gossip.local_mixing` computes the mixed
model from the outcome of an exchange.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from mll_flower.gossip._call_all import call_all
from mll_flower.gossip.agreement import Pace, Terms, differences
from mll_flower.gossip.ledger import Ack, Ledger, Published, Verdict
from mll_flower.gossip.recent_rounds import RecentRounds
from mll_flower.gossip.results import Counters, Exchange, PeerSilent, PeerStatus
from mll_flower.gossip.snapshot import (
    Array,
    RejectedSnapshot,
    Rejection,
    Snapshot,
    check_snapshot,
    snapshot_distance,
)
from mll_flower.models.norm_limit import NormLimit

log = logging.getLogger(__name__)

T = TypeVar("T")

SETTLE = 0.5
"""Seconds from the last call to the deadline; a quarter of the deadline if that is shorter."""

RETRY_PAUSE = 0.1
"""Seconds between two attempts to reach a neighbour."""


class Gossip(ABC):
    """A hub's gossip with its neighbours; subclasses carry the messages.

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
    terms : Terms, optional
        What the hubs of the run must agree on.
    pace : float
        Seconds between two mixings, at least; 0 believes any number of a neighbour.
    """

    def __init__(
        self,
        hub: str,
        neighbours: Iterable[str],
        run: str,
        keep: int = 2,
        terms: Terms | None = None,
        pace: float = 0.0,
    ) -> None:
        self.hub = hub
        self.neighbours: tuple[str, ...] = tuple(sorted(neighbours))
        self.run = run
        if hub in self.neighbours:
            raise ValueError(f"hub {hub!r} is listed as its own neighbour; leave it out")
        self.terms: Terms = dict(terms or {})
        self.pace = Pace(pace)
        self._ledger = Ledger(run, hub, self.neighbours, keep)
        # What models of this run look like, for carriers that bound what they read.
        self._like: Mapping[str, Array] | None = None
        self._status: dict[str, Any] = {}
        self._last_outcome = dict.fromkeys(self.neighbours, "not met yet")
        self._rounds = RecentRounds()
        self._count_lock = threading.Lock()
        self._rejected: Counter[Rejection] = Counter()
        self._tally: Counter[str] = Counter()
        self._seconds = 0.0
        self._distances: NormLimit | None = None
        self._distance_lock = threading.Lock()

    # What a carrier provides. Times called `until` are those of `time.monotonic`.

    @abstractmethod
    def _fetch(self, peer: str, mixing: int | None, until: float) -> Published:
        """Return a neighbour's snapshot of a mixing; None stands for its newest.

        Waits for a mixing that the neighbour has not published yet. Raises `PeerSilent` or
        `RejectedSnapshot`.
        """

    @abstractmethod
    def _deliver(self, peer: str, verdict: Verdict, until: float) -> Ack:
        """Send a neighbour the verdict on its snapshot; raise `PeerSilent` if that fails."""

    @abstractmethod
    def _ask_status(self, peer: str, until: float) -> dict[str, Any]:
        """Return a neighbour's status; raise `PeerSilent` if it does not answer."""

    @abstractmethod
    def close(self, grace: float = 0.0) -> None:
        """Serve for `grace` more seconds, so that slower neighbours can still fetch; then stop."""

    # What a hub uses.

    @property
    def counters(self) -> Counters:
        """Counters since the start."""
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
        """Set what this hub reports of itself: its round, last loss, connected workers..."""
        self._status = dict(status)

    def update_status(self, **more: Any) -> None:
        """Add to what this hub reports of itself."""
        self._status = {**self._status, **more}

    def remember_round(self, row: Mapping[str, Any]) -> None:
        """Keep what an operator may be told of a round."""
        self._rounds.add(row)

    def agree_on(self, **terms: bool | int | float | str) -> None:
        """Add to what the hubs of the run must agree on."""
        self.terms = {**self.terms, **{key.replace("_", " "): v for key, v in terms.items()}}

    @property
    def max_distance(self) -> float | str | None:
        """What `limit_distance` was given."""
        return None if self._distances is None else self._distances.given

    def limit_distance(self, limit: float | str | None) -> None:
        """Refuse neighbours' models that are far from this hub's own.

        Parameters
        ----------
        limit : float, str or None
            The largest Euclidean distance, a multiple such as ``"5x"`` of the running median of
            such distances, or None for no limit. Until a first distance is known, the norm of the
            hub's own model stands in for the median.
        """
        self._distances = None if limit is None else NormLimit(limit, "max_neighbour_norm")

    def status(self) -> dict[str, Any]:
        """Return this hub's status as others see it.

        ``neighbours`` holds the outcome of the last exchange with each neighbour: ``mixed``, or
        why it was silent.
        """
        own = {"run": self.run, "hub": self.hub, "mixing": self._ledger.latest}
        more = {"terms": self.terms, "neighbours": self._last_outcome}
        return {**self._status, **own, **more}

    def answer_operator(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the status, and the rounds after the one that an operator's request names."""
        after = request.get("rounds-after")
        rounds = {} if not isinstance(after, int) else {"rounds": self._rounds.after(after)}
        return {**self.status(), **rounds}

    def publish(self, snapshot: Snapshot) -> None:
        """Offer this hub's snapshot of a mixing to the neighbours."""
        self._publish(snapshot, b"")

    def _publish(self, snapshot: Snapshot, body: bytes) -> None:
        self._like = snapshot.arrays
        self.pace.begin(snapshot.mixing)
        self._ledger.publish(snapshot, body)

    def exchange(self, mixing: int, deadline: float) -> Exchange:
        """Exchange the snapshots of a mixing with all neighbours.

        Parameters
        ----------
        mixing : int
            Number of the mixing; this hub's snapshot of it must be published.
        deadline : float
            Seconds from now; a neighbour that is not ready by then is silent.

        Returns
        -------
        Exchange
            Which links are used, and why the others are not. Returned by the deadline.
        """
        _check_deadline(deadline)
        started = time.monotonic()
        until = started + deadline
        last_call = until - min(SETTLE, deadline / 4)
        own = self._ledger.open(mixing, last_call)
        results = call_all(
            self.neighbours, lambda peer: self._handshake(peer, own, last_call, until), until
        )
        self._ledger.close(mixing)
        found = self._exchange_of(results)
        for peer in found.arrived:
            self.pace.meet(peer, mixing)
        self._last_outcome = {peer: found.silent.get(peer, "mixed") for peer in self.neighbours}
        for peer, reason in found.silent.items():
            log.warning("hub %s: %s is silent at mixing %d: %s", self.hub, peer, mixing, reason)
        with self._count_lock:
            self._tally["exchanges"] += 1
            self._tally["silent"] += len(found.silent)
            self._seconds += time.monotonic() - started
        return found

    def fetch_latest(self, deadline: float, like: Mapping[str, Array] | None = None) -> Exchange:
        """Fetch the neighbours' newest snapshots, of any mixing, to catch up after a restart.

        Parameters
        ----------
        deadline : float
            Seconds from now. A neighbour that has published nothing yet answers at once.
        like : Mapping[str, numpy.ndarray] | None
            Arrays whose names, shapes and dtypes are expected.
        """
        _check_deadline(deadline)
        until = time.monotonic() + deadline
        if like is not None:
            self._like = like

        def latest(peer: str) -> Snapshot:
            found = self._retry(lambda: self._fetch(peer, None, until), until)
            check_snapshot(found.snapshot, peer=peer, run=self.run, mixing=None, like=like)
            return found.snapshot

        return self._exchange_of(call_all(self.neighbours, latest, until))

    def peer_status(self, timeout: float = 1.0) -> dict[str, PeerStatus]:
        """Ask each neighbour for its status now."""
        _check_deadline(timeout)
        until = time.monotonic() + timeout
        answers = call_all(
            self.neighbours,
            lambda peer: self._retry(lambda: self._ask_status(peer, until), until),
            until,
        )
        return {peer: self._judge(PeerStatus.of(peer, answer)) for peer, answer in answers.items()}

    def latest_mixing(self, timeout: float = 1.0) -> int | None:
        """Return the newest mixing number among the reachable neighbours that agree with us."""
        peers = self.peer_status(timeout).values()
        good = [p for p in peers if p.status.get("run") == self.run and not p.disagreement]
        return max((p.mixing for p in good if p.mixing is not None), default=None)

    def _judge(self, answer: PeerStatus) -> PeerStatus:
        """Return a neighbour's answer with what is wrong with it, which is said once."""
        if answer.status.get("run") != self.run:
            return answer
        wrong = differences(self.terms, answer.status.get("terms"))
        if not wrong and answer.mixing is not None:
            wrong = self.pace.doubt(answer.hub, answer.mixing)
        if wrong and self._last_outcome[answer.hub] != wrong:
            log.warning("hub %s: hub %s disagrees: %s", self.hub, answer.hub, wrong)
            self._last_outcome[answer.hub] = wrong
        return replace(answer, disagreement=wrong)

    # The steps that the module's docstring explains.

    def _handshake(self, peer: str, own: Published, last_call: float, until: float) -> Snapshot:
        """Fetch and check a neighbour's snapshot, confirm it, and await its confirmation."""
        mixing = own.snapshot.mixing
        token = ""
        try:
            found = self._retry(lambda: self._fetch(peer, mixing, last_call), last_call)
            token = found.token
            check_snapshot(
                found.snapshot, peer=peer, run=self.run, mixing=mixing, like=own.snapshot.arrays
            )
            self._check_distance(own.snapshot, found.snapshot)
        except RejectedSnapshot as rejected:
            if rejected.rejection is not Rejection.UNTRUSTED:
                self._refuse(peer, Verdict(self.run, mixing, token, False, str(rejected)), until)
            raise
        if time.monotonic() >= last_call:
            raise PeerSilent("its snapshot came too late to be confirmed")
        confirmation = Verdict(self.run, mixing, token, True)
        ack = self._retry(lambda: self._deliver(peer, confirmation, until), last_call)
        # Wait for the neighbour's verdict only if it recorded ours. Otherwise use a verdict that
        # has arrived: a refusal explains more than the acknowledgement does.
        recorded = ack is Ack.RECORDED
        verdict = self._ledger.await_verdict(peer, mixing, last_call if recorded else 0.0)
        if verdict is not None and not verdict.accepted:
            raise PeerSilent(f"refused our snapshot: {verdict.reason}")
        if ack is Ack.CLOSED:
            raise PeerSilent(f"had ended its mixing {mixing} before our confirmation came")
        if ack is Ack.UNKNOWN:
            raise PeerSilent(f"does not know the snapshot of mixing {mixing} that it gave us")
        if verdict is None:
            raise PeerSilent("did not confirm our snapshot in time")
        return found.snapshot

    def _check_distance(self, own: Snapshot, other: Snapshot) -> None:
        """Raise `RejectedSnapshot` if a neighbour's model is too far from this hub's own."""
        limit = self._distances
        if limit is None:
            return
        norm = snapshot_distance(own.arrays, other.arrays)
        with self._distance_lock:  # neighbours are met in threads of their own
            bound = limit.bound(stand_in=snapshot_distance(own.arrays, None))
            limit.remember([norm], bound)
        if norm > bound:
            detail = f"{norm:.4g}, more than {bound:.4g} (max_neighbour_norm={limit.given!r})"
            raise RejectedSnapshot(Rejection.DISTANCE, detail)

    def _refuse(self, peer: str, refusal: Verdict, until: float) -> None:
        """Send a refusal, so that the neighbour does not wait for a confirmation."""
        try:
            self._deliver(peer, refusal, until)
        except (PeerSilent, RejectedSnapshot) as silent:
            log.info("hub %s: the refusal did not reach %s: %s", self.hub, peer, silent)

    def _retry(self, attempt: Callable[[], T], last_call: float) -> T:
        """Attempt a call at least once, and again after `PeerSilent` until the last call."""
        while True:
            try:
                return attempt()
            except PeerSilent as silent:
                no_time = time.monotonic() + 2 * RETRY_PAUSE >= last_call
                if silent.final or no_time or self._ledger.is_shut:
                    raise
                time.sleep(RETRY_PAUSE)

    def _exchange_of(self, results: Mapping[str, Snapshot | Exception]) -> Exchange:
        """Separate the neighbours that arrived from the silent ones, and count the rejections."""
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
                doubt = self.pace.doubt(peer, result.ahead)
                if doubt:
                    silent[peer] = doubt
                    self._reject(Rejection.AHEAD, f"hub {peer}, which {doubt}")
                else:
                    ahead.append(result.ahead)
        return Exchange(arrived, silent, max(ahead, default=None))

    def _reject(self, rejection: Rejection, detail: str) -> None:
        with self._count_lock:
            self._rejected[rejection] += 1
        log.warning("hub %s: rejected %s", self.hub, detail)

    def _count(self, counter: str, amount: int) -> None:
        with self._count_lock:
            self._tally[counter] += amount


def _check_deadline(deadline: float) -> None:
    if not (math.isfinite(deadline) and deadline > 0):
        raise ValueError(f"deadline={deadline}: give a positive, finite number of seconds")
