"""The gRPC server of a hub: whom it lets in, garbled requests, status, insecure mode."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import grpc
import pytest

from mll_flower.deployment.network_file import NetworkFile
from mll_flower.gossip import PeerSilent, Rejection, Snapshot, grpc_server, wire
from mll_flower.gossip.grpc_client import GrpcGossip, call, open_channel
from mll_flower.gossip.grpc_server import SERVICE
from mll_flower.gossip.tls import TlsFiles
from tests.support.flood import is_closed
from tests.support.gossip_hubs import (
    RUN,
    FaultyGossip,
    Start,
    check_models,
    exchange_all,
    model,
    publish,
    snapshot,
    tls_files,
)


def test_a_certificate_of_another_authority_is_refused(start: Start, network: NetworkFile) -> None:
    a, b = start("a"), start("b")
    c = start("c", certs=network.path.parent / "other")
    publish([a, b, c])
    found = exchange_all([a, b, c], deadline=3.0)
    check_models(found, (("a", "b"),))
    assert b.counters.rejected == {Rejection.UNTRUSTED: 1}
    assert "CERTIFICATE_VERIFY_FAILED" in found["b"].silent["c"]


def test_a_caller_with_a_certificate_of_another_authority_is_refused(
    start: Start, network: NetworkFile
) -> None:
    """It trusts the network's CA, so only the server's check of its certificate stops it."""
    a, b = start("a"), start("b")
    other = tls_files(network.path.parent / "other", "c")
    mixed = TlsFiles(network.certs / "ca.crt", other.certificate, other.key)
    c = start("c", tls=mixed)
    publish([a, b, c])
    found = exchange_all([a, b, c], deadline=3.0)
    check_models(found, (("a", "b"),))
    assert "refuses this hub's certificate" in found["c"].silent["b"]


def test_a_hub_at_the_address_of_another_is_refused(start: Start, ports: dict[str, int]) -> None:
    a, d = start("a"), start("d", "a")
    ports["b"] = ports["d"]
    a.close()
    a = start("a")
    a.publish(snapshot("a"))
    d.publish(Snapshot(RUN, 1, "d", 1.0, 1, model("b")))
    assert not a.exchange(1, 3.0).arrived
    assert a.counters.rejected == {Rejection.UNTRUSTED: 1}


def test_a_hub_that_is_no_neighbour_is_turned_away(start: Start) -> None:
    a, b = start("a"), start("b", "a")
    d = start("d", "a")
    publish([a, b])
    d.publish(Snapshot(RUN, 1, "d", 9.0, 1, model("b")))
    found = exchange_all([a, b, d])
    assert "PERMISSION_DENIED" in found["d"].silent["a"]
    assert set(found["a"].arrived) == {"b"}
    assert set(a.counters.rejected) == {Rejection.STRANGER}


def call_raw(tls: TlsFiles, hub: FaultyGossip, method: str, request: bytes, claim: str) -> None:
    """Call a hub's server with any bytes, under a claimed name."""
    channel = open_channel(f"127.0.0.1:{hub.port}", hub.hub, tls)
    metadata = (("mll-hub", claim),)
    try:
        if method == "Fetch":
            fetch = channel.unary_stream(f"/{SERVICE}/Fetch")
            list(fetch(request, timeout=5, metadata=metadata))
        else:
            channel.unary_unary(f"/{SERVICE}/{method}")(request, timeout=5, metadata=metadata)
    finally:
        channel.close()


@pytest.mark.parametrize("method", ["Fetch", "Confirm"])
@pytest.mark.parametrize(
    ("caller", "rejection"), [("d", Rejection.IMPOSTOR), ("operator", Rejection.STRANGER)]
)
def test_the_certificate_counts_and_not_the_claim(
    start: Start, network: NetworkFile, method: str, caller: str, rejection: Rejection
) -> None:
    a = start("a")
    publish([a])
    stem = caller if caller == "operator" else f"hub-{caller}"
    tls = TlsFiles(*(network.certs / f for f in ("ca.crt", f"{stem}.crt", f"{stem}.key")))
    request = wire.dump({"run": RUN, "mixing": 1, "token": "", "accepted": True})
    with pytest.raises(grpc.RpcError) as error:
        call_raw(tls, a, method, request, claim="b")
    assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert a.counters.rejected == {rejection: 1}
    assert a.counters.bytes_sent == 0


@pytest.mark.parametrize("method", ["Fetch", "Confirm"])
@pytest.mark.parametrize("request_bytes", [b"\x80\x04.", b"[1]", b"", b"[" * 50_000])
def test_a_garbled_request_is_counted_and_harmless(
    start: Start, network: NetworkFile, method: str, request_bytes: bytes
) -> None:
    a, b = start("a"), start("b", "a")
    publish([a, b])
    with pytest.raises(grpc.RpcError) as error:
        call_raw(tls_files(network.certs, "b"), a, method, request_bytes, claim="b")
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert a.counters.rejected == {Rejection.GARBLED: 1}
    assert exchange_all([a, b])["a"].arrived


