"""What hubs answer, kept and drawn: whatever it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mll_flower.deployment.certs import make_certs
from mll_flower.deployment.hub_gossip import start_gossip
from mll_flower.deployment.hub_state import Phase
from mll_flower.gossip.grpc_client import call, open_channel
from mll_flower.gossip.recent_rounds import BYTES, KEPT, RecentRounds
from mll_flower.watching.deployment_source import DeploymentSource
from mll_flower.watching.hub_history import HubHistory
from tests.support.deployment import example_with, free_ports

ABSENT = {"node": "77", "worker": 2, "cause": "late", "why": "<i>no reply"}


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"round": number, "time": 100.0 + number, "loss": 1 / number, "absent": [], **more}


def test_recent_rounds_fit_into_an_answer() -> None:
    rounds = RecentRounds()
    for number in range(1, KEPT + 500):
        rounds.add(row(number, why="x" * 100))
    assert rounds.after(KEPT + 490)[0]["round"] == KEPT + 491
    first = rounds.after(0)
    assert first[0]["round"] == 500
    assert len(json.dumps(first)) < BYTES * 1.1
    # A hub that has come back plays rounds again.
    rounds.add(row(KEPT, again=True))
    assert rounds.after(KEPT - 2)[-1]["again"] is True


def test_the_operator_is_told_of_rounds_and_hubs_are_not(tmp_path: Path) -> None:
    ports = free_ports(6)
    changes = [(f"127.0.0.1:{9400 + n}", f"127.0.0.1:{port}") for n, port in enumerate(ports)]
    network = example_with(tmp_path, *changes)
    make_certs(network, network.certs)
    source = DeploymentSource(network)
    view = source.look()
    assert view.phase == "waiting"
    gossip = start_gossip(network, "b")
    try:
        gossip.set_status({"phase": Phase.TRAINING, "round": 2, "loss": 0.5, "workers": 1})
        gossip.remember_round(row(1, mixing=1, disagreement=0.25))
        gossip.remember_round(row(2, mixing=2, disagreement=0.5, absent=[ABSENT], accuracy=0.75))
        view = source.look()
        channel = open_channel(network.hub("b").gossip, "b", network.hub("a").tls)
        request = json.dumps({"rounds-after": 0}).encode()
        assert "rounds" not in call(channel, "Status", request, 5.0)
        channel.close()
    finally:
        gossip.close()
    frames = view.moving["frames"]
    assert frames["round"] == [0, 1, 2]
    assert [r[1] for r in frames["distance"]] == [0, 0.25, 0.5]
    assert [r[1] for r in frames["metric"]] == [None, None, 0.75]
    assert frames["absent"] == [[], [], [2]]  # hub b has the workers 2 and 3
    assert view.moving["now"]["down"] == [0, 2]
    assert view.phase == "trouble"
    assert view.status == "Rounds 0 to 2 of 6; no answer from a, c"
    assert "&lt;i&gt;no reply" in view.parts["absences"]
    assert "UNAVAILABLE" in view.parts["hubs"]
    # It is down now, and what is known of it stays.
    view = source.look()
    assert view.moving["frames"]["round"] == [0, 1, 2]
    assert view.moving["now"]["down"] == [0, 1, 2]


@pytest.mark.parametrize(
    "lie",
    [
        {"phase": ["x"], "round": {}, "mixing": 10**400, "workers": None, "loss": "7"},
        {"neighbours": ["a"], "phase": "\x1b]0;owned\x07", "rounds": "many"},
        {"neighbours": {"[x": 7, "c": {"x": [1]}}, "rounds": [7, None, {}, {"round": "3"}]},
        {"round": 10**9, "rounds": [row(10**9), row(1, time=float("inf"), loss=float("nan"))]},
        {"rounds": [row(1, absent="all"), row(2, absent=[3, {"worker": [], "cause": None}])]},
        {"metric": {"a": 1}, "accuracy": True, "loss": float("inf"), "rounds": {"a": 1}},
    ],
)
def test_whatever_a_hub_answers_can_be_shown(tmp_path: Path, lie: dict[str, Any]) -> None:
    source = DeploymentSource(example_with(tmp_path), insecure=True)
    source.hubs["b"].take({"reachable": True, **lie}, 1000.0)
    assert source.hubs["b"].newest <= 6
    view = source.look()
    text = json.dumps({**vars(view)}, allow_nan=False)
    assert "\\u001b" not in text


def test_a_long_history_comes_in_pieces_and_a_hub_that_returns_replaces_its_rounds() -> None:
    hub = HubHistory(rounds=100, workers=2)
    assert hub.asked_after == 0
    said = {"reachable": True, "phase": "training", "round": 50}
    hub.take({**said, "rounds": [row(n) for n in range(1, 21)]}, 1.0)
    assert (hub.newest, hub.asked_after) == (50, 20)
    hub.take({**said, "rounds": [row(n) for n in range(21, 51)]}, 2.0)
    assert hub.asked_after == 50
    # From its checkpoint of round 40.
    hub.take({**said, "round": 40, "rounds": []}, 3.0)
    assert hub.asked_after == 40
    hub.take({**said, "round": 41, "rounds": [row(41, loss=7.0)]}, 4.0)
    assert hub.rows[41].loss == 7.0


def test_a_worker_is_named_once_its_number_is_known() -> None:
    hub = HubHistory(rounds=9, workers=2, first=2)
    unknown, known = ({"node": "77", "worker": n, "cause": "late"} for n in (None, 3))
    said = {"reachable": True, "round": 2}
    hub.take({**said, "rounds": [row(1, absent=[unknown])]}, 1.0)
    (first,) = hub.rows[1].absent
    assert hub.name_of(first) == "node 77"
    hub.take({**said, "rounds": [row(2, absent=[known])]}, 1.0)
    assert hub.name_of(first) == "1"  # the second of this hub, the fourth of the network


def test_a_hub_that_has_ended_and_stops_answering_is_not_down() -> None:
    hub = HubHistory(rounds=3, workers=2)
    hub.take({"reachable": True, "phase": "training", "round": 2, "rounds": [row(1), row(2)]}, 1.0)
    hub.take({"reachable": False, "reason": "gone"}, 2.0)
    assert not hub.over
    hub.take({"reachable": True, "phase": "training", "round": 3, "rounds": [row(3)]}, 3.0)
    assert not hub.over
    hub.take({"reachable": False, "reason": "gone"}, 4.0)
    assert hub.over
    assert hub.rounds_per_minute() == 60
