"""Gossip over real gRPC servers with real certificates: exchanges, faults, catching up."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from mll_flower.deployment.network_file import NetworkFile
from mll_flower.gossip import Exchange, Rejection, Snapshot
from mll_flower.processes.flower_environment import free_port
from tests.support.gossip_hubs import (
    PATH,
    REJECTED_AS,
    RUN,
    Fault,
    FaultyGossip,
    Start,
    check_models,
    exchange_all,
    model,
    publish,
    snapshot,
    tls_files,
)


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
def test_a_faulty_snapshot_disables_only_its_link(start: Start, fault: Fault) -> None:
    hubs = [start(hub) for hub in "abc"]
    publish(hubs)
    hubs[2].fault = fault
    found = exchange_all(hubs)
    check_models(found, (("a", "b"),))
    assert hubs[1].counters.rejected == {REJECTED_AS[fault]: 1}
    assert found["b"].silent["c"].startswith(REJECTED_AS[fault].value)
    assert "refused our snapshot" in found["c"].silent["b"]
    # At the next mixing the link is used again.
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


def test_a_hub_of_another_run_is_refused_at_once(start: Start) -> None:
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
    c = FaultyGossip("c", f"127.0.0.1:{ports['c']}", lost, RUN, tls=tls_files(network.certs, "c"))
    try:
        publish([a, b, c])
        found = exchange_all([a, b, c], deadline=1.5)
    finally:
        c.close()
    check_models(found, (("a", "b"),))
    assert "did not confirm our snapshot" in found["b"].silent["c"]
    assert "UNAVAILABLE" in found["c"].silent["b"]


def test_a_neighbour_that_was_never_started_delays_at_most_to_the_deadline(start: Start) -> None:
    a, b = start("a"), start("b")
    publish([a, b])
    began = time.monotonic()
    found = exchange_all([a, b], deadline=1.0)
    assert time.monotonic() - began < 3.0
    assert set(found["b"].arrived) == {"a"}
    assert "Connection refused" in found["b"].silent["c"]
    assert b.counters.silent == 1


def test_a_neighbour_that_is_only_late_is_named_as_such(start: Start) -> None:
    a, b = start("a"), start("b")
    publish([a])
    assert a.exchange(1, 1.0).silent == {"b": "has not published mixing 1"}
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


def test_a_hub_that_fell_behind_learns_it_at_once(start: Start) -> None:
    a, b = start("a"), start("b", "a")
    for mixing in (1, 2, 3):
        b.publish(snapshot("b", mixing))
    a.publish(snapshot("a", 1))
    found = a.exchange(1, 60.0)
    assert found.ahead == 3
    a.publish(snapshot("a", 2))
    old = a.exchange(2, 60.0)  # b still offers it, but is past its own mixing 2
    assert "had ended its mixing" in old.silent["b"]


def test_catching_up_checks_the_snapshots(start: Start) -> None:
    a, b = start("a"), start("b", "a")
    assert a.fetch_latest(60.0).silent == {"b": "has published nothing yet"}
    publish([b], 5)
    assert not a.fetch_latest(2.0, like={"other": np.zeros(1)}).arrived
    assert a.counters.rejected == {Rejection.KEYS: 1}
    b.fault = Fault.NAN
    assert not a.fetch_latest(2.0).arrived


def test_close_first_serves_for_a_grace_period(start: Start) -> None:
    a, b = start("a"), start("b", "a")
    publish([b])
    closing = threading.Thread(target=b.close, args=(1.5,))
    closing.start()
    assert a.fetch_latest(1.0).arrived["b"].mixing == 1
    closing.join()
    assert not a.fetch_latest(0.5).arrived


def test_close_ends_the_waits_of_neighbours(start: Start) -> None:
    a, b = start("a"), start("b", "a")
    publish([a])
    results: list[Exchange] = []
    waiting = threading.Thread(target=lambda: results.append(a.exchange(1, 2.0)))
    waiting.start()
    time.sleep(0.3)
    b.close()
    waiting.join()
    assert "b" in results[0].silent