def test_a_request_over_the_limit_is_cut_off(start: Start, network: NetworkFile) -> None:
    a = start("a")
    with pytest.raises(grpc.RpcError) as error:
        call_raw(tls_files(network.certs, "b"), a, "Confirm", b" " * 200_000, claim="b")
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_neighbour_cannot_occupy_all_threads(start: Start, network: NetworkFile) -> None:
    a, b = start("a"), start("b", "a")
    channel = open_channel(f"127.0.0.1:{a.port}", "a", tls_files(network.certs, "b"))
    request = wire.dump({"run": RUN, "mixing": 9, "wait": 60})
    fetch = channel.unary_stream(f"/{SERVICE}/Fetch")
    calls = [fetch(request, timeout=60, metadata=(("mll-hub", "b"),)) for _ in range(20)]
    refused = [call.code() for call in calls if ended(call)]
    assert refused == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 18
    assert b.peer_status(5.0)["a"].reachable
    for open_call in calls:
        open_call.cancel()
    channel.close()
    publish([a, b])
    assert exchange_all([a, b])["a"].arrived  # the cancelled calls have freed their places


def ended(call: grpc.Call) -> bool:
    """Return whether a call ends within a moment."""
    end = time.monotonic() + 0.3
    while time.monotonic() < end and call.is_active():
        time.sleep(0.02)
    return not call.is_active()


def test_no_tls_must_be_asked_for(network: NetworkFile) -> None:
    with pytest.raises(ValueError, match="insecure=True"):
        GrpcGossip("a", "127.0.0.1:0", {}, RUN)
    with pytest.raises(ValueError, match="not both"):
        GrpcGossip("a", "127.0.0.1:0", {}, RUN, tls=tls_files(network.certs, "a"), insecure=True)


def test_insecure_hubs_mix_but_cannot_reach_secure_ones(start: Start) -> None:
    a, b = start("a", tls=None, insecure=True), start("b", "a", tls=None, insecure=True)
    publish([a, b])
    assert exchange_all([a, b])["a"].arrived
    b.close()
    b = start("b", "a")
    publish([a, b], 2)
    found = exchange_all([a, b], 2, deadline=1.0)
    assert not found["a"].arrived
    assert not found["b"].arrived


def test_errors_name_a_taken_port_and_missing_files(
    start: Start, ports: dict[str, int], network: NetworkFile, tmp_path: Path
) -> None:
    start("a")
    with pytest.raises(OSError, match=f"{ports['a']}.*taken"):
        start("a")
    with pytest.raises(FileNotFoundError, match="mll-flower certs"):
        start("b", certs=tmp_path)


def test_the_operator_and_every_hub_may_ask_for_the_status(
    start: Start, network: NetworkFile
) -> None:
    b = start("b")
    b.set_status({"round": 3, "loss": 0.25, "workers": 2})
    operator = TlsFiles(*(network.certs / f for f in ("ca.crt", "operator.crt", "operator.key")))
    for tls in (operator, tls_files(network.certs, "d")):
        channel = open_channel(f"127.0.0.1:{b.port}", "b", tls)
        status = call(channel, "Status", b"", 5.0)
        channel.close()
        assert (status["hub"], status["run"], status["round"], status["loss"]) == (
            "b",
            RUN,
            3,
            0.25,
        )
        assert status["neighbours"] == {"a": "not met yet", "c": "not met yet"}


def test_a_status_call_without_a_server_is_silence(
    ports: dict[str, int], network: NetworkFile
) -> None:
    channel = open_channel(f"127.0.0.1:{ports['b']}", "b", tls_files(network.certs, "a"))
    with pytest.raises(PeerSilent, match="UNAVAILABLE"):
        call(channel, "Status", b"", 5.0)
    channel.close()


def test_idle_connections_neither_fill_the_process_nor_stay(
    start: Start, ports: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "MAX_CONNECTIONS", 20)
    monkeypatch.setattr(grpc_server, "HANDSHAKE_SECONDS", 2.0)
    a, b = start("a"), start("b", "a")
    publish([a, b])
    check_models(exchange_all([a, b]), (("a", "b"),))
    idle = [socket.create_connection(("127.0.0.1", ports["a"])) for _ in range(60)]
    try:
        time.sleep(0.5)
        assert sum(is_closed(connection) for connection in idle) >= 60 - 20
        # Neighbours that are connected stay so.
        publish([a, b], mixing=2)
        check_models(exchange_all([a, b], mixing=2), (("a", "b"),))
        end = time.monotonic() + 10.0
        while not all(is_closed(connection) for connection in idle):
            assert time.monotonic() < end
            time.sleep(0.1)
    finally:
        for connection in idle:
            connection.close()
