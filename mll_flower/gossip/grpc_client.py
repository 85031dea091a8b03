"""Gossip over the network: gRPC with mutual TLS between the hubs of a network file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import grpc

from mll_flower.gossip import wire
from mll_flower.gossip.grpc_server import SERVICE, GossipServer
from mll_flower.gossip.ledger import Ack, Missing, Published, Verdict
from mll_flower.gossip.protocol import RETRY_PAUSE, Gossip
from mll_flower.gossip.results import PeerSilent
from mll_flower.gossip.snapshot import RejectedSnapshot, Rejection, Snapshot
from mll_flower.gossip.tls import TlsFiles, hub_name

MAX_BYTES = 2 << 30

_OPTIONS = [
    ("grpc.max_receive_message_length", wire.CHUNK + wire.SMALL),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # A peer that comes back is found again within a second.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # In spite of its name: the time that one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
]

_UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "Hostname Verification", "Peer name", "TLSV1_ALERT")


class GrpcGossip(Gossip):
    """Gossip over gRPC: serves this hub's snapshots and fetches the neighbours'.

    With TLS a hub is known by its certificate (see `mll_flower.gossip.identity`): the
    network's CA must have signed it, a caller must be a neighbour, and the hub called must be
    the one expected at that address.

    Parameters
    ----------
    hub : str
        Id of this hub.
    listen : str
        ``host:port`` where it serves.
    neighbours : Mapping[str, str]
        Gossip address (``host:port``) of each neighbour, by id.
    run : str
        Name of the run; the same at every hub.
    tls : TlsFiles | None
        This hub's certificate, its key, and the CA.
    insecure : bool
        True, and no `tls`: no encryption, and a caller is who it claims to be. For a
        machine of one's own only.
    max_bytes : int
        Largest model accepted, in bytes.
    keep : int
        How many snapshots stay on offer.
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
    ) -> None:
        if (tls is None) != insecure:
            raise ValueError(
                f"tls={tls}, insecure={insecure}: give the certificate files, or ask for a "
                "connection without protection by insecure=True, not both"
            )
        super().__init__(hub, neighbours, run, keep)
        self._max_bytes = max_bytes
        self._channels = {p: open_channel(a, p, tls) for p, a in neighbours.items()}
        self._server = GossipServer(
            self._ledger,
            listen,
            self.neighbours,
            tls,
            self.status,
            self._reject,
            lambda n: self._count("sent", n),
            self._stream,
        )

    @property
    def port(self) -> int:
        """The port it serves on (that of `listen`, or the one found if that was 0)."""
        return self._server.port

    def publish(self, snapshot: Snapshot) -> None:
        """Offer this hub's snapshot of a mixing to the neighbours."""
        body = wire.dump_body(snapshot)
        if len(body) > self._max_bytes:
            raise ValueError(
                f"the model has {len(body)} bytes, more than max_bytes={self._max_bytes}; raise "
                "the limit at every hub"
            )
        self._ledger.publish(snapshot, body)

    def close(self, grace: float = 0.0) -> None:
        """Serve for `grace` seconds more, then end all calls and free the port."""
        time.sleep(max(0.0, grace))
        self._ledger.shut()
        self._server.stop()
        for channel in self._channels.values():
            channel.close()

    def _stream(self, published: Published) -> Iterator[bytes]:
        return wire.messages(published)

    def _fetch(self, peer: str, mixing: int | None, until: float) -> Published:
        wait = max(0.0, until - time.monotonic())
        # The server stops waiting a little earlier than we do, so that a neighbour that is
        # merely late is told apart from one that does not answer.
        patience = wait - min(2 * RETRY_PAUSE, wait / 4)
        request = wire.dump({"run": self.run, "mixing": mixing, "wait": patience})
        call = self._channels[peer].unary_stream(f"/{SERVICE}/Fetch")(
            request, timeout=wait, metadata=self._metadata()
        )
        try:
            header = self._header(next(call), mixing)
            wire.check_header(header, self._max_bytes)
            return wire.read_snapshot(header, self._counted(call))
        except StopIteration:
            raise PeerSilent("answered with nothing") from None
        except grpc.RpcError as error:
            raise silence(error) from error
        finally:
            call.cancel()

    def _header(self, message: bytes, mixing: int | None) -> dict[str, Any]:
        self._count("received", len(message))
        try:
            header = wire.parse(message)
        except ValueError as error:
            raise RejectedSnapshot(Rejection.GARBLED, f"header: {error}") from error
        answer = header.get("answer")
        if answer == "other run":
            raise RejectedSnapshot(Rejection.RUN, f"it is in run {header.get('run')!r}")
        if answer == Missing.GONE:
            latest = header.get("latest")
            ahead = latest if isinstance(latest, int) else None
            raise PeerSilent(f"is past mixing {mixing}, at {latest}", final=True, ahead=ahead)
        if answer == Missing.NOT_YET:
            raise PeerSilent("has published nothing for it", final=mixing is None)
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

    def _ask(self, peer: str, until: float) -> dict[str, Any]:
        return self._call(peer, "Status", b"{}", until)

    def _call(self, peer: str, method: str, request: bytes, until: float) -> dict[str, Any]:
        channel, left = self._channels[peer], max(0.0, until - time.monotonic())
        return call(channel, method, request, left, self._metadata())

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("mll-hub", self.hub),)


def open_channel(address: str, hub: str, tls: TlsFiles | None) -> Any:
    """A channel to the hub that is expected at an address; it connects when first used."""
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
    """One small call and its JSON answer; `PeerSilent` if there is none."""
    try:
        answer = channel.unary_unary(f"/{SERVICE}/{method}")(
            request, timeout=timeout, metadata=metadata
        )
        return wire.parse(answer)
    except grpc.RpcError as error:
        raise silence(error) from error
    except ValueError as error:
        raise PeerSilent(f"answered {method} with no JSON: {error}") from error


def silence(error: Any) -> PeerSilent | RejectedSnapshot:
    """Say in words why a call failed, and whether it is worth another try."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE and any(mark in details for mark in _UNTRUSTED):
        return RejectedSnapshot(Rejection.UNTRUSTED, details)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return PeerSilent("no answer before the deadline", final=True)
    if "Socket closed" in details:
        # With TLS 1.3 a server's refusal looks like this to the client.
        details += " (it stopped, or it refuses this hub's certificate)"
    return PeerSilent(
        f"{code.name}: {details}",
        final=code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT),
    )
