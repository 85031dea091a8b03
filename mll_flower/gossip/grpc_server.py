"""The gRPC server of a hub: the calls that its neighbours and the operator may make.

There are three calls, with bytes as request and reply: `Fetch` streams a snapshot (the model that
this hub offers at a mixing), and waits for it if it is not published yet; `Confirm` takes a
neighbour's verdict, whether it accepts that snapshot; `Status` returns the hub's status. The
steps of an exchange are explained in `mll_flower.gossip.protocol`.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from threading import Lock
from typing import Any

import grpc

from mll_flower.gossip import wire
from mll_flower.gossip.agreement import Terms, differences
from mll_flower.gossip.ledger import Ledger, Missing, Published
from mll_flower.gossip.snapshot import Rejection
from mll_flower.gossip.tls import RenewedFiles, hubs_named, operator_name

log = logging.getLogger(__name__)

SERVICE = "mll.Gossip"
"""Name of the gRPC service."""

FETCHES = 2
"""Fetches that a neighbour may have open at a time: a second one may replace one that is lost."""

MAX_CONNECTIONS = 512
"""Connections at a time; more are closed at once. Each takes one of a process's descriptors, of
which there are usually 1,024, and neighbours and the operator need one each."""

HANDSHAKE_SECONDS = 10.0
"""Seconds that a caller has to show its certificate; then its connection is closed."""

_OPTIONS = [
    # Otherwise two servers could share a port, and calls would reach either of them.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", wire.SMALL),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
]


class GossipServer:
    """Serves a hub's ledger on an address.

    Parameters
    ----------
    ledger : Ledger
        The hub's published snapshots.
    listen : str
        ``host:port`` to bind.
    neighbours : tuple[str, ...]
        The hubs that may fetch and confirm.
    tls : RenewedFiles | None
        Certificate, key and CA; None serves without encryption or proof of identity.
    status : Callable[[], dict]
        Returns the answer to `Status`, if a hub asks.
    reject : Callable[[Rejection, str], None]
        Called for every call that is turned away, with the reason and details.
    sent : Callable[[int], None]
        Called with the number of bytes of each message sent.
    stream : Callable[[Published], Iterator[bytes]]
        Cuts a snapshot into messages.
    terms : Callable[[], Terms]
        Returns what the hubs of the run must agree on.
    answer_operator : Callable[[dict], dict], optional
        Returns the answer to `Status` and its request, if the operator asks; as a hub if None.
    """

    def __init__(
        self,
        ledger: Ledger,
        listen: str,
        neighbours: tuple[str, ...],
        tls: RenewedFiles | None,
        status: Callable[[], dict[str, Any]],
        reject: Callable[[Rejection, str], None],
        sent: Callable[[int], None],
        stream: Callable[[Published], Iterator[bytes]] = wire.messages,
        terms: Callable[[], Terms] = dict,
        answer_operator: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        self._ledger = ledger
        self._neighbours = neighbours
        self._secure = tls is not None
        self._status = status
        self._reject = reject
        self._sent = sent
        self._stream = stream
        self._terms = terms
        self._answer_operator = answer_operator
        self._fetching: Counter[str] = Counter()
        self._lock = Lock()
        workers = (FETCHES + 2) * len(neighbours) + 4
        pool = futures.ThreadPoolExecutor(workers, thread_name_prefix="gossip-server")
        limits = [
            ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
            ("grpc.server_handshake_timeout_ms", round(1000 * HANDSHAKE_SECONDS)),
        ]
        self._server = grpc.server(pool, options=[*_OPTIONS, *limits])
        self._server.add_generic_rpc_handlers((self._handlers(),))
        try:
            if tls is None:
                self._port = self._server.add_insecure_port(listen)
            else:
                self._port = self._server.add_secure_port(listen, _credentials(tls))
        except RuntimeError as error:
            raise OSError(
                f"cannot listen for gossip on {listen}: the port is taken, or the address is not "
                "one of this machine (then set `listen` for this hub in the network file)"
            ) from error
        self._server.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._port)

    def stop(self) -> None:
        """Give calls in progress a moment to finish, end the others, and free the port."""
        self._server.stop(grace=0.2).wait()

    def _handlers(self) -> Any:
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Fetch": grpc.unary_stream_rpc_method_handler(self._fetch),
                "Confirm": grpc.unary_unary_rpc_method_handler(self._confirm),
                "Status": grpc.unary_unary_rpc_method_handler(self._answer_status),
            },
        )

    def _certificate_names(self, context: Any) -> list[str]:
        """Return the names in the caller's certificate, which the TLS handshake has checked."""
        found: Mapping[str, list[bytes]] = context.auth_context()
        return [n.decode(errors="replace") for n in found.get("x509_subject_alternative_name", [])]

    def _calling_neighbour(self, context: Any) -> str:
        """Return the id of the neighbour that calls; a call by anyone else is aborted."""
        claim = dict(context.invocation_metadata()).get("mll-hub", "")
        caller = claim
        if self._secure:
            hubs = hubs_named(self._certificate_names(context))
            caller = hubs[0] if len(hubs) == 1 else ""
            if caller and claim != caller:
                detail = f"a call by {caller!r}, which claims to be {claim!r}"
                self._turn_away(context, Rejection.IMPOSTOR, detail)
        if caller not in self._neighbours:
            name = repr(caller) if caller else "an unnamed caller"
            detail = f"a call by {name}, which is not a neighbour"
            self._turn_away(context, Rejection.STRANGER, detail)
        return str(caller)

    def _turn_away(self, context: Any, rejection: Rejection, detail: str) -> None:
        self._reject(rejection, f"{detail} ({context.peer()})")
        context.abort(grpc.StatusCode.PERMISSION_DENIED, rejection.value)

    def _parsed(self, request: bytes, context: Any, parse: Callable[[bytes], Any]) -> Any:
        try:
            return parse(request)
        except ValueError as error:
            self._reject(Rejection.GARBLED, f"a request: {error} ({context.peer()})")
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    def _fetch(self, request: bytes, context: Any) -> Iterator[bytes]:
        peer = self._calling_neighbour(context)
        want = self._parsed(request, context, wire.parse)
        with self._lock:
            busy = self._fetching[peer] >= FETCHES
            self._fetching[peer] += not busy
        if busy:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{FETCHES} fetches are open")
        try:
            for message in self._reply(peer, want, context):
                yield message
                self._sent(len(message))
        finally:
            with self._lock:
                self._fetching[peer] -= 1

    def _reply(self, peer: str, want: dict[str, Any], context: Any) -> Iterator[bytes]:
        if want.get("run") != self._ledger.run:
            yield wire.dump({"answer": "other run", "run": self._ledger.run})
            return
        wrong = differences(self._terms(), want.get("terms"))
        if wrong:
            self._reject(Rejection.TERMS, f"a fetch by hub {peer}: {wrong}")
            yield wire.dump({"answer": "other terms", "terms": dict(self._terms())})
            return
        mixing, wait = want.get("mixing"), want.get("wait", 0.0)
        number = isinstance(wait, int | float) and -math.inf < wait < math.inf  # not NaN
        if not isinstance(mixing, int | None) or not number:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"mixing {mixing!r}, wait {wait!r}")
        left = context.time_remaining()
        until = time.monotonic() + min(wait, 0.0 if left is None else left)
        # A caller that has hung up must not hold a thread until its wait is over.
        context.add_callback(self._ledger.wake)
        found = self._ledger.wait_for(mixing, until, context.is_active)
        if isinstance(found, Missing):
            yield wire.dump({"answer": found.value, "latest": self._ledger.latest})
        else:
            yield from self._stream(found)

    def _confirm(self, request: bytes, context: Any) -> bytes:
        peer = self._calling_neighbour(context)
        verdict = self._parsed(request, context, wire.parse_verdict)
        return wire.dump({"ack": self._ledger.record(peer, verdict).value})

    def _answer_status(self, request: bytes, context: Any) -> bytes:
        operator = True
        if self._secure:
            names = self._certificate_names(context)
            operator = operator_name() in names
            if not hubs_named(names) and not operator:
                self._turn_away(context, Rejection.STRANGER, f"a status call by {names}")
        if operator and self._answer_operator is not None:
            return wire.dump(
                self._answer_operator(self._parsed(request or b"{}", context, wire.parse))
            )
        return wire.dump(self._status())


def _credentials(tls: RenewedFiles) -> Any:
    """Return credentials that are those of the files as they are at each new connection.

    gRPC asks for them at every connection, and frees what it had as soon as it is given others,
    also while another thread begins a handshake with it. It is hence given others only when the
    files have been replaced: with new ones for each connection, a flood of connections ends the
    process.
    """

    def current() -> Any:
        ca, certificate, key = tls.read()
        return grpc.ssl_server_certificate_configuration([(key, certificate)], ca)

    first = current()
    given = tls.version

    def renewed() -> Any:
        nonlocal given
        tls.read()
        if tls.version == given:
            return None
        given = tls.version
        return current()

    return grpc.dynamic_ssl_server_credentials(first, renewed, require_client_authentication=True)
