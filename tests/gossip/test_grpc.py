"""Real gRPC servers with real certificates: exchanges, faults, strangers."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import grpc
import numpy as np
import pytest

from mll_flower.deployment.connect import connect, read_status
from mll_flower.deployment.network_file import NetworkFile, example_network, load_network
from mll_flower.gossip import Exchange, PeerSilent, Rejection, Snapshot, mix_with_neighbours, wire
from mll_flower.gossip.grpc_client import GrpcGossip, call, open_channel
from mll_flower.gossip.grpc_server import SERVICE
from mll_flower.gossip.tls import TlsFiles
from tests.support.gossip_hubs import (
    PATH,
    REJECTED_AS,
    RUN,
    Fault,
    FaultyGossip,
    Start,
    averaged,
    exchange_all,
    expected,
    files,
    free_port,
    model,
    snapshot,
)


def check_models(found: dict[str, Exchange], links: tuple[tuple[str, str], ...]) -> None:
    """Every hub has the model that these links give; the averaged model is unchanged."""
    mixed = {h: mix_with_neighbours(snapshot(h), exchange)[0] for h, exchange in found.items()}
    for hub, arrays in mixed.items():
        for name, array in expected(links, hub).items():
            np.testing.assert_allclose(arrays[name], array, atol=1e-12)
    u, before = averaged(mixed), averaged({h: model(h) for h in mixed})
    for name in u:
        np.testing.assert_allclose(u[name], before[name], atol=1e-12)


def publish(hubs: list[FaultyGossip], mixing: int = 1) -> None:
    for hub in hubs:
        hub.publish(snapshot(hub.hub, mixing))


def test_three_hubs_mix_as_the_whole_matrix_does(start: Start) -> None:
    hubs = [start(hub) for hub in "abc"]
    for mixing in (1, 2, 3):
        publish(hubs, mixing)
        found = exchange_all(hubs, mixing)
        check_models(found, PATH)
    for hub in hubs:
        counters = hub.counters
        assert (counters.exchanges, counters.silent, counters.rejected) == (3, 0, {})
        assert counters.bytes_sent > 3 * 120
        assert counters.bytes_received > 3 * 120


def test_what_arrives_is_bit_for_bit_what_was_published(start: Start) -> None:
    arrays = {
        "zero-d": np.array(3.5, np.float32),
        "flag": np.array([True, False]),
        "count": np.array(7, np.int64),
        "half": np.linspace(0, 1, 5).astype(np.float16),
        "columns": np.arange(12.0).reshape(3, 4).T,
        "empty": np.zeros((0, 2), np.float32),
        "bytes": np.arange(3, dtype=np.uint8),
    }
    a, b = start("a"), start("b", "a")
    for hub in (a, b):
        hub.publish(Snapshot(RUN, 1, hub.hub, 1.0, 1, arrays))
    got = exchange_all([a, b])["a"].arrived["b"].arrays
    assert got.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(got[name], array)


def test_a_model_of_20_megabytes_streams(start: Start) -> None:
    rng = np.random.default_rng(0)
    big = {hub: {"w": rng.random(5_000_000, dtype=np.float32)} for hub in "ab"}
    a, b = start("a"), start("b", "a")
    for hub in (a, b):
        hub.publish(snapshot(hub.hub, arrays=big[hub.hub]))
    found = exchange_all([a, b], deadline=60.0)
    np.testing.assert_array_equal(found["a"].arrived["b"].arrays["w"], big["b"]["w"])
    np.testing.assert_array_equal(found["b"].arrived["a"].arrays["w"], big["a"]["w"])
    assert a.counters.bytes_received > 20_000_000


@pytest.mark.parametrize("fault", list(Fault))
def test_a_spoiled_snapshot_costs_only_its_link(start: Start, fault: Fault) -> None:
    hubs = [start(hub) for hub in "abc"]
    publish(hubs)
    hubs[2].fault = fault
    found = exchange_all(hubs)
    check_models(found, (("a", "b"),))
    assert hubs[1].counters.rejected == {REJECTED_AS[fault]: 1}
    assert found["b"].silent["c"].startswith(REJECTED_AS[fault].value)
    assert "refused our snapshot" in found["c"].silent["b"]
    # And it is forgotten at the next mixing.
    hubs[2].fault = None
    publish(hubs, 2)
    check_models(exchange_all(hubs, 2), PATH)


def test_a_model_over_the_limit_is_refused_before_it_is_read(start: Start) -> None:
    large = {"w": np.zeros(100_000)}
    a, b = start("a"), start("b", "a", max_bytes=1000)
    a.publish(snapshot("a", arrays=large))
    with pytest.raises(ValueError, match="raise the limit"):
        b.publish(snapshot("b", arrays=large))
    b.publish(snapshot("b", arrays={"w": np.zeros(1)}))
    found = exchange_all([a, b])
    assert b.counters.rejected == {Rejection.OVERSIZED: 1}
    assert b.counters.bytes_received < 1000
    assert not found["a"].arrived
    assert not found["b"].arrived


def test_another_run_is_turned_down_at_once(start: Start) -> None:
    a, b = start("a"), start("b", "a", run="last-week")
    a.publish(snapshot("a"))
    b.publish(snapshot("b", run="last-week"))
    found = exchange_all([a, b], deadline=60.0)
    assert "last-week" in found["a"].silent["b"]
    assert a.counters.rejected == b.counters.rejected == {Rejection.RUN: 1}


def test_a_link_that_fails_one_way_is_dropped_on_both_ends(
    start: Start, ports: dict[str, int], network: NetworkFile
) -> None:
    a, b = start("a"), start("b")
    lost = {"b": f"127.0.0.1:{free_port()}"}  # b reaches c, c does not reach b
    c = FaultyGossip("c", f"127.0.0.1:{ports['c']}", lost, RUN, tls=files(network.certs, "c"))
    try:
        publish([a, b, c])
        found = exchange_all([a, b, c], deadline=1.5)
    finally:
        c.close()
    check_models(found, (("a", "b"),))
    assert "did not confirm our snapshot" in found["b"].silent["c"]
    assert "UNAVAILABLE" in found["c"].silent["b"]


def test_a_neighbour_that_was_never_started_costs_at_most_the_deadline(start: Start) -> None:
    a, b = start("a"), start("b")
    publish([a, b])
    began = time.monotonic()
    found = exchange_all([a, b], deadline=1.0)
    assert time.monotonic() - began < 3.0
    assert set(found["b"].arrived) == {"a"}
    assert "Connection refused" in found["b"].silent["c"]
    assert b.counters.silent == 1


def test_a_neighbour_that_is_merely_late_is_told_apart(start: Start) -> None:
    a, b = start("a"), start("b")
    publish([a])
    assert a.exchange(1, 1.0).silent == {"b": "has published nothing for it"}
    assert b.counters.rejected == {}


def test_a_neighbour_that_comes_back_is_found_again(start: Start) -> None:
    a, b = start("a"), start("b", "a")
    publish([a, b])
    assert exchange_all([a, b])["a"].arrived
    b.close()
    a.publish(snapshot("a", 2))
    assert "b" in a.exchange(2, 0.8).silent
    b = start("b", "a")
    assert b.latest_mixing() == 2
    assert b.fetch_latest(2.0, like=model("b")).arrived["a"].mixing == 2
    publish([a, b], 3)
    found = exchange_all([a, b], 3)
    assert found["a"].arrived
    assert found["b"].arrived


def test_a_hub_that_fell_behind_is_told_at_once(start: Start) -> None:
    a, b = start("a"), start("b", "a")
    for mixing in (1, 2, 3):
        b.publish(snapshot("b", mixing))
    a.publish(snapshot("a", 1))
    found = a.exchange(1, 60.0)
    assert found.ahead == 3
    a.publish(snapshot("a", 2))
    kept = a.exchange(2, 60.0)  # still on offer, but b will not mix 2 any more
    assert "had ended its mixing" in kept.silent["b"]


def test_catching_up_checks_what_it_gets(start: Start) -> None:
    a, b = start("a"), start("b", "a")
    assert a.fetch_latest(60.0).silent == {"b": "has published nothing for it"}
    publish([b], 5)
    assert not a.fetch_latest(2.0, like={"other": np.zeros(1)}).arrived
    assert a.counters.rejected == {Rejection.KEYS: 1}
    b.fault = Fault.NAN
    assert not a.fetch_latest(2.0).arrived


def test_close_serves_on_for_a_grace_period(start: Start) -> None:
    a, b = start("a"), start("b", "a")
    publish([b])
    closing = threading.Thread(target=b.close, args=(1.5,))
    closing.start()
    assert a.fetch_latest(1.0).arrived["b"].mixing == 1
    closing.join()
    assert not a.fetch_latest(0.5).arrived


def test_close_ends_the_wait_of_those_who_fetch(start: Start) -> None:
    a, b = start("a"), start("b", "a")
    publish([a])
    results: list[Exchange] = []
    waiting = threading.Thread(target=lambda: results.append(a.exchange(1, 2.0)))
    waiting.start()
    time.sleep(0.3)
    b.close()
    waiting.join()
    assert "b" in results[0].silent


def test_a_certificate_of_another_authority_is_refused(start: Start, network: NetworkFile) -> None:
    a, b = start("a"), start("b")
    c = start("c", certs=network.path.parent / "other")
    publish([a, b, c])
    found = exchange_all([a, b, c], deadline=3.0)
    check_models(found, (("a", "b"),))
    assert b.counters.rejected == {Rejection.UNTRUSTED: 1}
    assert "CERTIFICATE_VERIFY_FAILED" in found["b"].silent["c"]


def test_a_hub_that_trusts_us_but_has_a_foreign_certificate_is_refused(
    start: Start, network: NetworkFile
) -> None:
    """It knows the network's CA, so only the server's demand for a certificate stops it."""
    a, b = start("a"), start("b")
    other = files(network.path.parent / "other", "c")
    mixed = TlsFiles(network.certs / "ca.crt", other.certificate, other.key)
    c = start("c", tls=mixed)
    publish([a, b, c])
    found = exchange_all([a, b, c], deadline=3.0)
    check_models(found, (("a", "b"),))
    assert "refuses this hub's certificate" in found["c"].silent["b"]


def test_a_hub_at_the_wrong_address_is_not_taken_for_another(
    start: Start, ports: dict[str, int]
) -> None:
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


def raw(start_as: TlsFiles, hub: FaultyGossip, method: str, request: bytes, claim: str) -> None:
    channel = open_channel(f"127.0.0.1:{hub.port}", hub.hub, start_as)
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
        raw(tls, a, method, request, claim="b")
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
        raw(files(network.certs, "b"), a, method, request_bytes, claim="b")
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert a.counters.rejected == {Rejection.GARBLED: 1}
    assert exchange_all([a, b])["a"].arrived


def test_a_request_over_the_limit_is_cut_off(start: Start, network: NetworkFile) -> None:
    a = start("a")
    with pytest.raises(grpc.RpcError) as error:
        raw(files(network.certs, "b"), a, "Confirm", b" " * 200_000, claim="b")
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_neighbour_cannot_take_all_threads(start: Start, network: NetworkFile) -> None:
    a, b = start("a"), start("b", "a")
    channel = open_channel(f"127.0.0.1:{a.port}", "a", files(network.certs, "b"))
    request = wire.dump({"run": RUN, "mixing": 9, "wait": 60})
    fetch = channel.unary_stream(f"/{SERVICE}/Fetch")
    calls = [fetch(request, timeout=60, metadata=(("mll-hub", "b"),)) for _ in range(20)]
    refused = [call.code() for call in calls if _ended(call)]
    assert refused == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 18
    assert b.peer_status(5.0)["a"].reachable
    for open_call in calls:
        open_call.cancel()
    channel.close()
    publish([a, b])
    assert exchange_all([a, b])["a"].arrived  # the cancelled calls have freed their places


def _ended(call: grpc.Call) -> bool:
    end = time.monotonic() + 0.3
    while time.monotonic() < end and call.is_active():
        time.sleep(0.02)
    return not call.is_active()


def test_without_tls_only_in_so_many_words(network: NetworkFile) -> None:
    with pytest.raises(ValueError, match="insecure=True"):
        GrpcGossip("a", "127.0.0.1:0", {}, RUN)
    with pytest.raises(ValueError, match="not both"):
        GrpcGossip("a", "127.0.0.1:0", {}, RUN, tls=files(network.certs, "a"), insecure=True)


def test_insecure_hubs_mix_too_and_do_not_reach_secure_ones(start: Start) -> None:
    a, b = start("a", tls=None, insecure=True), start("b", "a", tls=None, insecure=True)
    publish([a, b])
    assert exchange_all([a, b])["a"].arrived
    b.close()
    b = start("b", "a")
    publish([a, b], 2)
    found = exchange_all([a, b], 2, deadline=1.0)
    assert not found["a"].arrived
    assert not found["b"].arrived


def test_a_taken_port_and_missing_files_are_named(
    start: Start, ports: dict[str, int], network: NetworkFile, tmp_path: Path
) -> None:
    start("a")
    with pytest.raises(OSError, match=f"{ports['a']}.*taken"):
        start("a")
    with pytest.raises(FileNotFoundError, match="mll-flower certs"):
        start("b", certs=tmp_path)


def test_status_for_the_operator_and_for_any_hub(tmp_path: Path, network: NetworkFile) -> None:
    text = example_network(hubs=3, workers=1, base_port=free_port() - 10)
    (tmp_path / "n.toml").write_text(text.replace('"certs"', f'"{network.certs}"'))
    here = load_network(tmp_path / "n.toml")
    with pytest.raises(PeerSilent, match="UNAVAILABLE"):
        read_status(here, "b")
    b = connect(here, "b")
    try:
        b.set_status({"round": 3, "loss": 0.25, "workers": 2})
        status = read_status(here, "b")
        assert (status["hub"], status["run"], status["round"]) == ("b", here.name, 3)
        channel = open_channel(here.hub("b").gossip, "b", here.hub("c").tls)
        assert call(channel, "Status", b"", 2.0)["loss"] == 0.25
        assert status["neighbours"] == {"a": "not met yet", "c": "not met yet"}
        channel.close()
    finally:
        b.close()
