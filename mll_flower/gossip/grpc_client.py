"""Gossip over the network: gRPC with mutual TLS.

`GrpcGossip` carries the protocol of `mll_flower.gossip.protocol`: it calls the neighbours' servers
and runs this hub's own one (`mll_flower.gossip.grpc_server`). `open_channel` and `call` also serve
an operator who asks a hub for its status.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Any

import grpc

from mll_flower.gossip import wire
from mll_flower.gossip.agreement import Terms, differences
from mll_flower.gossip.grpc_server import SERVICE, GossipServer
from mll_flower.gossip.ledger import Ack, Missing, Published, Verdict
from mll_flower.gossip.protocol import RETRY_PAUSE, Gossip
from mll_flower.gossip.results import PeerSilent
from mll_flower.gossip.snapshot import RejectedSnapshot, Rejection, Snapshot
from mll_flower.gossip.tls import RenewedFiles, TlsFiles, hub_name

MAX_BYTES = 2 << 30
"""Largest model accepted, in bytes, unless another limit is given."""

_OPTIONS = [
    ("grpc.max_receive_message_length", wire.CHUNK + wire.SMALL),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # Try again within a second to connect to a hub that was unreachable.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Despite its name, this is the time that one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
]

# What gRPC writes into its error when a certificate is refused.
_UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "Hostname Verification", "Peer name", "TLSV1_ALERT")


class GrpcGossip(Gossip):
    """Gossip over gRPC: serves this hub's snapshots and fetches the neighbours'.

    With TLS a hub is known by its certificate (see `mll_flower.gossip.tls`): the network's CA
    must have signed it, a caller must be a neighbour, and the hub that is called must be the
    one expected at that address.

    Parameters
    ----------
    hub : str
        Id of this hub.
    listen : str
        ``host:port`` on which it serves.
    neighbours : Mapping[str, str]
        Gossip address (``host:port``) of each neighbour, by id.
    run : str
        Name of the run; the same at every hub.
    tls : TlsFiles | None
        This hub's certificate, its key, and the CA. Without them `insecure` must be True.
    insecure : bool
        Use no encryption, and believe any caller's name. Only for hubs that all run on your
        own machine.
    max_bytes : int
        Largest model accepted, in bytes.
    keep : int
        How many snapshots stay on offer.
    terms, pace
        See `Gossip`.
    """

    def __init__(
        self,
        hub: str,
        listen: str,
        neighbours: Mapping[str, str],
        run: str,
        *,
        tls: TlsFiles | None = None,
        insecure: bool = False,
        max_bytes: int = MAX_BYTES,
        keep: int = 2,
        terms: Terms | None = None,
        pace: float = 0.0,
    ) -> None:
        if (tls is None) != insecure:
            raise ValueError(
                f"tls={tls}, insecure={insecure}: give either the certificate files or, for "
                "connections without protection, insecure=True; not both"
            )
        super().__init__(hub, neighbours, run, keep, terms, pace)
        self._max_bytes = max_bytes
        self._tls = None if tls is None else RenewedFiles(tls)
        self._links = {p: _Link(a, p, self._tls) for p, a in neighbours.items()}
        self._server = GossipServer(
            self._ledger,
            listen,
            self.neighbours,
            self._tls,
            self.status,
            self._reject,
            lambda n: self._count("sent", n),
            self._stream,
            lambda: self.terms,
            self.answer_operator,
        )

    @property
    def port(self) -> int:
        """The port it serves on: that of `listen`, or the free port chosen if that is 0."""
        return self._server.port

    def publish(self, snapshot: Snapshot) -> None:
        """Offer this hub's snapshot of a mixing to the neighbours."""
        body = wire.dump_body(snapshot)
        if len(body) > self._max_bytes:
            raise ValueError(
                f"the model has {len(body)} bytes, more than max_bytes={self._max_bytes}; raise "
                "the limit at every hub"
            )
        self._publish(snapshot, body)

    def close(self, grace: float = 0.0) -> None:
        """Serve for `grace` more seconds, then end all calls and free the port."""
        time.sleep(max(0.0, grace))
        self._ledger.shut()
        self._server.stop()
        for link in self._links.values():
            link.close()

    def _largest(self) -> int:
        # All models of a run have the same size: no neighbour has a reason to send more.
        known = self._max_bytes if self._like is None else wire.largest_body(self._like)
        return min(self._max_bytes, known)

    def _stream(self, published: Published) -> Iterator[bytes]:
        """Cut a snapshot into messages; a hook by which tests send faulty ones."""
        return wire.messages(published)

    def _fetch(self, peer: str, mixing: int | None, until: float) -> Published:
        wait = max(0.0, until - time.monotonic())
        # The server stops waiting a little earlier than this side: a neighbour that has not
        # published yet can then say so, and is not taken for one that does not answer.
        server_wait = wait - min(2 * RETRY_PAUSE, wait / 4)
        request = wire.dump(
            {"run": self.run, "mixing": mixing, "wait": server_wait, "terms": dict(self.terms)}
        )
        call = (
            self._links[peer]
            .channel()
            .unary_stream(f"/{SERVICE}/Fetch")(request, timeout=wait, metadata=self._metadata())
        )
        try:
            header = self._read_header(next(call), mixing)
            wire.check_header(header, self._largest())
            return wire.read_snapshot(header, self._counted(call))
        except StopIteration:
            raise PeerSilent("answered a fetch with an empty stream") from None
        except grpc.RpcError as error:
            raise _gossip_error(error) from error
        finally:
            call.cancel()

    def _read_header(self, message: bytes, mixing: int | None) -> dict[str, Any]:
        """Parse the first message of a reply; raise if no snapshot follows it."""
        self._count("received", len(message))
        try:
            header = wire.parse(message)
        except ValueError as error:
            raise RejectedSnapshot(Rejection.GARBLED, f"header: {error}") from error
        answer = header.get("answer")
        if answer == "other run":
            raise RejectedSnapshot(Rejection.RUN, f"it is in run {header.get('run')!r}")
        if answer == "other terms":
            wrong = differences(self.terms, header.get("terms"))
            raise RejectedSnapshot(Rejection.TERMS, wrong or "it does not say which")
        if answer in list(Missing):
            latest = header.get("latest")
            newest = latest if isinstance(latest, int) else None
            raise PeerSilent.missing(Missing(answer), mixing, newest)
        return header

    def _counted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self._count("received", len(chunk))
            yield chunk

    def _deliver(self, peer: str, verdict: Verdict, until: float) -> Ack:
        answer = self._call(peer, "Confirm", wire.dump_verdict(verdict), until).get("ack")
        try:
            return Ack(str(answer))
        except ValueError:
            raise PeerSilent(f"answered a confirmation with {answer!r}", final=True) from None

    def _ask_status(self, peer: str, until: float) -> dict[str, Any]:
        return self._call(peer, "Status", b"{}", until)

    def _call(self, peer: str, method: str, request: bytes, until: float) -> dict[str, Any]:
        channel, left = self._links[peer].channel(), max(0.0, until - time.monotonic())
        return call(channel, method, request, left, self._metadata())

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("mll-hub", self.hub),)


