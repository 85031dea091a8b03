"""The protocol between hubs of one process: silence, refusals, catching up, agreement."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mll_flower.gossip import (
    Exchange,
    InProcessBoard,
    InProcessGossip,
    Rejection,
    mix_with_neighbours,
)
from mll_flower.gossip.ledger import Ack, Verdict
from mll_flower.gossip.results import PeerSilent
from tests.support.gossip_hubs import (
    PATH,
    REJECTED_AS,
    RUN,
    SNAPSHOT_FAULTS,
    Fault,
    check_models,
    exchange_all,
    expected,
    model,
    publish,
    snapshot,
    spoil,
)


class Trio:
    """Hubs a - b - c on one board."""

    def __init__(self) -> None:
        self.board = InProcessBoard()
        neighbours = {"a": "b", "b": "ac", "c": "b"}
        self.hubs = {h: InProcessGossip(self.board, h, n, RUN) for h, n in neighbours.items()}

    def publish(self, mixing: int = 1) -> None:
        publish(list(self.hubs.values()), mixing)

    def check(self, links: tuple[tuple[str, str], ...], mixing: int = 1, deadline: float = 5.0):
        """Exchange; each hub must get the model that these links give, and u must not change."""
        found = exchange_all(list(self.hubs.values()), mixing, deadline)
        check_models(found, links)
        return found


@pytest.fixture
def trio() -> Iterator[Trio]:
    trio = Trio()
    yield trio
    for hub in trio.hubs.values():
        hub.close()


def test_all_hubs_mix(trio: Trio) -> None:
    trio.publish()
    found = trio.check(PATH)
    assert all(not exchange.silent for exchange in found.values())
    assert trio.hubs["b"].counters.exchanges == 1
    assert trio.hubs["b"].status()["neighbours"] == {"a": "mixed", "c": "mixed"}


def test_a_hub_waits_for_one_that_publishes_later(trio: Trio) -> None:
    trio.hubs["a"].publish(snapshot("a"))
    trio.hubs["c"].publish(snapshot("c"))
    timer = threading.Timer(0.5, lambda: trio.hubs["b"].publish(snapshot("b")))
    timer.start()
    results = {}
    others = [trio.hubs["a"], trio.hubs["c"]]
    thread = threading.Thread(target=lambda: results.update(exchange_all(others)))
    thread.start()
    timer.join()
    results["b"] = trio.hubs["b"].exchange(1, 5.0)
    thread.join()
    assert {h: set(e.arrived) for h, e in results.items()} == {
        "a": {"b"},
        "b": {"a", "c"},
        "c": {"b"},
    }


@pytest.mark.parametrize("caller", ["b", "c"])
def test_a_link_cut_one_way_is_dropped_on_both_ends(trio: Trio, caller: str) -> None:
    trio.publish()
    trio.board.cut(caller, "b" if caller == "c" else "c")
    found = trio.check((("a", "b"),), deadline=1.0)
    assert set(found["b"].silent) == {"c"}
    assert set(found["c"].silent) == {"b"}
    trio.board.mend(caller, "b" if caller == "c" else "c")
    trio.publish(2)
    trio.check(PATH, mixing=2)


@pytest.mark.parametrize(
    "fault",
    [f for f in SNAPSHOT_FAULTS if f not in (Fault.OTHER_RUN, Fault.REPLAYED, Fault.OTHER_HUB)],
)
def test_a_faulty_snapshot_is_refused_and_harmless(trio: Trio, fault: Fault) -> None:
    for name in "ab":
        trio.hubs[name].publish(snapshot(name))
    trio.hubs["c"].publish(spoil(snapshot("c"), fault))
    found = exchange_all(list(trio.hubs.values()), 1, 5.0)
    mixed, _ = mix_with_neighbours(snapshot("b"), found["b"])
    for name, array in expected((("a", "b"),), "b").items():
        np.testing.assert_allclose(mixed[name], array, atol=1e-12)
    assert trio.hubs["b"].counters.rejected == {REJECTED_AS[fault]: 1}
    assert set(found["c"].silent) == {"b"}
    assert set(found["a"].arrived) == {"b"}


def test_another_run_is_refused(trio: Trio) -> None:
    trio.hubs["c"].close()
    trio.hubs["c"] = InProcessGossip(trio.board, "c", "b", "another")
    for name in "ab":
        trio.hubs[name].publish(snapshot(name))
    trio.hubs["c"].publish(snapshot("c", run="another"))
    found = exchange_all(list(trio.hubs.values()), 1, 2.0)
    assert set(found["b"].arrived) == {"a"}
    assert not found["c"].arrived
    assert trio.hubs["b"].counters.rejected == {Rejection.RUN: 1}


def test_a_hub_that_fell_behind_learns_the_newest_mixing(trio: Trio) -> None:
    for mixing in (1, 2, 3):
        trio.hubs["b"].publish(snapshot("b", mixing))
    trio.hubs["a"].publish(snapshot("a"))
    found = trio.hubs["a"].exchange(1, 30.0)  # returns at once, not after 30 s
    assert found.ahead == 3
    assert found.silent["b"] == "is already past mixing 1, at 3"
    assert trio.hubs["a"].latest_mixing() == 3
    newest = trio.hubs["a"].fetch_latest(1.0, like=model("a"))
    assert newest.arrived["b"].mixing == 3
    trio.hubs["a"].publish(snapshot("a", 4))
    trio.hubs["b"].publish(snapshot("b", 4))
    trio.hubs["c"].publish(snapshot("c", 4))
    trio.check(PATH, mixing=4)


def test_a_late_hub_does_not_mix_with_one_that_has_gone_on(trio: Trio) -> None:
    trio.hubs["a"].publish(snapshot("a"))
    assert trio.hubs["a"].exchange(1, 0.4).silent.keys() == {"b"}
    trio.publish(1)
    # a's snapshot is still on offer, but its mixing is over: b must not use it alone.
    found = exchange_all([trio.hubs["b"], trio.hubs["c"]], 1, 2.0)
    assert "had ended its mixing" in found["b"].silent["a"]
    assert set(found["b"].arrived) == {"c"}


def test_both_ends_agree_however_late_one_of_them_starts() -> None:
    """a has a deadline of 1 s; b starts between 0 and 1.1 s after a."""

    def meet(delay: float, agreed: dict[float, tuple[bool, bool]]) -> None:
        board = InProcessBoard()
        a, b = InProcessGossip(board, "a", "b", RUN), InProcessGossip(board, "b", "a", RUN)
        early: list[bool] = []
        a.publish(snapshot("a"))
        thread = threading.Thread(target=lambda: early.append("b" in a.exchange(1, 1.0).arrived))
        thread.start()
        time.sleep(delay)
        b.publish(snapshot("b"))
        late = "a" in b.exchange(1, 1.0).arrived
        thread.join()
        agreed[delay] = (early[0], late)

    agreed: dict[float, tuple[bool, bool]] = {}
    delays = [float(x) for x in np.linspace(0.0, 1.1, 45)]
    threads = [threading.Thread(target=meet, args=(delay, agreed)) for delay in delays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(early == late for early, late in agreed.values()), agreed
    assert agreed[0.0] == (True, True)
    assert agreed[1.1] == (False, False)


def test_status_and_catching_up_when_the_neighbour_is_missing_or_new() -> None:
    board = InProcessBoard()
    alone = InProcessGossip(board, "a", "b", RUN)
    assert alone.latest_mixing(0.2) is None
    assert alone.fetch_latest(0.3).silent == {"b": "unreachable"}
    assert not alone.peer_status(0.2)["b"].reachable
    other = InProcessGossip(board, "b", "a", RUN)
    other.set_status({"round": 7, "loss": 0.5})
    status = alone.peer_status()["b"]
    assert (status.reachable, status.mixing, status.round) == (True, None, 7)
    assert alone.fetch_latest(5.0).silent == {"b": "has published nothing yet"}


def test_the_board_and_the_constructor_refuse_impossible_hubs() -> None:
    board = InProcessBoard()
    InProcessGossip(board, "a", "b", RUN)
    with pytest.raises(ValueError, match="already"):
        InProcessGossip(board, "a", "b", RUN)
    with pytest.raises(ValueError, match="own neighbour"):
        InProcessGossip(board, "x", "xy", RUN)
    with pytest.raises(ValueError, match="keep=1"):
        InProcessGossip(board, "y", "x", RUN, keep=1)


@pytest.mark.parametrize("deadline", [0.0, -1.0, float("nan"), float("inf")])
def test_deadlines_are_positive_and_finite(trio: Trio, deadline: float) -> None:
    trio.publish()
    with pytest.raises(ValueError, match="deadline"):
        trio.hubs["a"].exchange(1, deadline)


# --- A limit for the distance of a neighbour's model ---


def far(hub: str, factor: float):
    return snapshot(hub, arrays={name: factor * array for name, array in model(hub).items()})


@pytest.mark.parametrize("limit", [50.0, "10x"])
@pytest.mark.parametrize("factor", [1e3, 1e30, 1e200])
def test_a_model_too_far_away_is_refused_at_both_ends(trio: Trio, limit, factor: float) -> None:
    trio.hubs["b"].limit_distance(limit)  # a and c take anything
    trio.hubs["a"].publish(snapshot("a"))
    trio.hubs["b"].publish(snapshot("b"))
    trio.hubs["c"].publish(far("c", factor))
    found = exchange_all(list(trio.hubs.values()))
    assert set(found["b"].arrived) == {"a"}
    assert found["b"].silent["c"].startswith("a model too far from this hub's own: ")
    assert repr(limit) in found["b"].silent["c"]
    assert "refused our snapshot: a model too far" in found["c"].silent["b"]
    assert not found["c"].arrived
    assert trio.hubs["b"].counters.rejected == {Rejection.DISTANCE: 1}


def test_the_running_median_is_that_of_the_distances(trio: Trio) -> None:
    for hub in trio.hubs.values():
        hub.limit_distance("3x")
    for mixing in range(1, 4):
        trio.publish(mixing)
        found = exchange_all(list(trio.hubs.values()), mixing)
        assert not any(exchange.silent for exchange in found.values())
    trio.hubs["a"].publish(snapshot("a", 4))
    trio.hubs["b"].publish(snapshot("b", 4))
    arrays = {name: array + 100 for name, array in model("c").items()}
    trio.hubs["c"].publish(snapshot("c", 4, arrays=arrays))
    found = exchange_all(list(trio.hubs.values()), 4)
    assert {hub: sorted(exchange.arrived) for hub, exchange in found.items()} == {
        "a": ["b"],
        "b": ["a"],
        "c": [],
    }


def test_without_a_limit_any_finite_model_is_taken(trio: Trio) -> None:
    trio.hubs["b"].limit_distance(None)
    trio.hubs["a"].publish(snapshot("a"))
    trio.hubs["b"].publish(snapshot("b"))
    trio.hubs["c"].publish(far("c", 1e30))
    assert set(exchange_all(list(trio.hubs.values()))["b"].arrived) == {"a", "c"}


def test_a_lost_acknowledgement_does_not_part_the_ends_of_a_link() -> None:
    """Hub b hears that a has its confirmation only when a is at its next mixing."""
    board = InProcessBoard()
    next_published = threading.Event()

    class Deaf(InProcessGossip):
        """Hears no acknowledgement before its neighbour has published its next snapshot."""

        def _deliver(self, peer: str, verdict: Verdict, until: float) -> Ack:
            ack = super()._deliver(peer, verdict, until)
            if not next_published.is_set():
                raise PeerSilent("the acknowledgement was lost")
            return ack

    a, b = InProcessGossip(board, "a", ["b"], RUN), Deaf(board, "b", ["a"], RUN)
    for hub in (a, b):
        hub.publish(snapshot(hub.hub))

    def two_mixings() -> Exchange:
        found = a.exchange(1, 20.0)
        a.publish(snapshot("a", 2))
        next_published.set()
        return found

    with ThreadPoolExecutor() as pool:
        both = pool.submit(two_mixings), pool.submit(b.exchange, 1, 20.0)
        used = [future.result().arrived.keys() for future in both]
    assert used == [{"b"}, {"a"}]
