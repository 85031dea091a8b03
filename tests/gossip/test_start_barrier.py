"""How hubs begin together: what they know of one another, what they make of nonsense, and time."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from mll_flower.gossip import InProcessBoard, InProcessGossip, PeerStatus, start_barrier
from mll_flower.gossip.start_barrier import BEGUN, wait_for_hubs


class Neighbours:
    """Gossip of hub a whose neighbours answer as the script says, one status each per question."""

    run, hub = "trial", "a"

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.neighbours = tuple(answers[0])

    def peer_status(self, timeout: float) -> dict[str, PeerStatus]:
        now = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return {
            peer: PeerStatus(peer, bool(status), status={"run": self.run, **status})
            for peer, status in now.items()
        }


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The hubs that hub a says are ready, per question; nothing sleeps."""
    clock = SimpleNamespace(now=0.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    fake = SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep)
    monkeypatch.setattr(start_barrier, "time", fake)
    return []


def wait(neighbours: Neighbours, published: list[list[str]], timeout: float = 10.0) -> bool:
    said: list[bool] = []

    def publish(start: dict[str, Any]) -> None:
        published.append(sorted(start["ready"]))
        said.append(start["begun"])

    together = wait_for_hubs(neighbours, publish, timeout)  # type: ignore[arg-type]
    assert said == [False] * (len(said) - 1) + [True]  # it says that it begins when it does
    published.pop()
    return together


def ready(**linked: str) -> dict[str, Any]:
    """Return the status of a hub that knows these hubs to be ready, each with its neighbours."""
    return {"start": {"begun": False, "ready": {hub: list(ids) for hub, ids in linked.items()}}}


def test_a_hub_waits_for_hubs_that_it_does_not_see(published: list[list[str]]) -> None:
    neighbours = Neighbours(
        {"b": {}}, {"b": ready(b="ac")}, {"b": ready(b="ac", c="bd")}, {"b": ready(d="c")}
    )
    assert wait(neighbours, published)
    assert published == [["a"], ["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]]


def test_a_hub_alone_does_not_wait(published: list[list[str]]) -> None:
    assert wait(Neighbours({}), published)
    assert published == [["a"]]


@pytest.mark.parametrize(("known", "together"), [({}, False), ({"a": ["c"], "c": ["a"]}, True)])
def test_a_hub_begins_when_a_neighbour_has_begun(
    published: list[list[str]], known: dict[str, list[str]], together: bool
) -> None:
    start = {"begun": True, "ready": known}
    assert wait(Neighbours({"b": {}, "c": {"start": start}}), published) is together
    assert published == [["a"]]


@pytest.mark.parametrize(
    "status",
    [
        {"run": "another", "start": BEGUN},
        {"start": "abc"},
        {"start": {"begun": "yes", "ready": "abc"}},
        {"start": {"ready": {"b": "ac", "c": None, "d": 3}}},
        {"start": ["begun"]},
        {"level": "abc"},
    ],
)
def test_another_run_and_nonsense_do_not_count(
    published: list[list[str]], status: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert not wait(Neighbours({"b": status}), published)
    assert set(map(tuple, published)) == {("a",)}
    assert len(published) == 35  # 10 s, one question per 0.3 s


def test_three_hubs_on_a_path_wait_for_the_last() -> None:
    board = InProcessBoard()
    linked = {"a": "b", "b": "ac", "c": "b"}
    began: dict[str, float] = {}

    def begin(hub: str, delay: float) -> None:
        time.sleep(delay)
        gossip = InProcessGossip(board, hub, linked[hub], "run")
        assert wait_for_hubs(gossip, gossip.update_status, 30.0)
        began[hub] = time.monotonic()

    started = time.monotonic()
    threads = [
        threading.Thread(target=begin, args=(hub, delay))
        for hub, delay in (("a", 0.0), ("b", 0.3), ("c", 1.5))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert sorted(began) == ["a", "b", "c"]
    assert min(began.values()) - started >= 1.5
