"""Hubs agree on the terms of the run, and believe no number of mixings that cannot be true."""

from __future__ import annotations

import pytest

from mll_flower.gossip import InProcessBoard, InProcessGossip, Rejection, agreement
from mll_flower.gossip.agreement import Pace, differences
from tests.support.gossip_hubs import RUN, Start, check_models, exchange_all, publish, snapshot

TERMS = {"tau": 32, "q": 2, "learning-rate": 0.1, "model": "cnn"}


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        (TERMS, ""),
        ({**TERMS, "learning-rate": 0.1, "tau": 32.0}, ""),
        ({"tau": 32, "something else": 1}, ""),
        (None, ""),
        ("tau", ""),
        ({**TERMS, "q": 1}, "q is 2 here and 1 there"),
        ({**TERMS, "q": [10**6] * 99}, "q is 2 here and [1000000, 1000000"),
        (
            dict.fromkeys(TERMS, 0),
            "tau is 32 here and 0 there; q is 2 here and 0 there; "
            "learning-rate is 0.1 here and 0 there, and 1 more",
        ),
    ],
)
def test_differences_in_words(theirs: object, named: str) -> None:
    found = differences(TERMS, theirs)
    assert found.startswith(named)
    assert bool(found) == bool(named)
    assert len(found) < 300


def test_a_difference_is_named_on_both_sides_and_the_link_is_not_used(start: Start) -> None:
    a, b = start("a", terms=TERMS), start("b", terms=TERMS)
    c = start("c", terms={**TERMS, "q": 1})
    assert a.peer_status()["b"].disagreement == ""
    assert b.peer_status()["c"].disagreement == "q is 2 here and 1 there"
    assert c.peer_status()["b"].disagreement == "q is 1 here and 2 there"
    assert b.status()["neighbours"]["c"] == "q is 2 here and 1 there"
    publish([a, b, c])
    found = exchange_all([a, b, c])
    check_models(found, (("a", "b"),))
    assert "q is 2 here and 1 there" in found["b"].silent["c"]
    assert "q is 1 here and 2 there" in found["c"].silent["b"]
    assert b.counters.rejected[Rejection.TERMS] >= 1
    assert c.counters.rejected[Rejection.TERMS] >= 1
    # A hub that counts in another way is no guide to where the run is.
    c.publish(snapshot("c", mixing=9))
    assert b.latest_mixing() == 1


def test_terms_that_are_known_later(start: Start) -> None:
    a, b = start("a", terms=TERMS), start("b", "a", terms=TERMS)
    a.agree_on(model_layout="3 arrays")
    assert a.peer_status()["b"].disagreement == ""
    b.agree_on(model_layout="4 arrays")
    assert a.peer_status()["b"].disagreement == (
        "model layout is '3 arrays' here and '4 arrays' there"
    )


def test_hubs_in_one_process() -> None:
    board = InProcessBoard()
    a = InProcessGossip(board, "a", ["b"], RUN, terms=TERMS)
    b = InProcessGossip(board, "b", ["a"], RUN, terms={**TERMS, "tau": 8})
    publish([a, b])
    found = exchange_all([a, b], deadline=1.0)
    assert "tau is 32 here and 8 there" in found["a"].silent["b"]
    assert "tau is 8 here and 32 there" in found["b"].silent["a"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, which a test may change."""
    now = [1000.0]
    monkeypatch.setattr(agreement.time, "monotonic", lambda: now[0])
    return now


def test_how_far_a_neighbour_can_be(clock: list[float]) -> None:
    pace = Pace(10.0)
    assert pace.furthest("b") is None  # a hub that has just come believes what it is told
    pace.begin(20)
    assert pace.furthest("b") == 22
    pace.begin(500)  # only the first one counts
    clock[0] += 39.9
    assert pace.furthest("b") == 25
    pace.meet("b", 23)
    assert pace.furthest("b") == 25
    assert pace.furthest("c") == 25
    clock[0] += 20.0
    assert (pace.furthest("b"), pace.furthest("c")) == (27, 27)
    pace.meet("b", 40)
    assert (pace.furthest("b"), pace.furthest("c")) == (42, 27)
    assert pace.doubt("b", 42) == ""
    assert "claims mixing 43, but cannot be past 42 yet" in pace.doubt("b", 43)
    assert len(pace.doubt("b", 10**400)) < 200


def test_a_hub_that_was_away_believes_more(clock: list[float]) -> None:
    pace = Pace(10.0)
    pace.begin(20, seconds_ago=3600.0)
    assert pace.furthest("b") == 20 + 360 + 2
    behind = Pace(10.0)
    behind.begin(20, seconds_ago=-3600.0)  # the clock was set back
    assert behind.furthest("b") == 22
    assert Pace().furthest("b") is None
    with pytest.raises(ValueError, match="pace=-1"):
        Pace(-1.0)


def test_one_hub_does_not_drag_the_others(start: Start) -> None:
    a, b, c = start("a", pace=60.0), start("b", pace=60.0), start("c", pace=60.0)
    publish([a, b, c], mixing=22)
    check_models(exchange_all([a, b, c], mixing=22), (("a", "b"), ("b", "c")))
    c.publish(snapshot("c", mixing=390))
    assert b.latest_mixing() == 22
    assert "claims mixing 390, but cannot be past 24" in b.peer_status()["c"].disagreement
    publish([a, b], mixing=23)
    found = exchange_all([a, b], mixing=23)
    assert found["b"].ahead is None
    assert "claims mixing 390, but cannot be past 24 yet" in found["b"].silent["c"]
    assert b.counters.rejected == {Rejection.AHEAD: 1}
    assert "a" in found["b"].arrived


def test_a_neighbour_that_can_be_ahead_is_believed(start: Start) -> None:
    a, b = start("a", pace=60.0), start("b", "a", pace=60.0)
    a.pace.begin(1, seconds_ago=60.0 * 10)
    publish([a], mixing=2)
    publish([b], mixing=9)
    assert a.latest_mixing() == 9
    found = a.exchange(2, 2.0)
    assert found.ahead == 9