class _Link:
    """The channel to a neighbour; a new one when this hub's certificate has been renewed."""

    def __init__(self, address: str, peer: str, tls: RenewedFiles | None) -> None:
        self._address, self._peer, self._tls = address, peer, tls
        self._lock, self._version = Lock(), 0
        # Those before the last may still carry calls; certificates are renewed rarely.
        self._channels = [open_channel(address, peer, tls)]

    def channel(self) -> Any:
        with self._lock:
            if self._tls is not None:
                self._tls.read()
                if self._tls.version != self._version:
                    self._version = self._tls.version
                    self._channels.append(open_channel(self._address, self._peer, self._tls))
            return self._channels[-1]

    def close(self) -> None:
        with self._lock:
            for channel in self._channels:
                channel.close()


def open_channel(address: str, hub: str, tls: TlsFiles | RenewedFiles | None) -> Any:
    """Return a channel to a hub; it connects when first used.

    Parameters
    ----------
    address : str
        ``host:port`` of the hub.
    hub : str
        Id of the hub that is expected there; with TLS no other hub is accepted.
    tls : TlsFiles | RenewedFiles | None
        The caller's certificate, its key, and the CA; None for no encryption.
    """
    if tls is None:
        return grpc.insecure_channel(address, options=_OPTIONS)
    ca, certificate, key = tls.read()
    credentials = grpc.ssl_channel_credentials(ca, key, certificate)
    name = ("grpc.ssl_target_name_override", hub_name(hub))
    return grpc.secure_channel(address, credentials, options=[*_OPTIONS, name])


def call(
    channel: Any,
    method: str,
    request: bytes,
    timeout: float,
    metadata: tuple[tuple[str, str], ...] = (),
) -> dict[str, Any]:
    """Make one small call and return its JSON answer.

    Parameters
    ----------
    channel : grpc.Channel
        From `open_channel`.
    method : str
        Name of the call, such as ``Status``.
    request : bytes
        The request.
    timeout : float
        Seconds to wait for the answer.
    metadata : tuple
        Metadata of the call.

    Raises
    ------
    PeerSilent
        If the answer is missing or not JSON.
    RejectedSnapshot
        If a certificate is refused.
    """
    try:
        answer = channel.unary_unary(f"/{SERVICE}/{method}")(
            request, timeout=timeout, metadata=metadata
        )
        return wire.parse(answer)
    except grpc.RpcError as error:
        raise _gossip_error(error) from error
    except ValueError as error:
        raise PeerSilent(f"answered {method} with something other than JSON: {error}") from error


def _gossip_error(error: Any) -> PeerSilent | RejectedSnapshot:
    """Return the gossip exception for a gRPC error: why, and whether a retry may help."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE and any(mark in details for mark in _UNTRUSTED):
        return RejectedSnapshot(Rejection.UNTRUSTED, details)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return PeerSilent("no answer before the deadline", final=True)
    if "Socket closed" in details:
        # With TLS 1.3 a client sees only this when a server refuses its certificate.
        details += " (it stopped, or it refuses this hub's certificate)"
    return PeerSilent(
        f"{code.name}: {details}",
        final=code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT),
    )
