"""GossipingHubStrategy on Flower's own grid: hubs in threads that gossip in process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mll_flower.gossip import Gossip, InProcessBoard, InProcessGossip, Snapshot
from mll_flower.gossip.grpc_client import GrpcGossip
from mll_flower.grids.deadline import DeadlineGrid
from mll_flower.processes.flower_environment import free_port
from mll_flower.strategies.gossiping import GossipingHubStrategy
from mll_flower.strategies.reports import RoundReport
from tests.support.arrays import record
from tests.support.flower_grid import Nodes, client_app

START = {"x": np.zeros(3)}


def pull_towards(target: float, seconds: float = 0.0) -> Callable[..., Any]:
    """Local training: go half the way to a target, which is larger for later partitions."""

    def train(partition: int, arrays: Any, config: Any) -> Any:
        time.sleep(seconds)
        goal = target + partition
        return {"x": (arrays["x"] + goal) / 2}, {"num-examples": 1 + partition}

    return train


class Site:
    """A hub with its nodes; its strategy runs in a thread."""

    def __init__(
        self,
        gossip: Gossip,
        target: float,
        workers: int,
        seconds: float = 0.0,
        **settings: Any,
    ) -> None:
        self.reports: list[RoundReport] = []
        self.models: list[np.ndarray] = []
        self.error: BaseException | None = None
        self.nodes = Nodes(client_app(pull_towards(target, seconds)), workers)
        settings = {"q": 1, "gossip_deadline": 20.0, "deadline": 30.0, **settings}
        self.strategy = GossipingHubStrategy(
            gossip,
            on_round=self.keep,
            fraction_evaluate=0.0,
            min_available_nodes=workers,
            **settings,
        )

    def keep(self, report: RoundReport) -> None:
        self.reports.append(report)
        self.models.append(self.strategy.hubs[0].model["float64"].copy())

    def start(self, rounds: int) -> threading.Thread:
        def run() -> None:
            try:
                grid = DeadlineGrid(self.nodes.grid, 30.0)
                self.strategy.start(grid, record(START), num_rounds=rounds)
            except BaseException as error:
                self.error = error

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread


def finish(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()


def test_two_hubs_mix_with_metropolis_weights() -> None:
    board = InProcessBoard()
    one = Site(InProcessGossip(board, "a", ["b"], "run"), 0.0, 2, q=2)
    two = Site(InProcessGossip(board, "b", ["a"], "run"), 8.0, 1, q=2)
    with one.nodes, two.nodes:
        finish(one.start(4), two.start(4))
    assert one.error is None
    assert two.error is None
    # W(a) = 1 + 2, W(b) = 1, both of degree 1: W H = min(3 / 2, 1 / 2).
    for a, b in zip(one.reports, two.reports, strict=True):
        assert a.mixed == b.mixed == (a.number % 2 == 0)
        if a.mixed:
            assert a.column == pytest.approx({"a": 1 - 0.5 / 3, "b": 0.5 / 3})
            assert b.column == pytest.approx({"a": 0.5, "b": 0.5})
    x, y = np.zeros(3), np.zeros(3)
    for k in range(4):
        x = (1 * (x + 0) / 2 + 2 * (x + 1) / 2) / 3
        y = (y + 8) / 2
        if k % 2:
            x, y = (1 - 0.5 / 3) * x + 0.5 / 3 * y, 0.5 * x + 0.5 * y
        np.testing.assert_allclose(one.models[k], x)
        np.testing.assert_allclose(two.models[k], y)


def test_a_given_column_is_used() -> None:
    board = InProcessBoard()
    one = Site(
        InProcessGossip(board, "a", ["b"], "run"), 0.0, 1, mixing_column={"a": 0.75, "b": 0.25}
    )
    two = Site(
        InProcessGossip(board, "b", ["a"], "run"), 8.0, 1, mixing_column={"a": 0.25, "b": 0.75}
    )
    with one.nodes, two.nodes:
        finish(one.start(1), two.start(1))
    np.testing.assert_allclose(one.models[0], 0.25 * 4.0)
    np.testing.assert_allclose(two.models[0], 0.75 * 4.0)


def test_the_weight_of_a_silent_neighbour_goes_to_the_hub_itself() -> None:
    board = InProcessBoard()
    InProcessGossip(board, "b", ["a"], "run")  # it exists, but publishes nothing
    one = Site(InProcessGossip(board, "a", ["b"], "run"), 4.0, 1, gossip_deadline=0.3)
    one.strategy.neighbour_timeout = 0.0
    with one.nodes:
        finish(one.start(2))
    assert one.error is None
    for report in one.reports:
        assert set(report.silent) == {"b"}
        assert report.column == {"a": 1.0}
    np.testing.assert_allclose(one.models[1], 3.0)


def snapshot(mixing: int, value: float, weight: float = 1.0, hub: str = "b") -> Snapshot:
    return Snapshot("run", mixing, hub, weight, 1, {"x": np.full(3, value)})


def test_a_hub_that_is_behind_continues_where_its_neighbours_are() -> None:
    board = InProcessBoard()
    gossip = InProcessGossip(board, "a", ["b"], "run")
    other = InProcessGossip(board, "b", ["a"], "run")
    for number in (5, 6, 7):
        other.publish(snapshot(number, 1.0))
    one = Site(gossip, 4.0, 1, q=2, rounds=17, gossip_deadline=0.3)
    one.strategy.restore(4, [{"float64": np.full(3, 2.0)}])
    with one.nodes:
        finish(one.start(20))
    assert one.error is None
    # Round 6 is its mixing 3, long past: it continues after mixing 7, up to the last round.
    assert [report.number for report in one.reports] == [5, 6, 15, 16, 17]
    np.testing.assert_allclose(one.models[0], 3.0)


@pytest.mark.parametrize("deadline", [0.6, 3.0])
def test_a_hub_that_comes_back_meets_its_neighbour_again(deadline: float) -> None:
    """Neither hub skips the mixing at which the other waits for it."""
    board = InProcessBoard()
    one = Site(InProcessGossip(board, "a", ["b"], "run"), 0.0, 1, 0.5, gossip_deadline=deadline)
    two = Site(InProcessGossip(board, "b", ["a"], "run"), 8.0, 1, 0.5, gossip_deadline=deadline)
    one.strategy.rounds = two.strategy.rounds = 9
    one.strategy.neighbour_timeout = 0.0  # it begins alone
    with one.nodes, two.nodes:
        first = one.start(9)
        while len(one.reports) < 2:
            time.sleep(0.02)
        assert two.strategy.catch_up(30.0, record(START))
        finish(first, two.start(9))
    assert one.error is None
    assert two.error is None
    met = [report.number for report in two.reports if "a" in report.column]
    assert met == [report.number for report in one.reports if "b" in report.column]
    assert 8 in met
    assert 9 in met


def test_a_late_hub_waits_for_the_next_mixing_and_takes_its_neighbours_models() -> None:
    board = InProcessBoard()
    gossip = InProcessGossip(board, "a", ["b", "c"], "run")
    b, c = (InProcessGossip(board, id, ["a"], "run") for id in ("b", "c"))
    b.publish(snapshot(3, 1.0))
    c.publish(snapshot(3, 5.0, weight=3.0, hub="c"))
    strategy = GossipingHubStrategy(gossip, q=2)
    threading.Timer(0.5, lambda: b.publish(snapshot(4, 2.0))).start()
    assert strategy.catch_up(30.0, record(START))
    assert strategy.round == 8
    strategy._make_hubs(record(START))
    np.testing.assert_allclose(strategy.hubs[0].model["float64"], (1 * 2.0 + 3 * 5.0) / 4)


def test_a_hub_with_a_checkpoint_keeps_its_own_model() -> None:
    board = InProcessBoard()
    gossip = InProcessGossip(board, "a", ["b"], "run")
    InProcessGossip(board, "b", ["a"], "run").publish(snapshot(3, 1.0))
    strategy = GossipingHubStrategy(gossip, q=2)
    strategy.restore(2, [{"float64": np.full(3, 9.0)}])
    assert strategy.catch_up(0.5)
    assert strategy.round == 6
    strategy._make_hubs(record(START))
    np.testing.assert_allclose(strategy.hubs[0].model["float64"], 9.0)


@pytest.mark.parametrize(("published", "lead"), [(None, 0), (1, 0), (2, 1)])
def test_nothing_to_catch_up_with(published: int | None, lead: int) -> None:
    board = InProcessBoard()
    gossip = InProcessGossip(board, "a", ["b"], "run")
    other = InProcessGossip(board, "b", ["a"], "run")
    if published:
        other.publish(snapshot(published, 1.0))
    strategy = GossipingHubStrategy(gossip, q=2)
    strategy.restore(2, [{"float64": np.zeros(3)}])
    assert not strategy.catch_up(30.0, lead=lead)
    assert strategy.round == 2


def test_workers_that_join_and_leave_change_the_hubs_weight() -> None:
    board = InProcessBoard()
    site = Site(InProcessGossip(board, "a", [], "run"), 0.0, 2)
    weights: list[float] = []

    def after(report: RoundReport) -> None:
        weights.append(site.strategy.hubs[0].weight)
        if report.number == 1:
            site.nodes.leave(1)
        if report.number == 2:
            site.nodes.come_back(1)
        if report.number == 3:
            site.nodes.add()

    site.strategy.on_round = after
    with site.nodes:
        finish(site.start(4))
    assert site.error is None
    assert weights == [1 + 2, 1, 1 + 2, 1 + 2 + 3]


def test_a_hub_that_loses_its_workers_goes_through_its_rounds_and_keeps_its_model() -> None:
    board = InProcessBoard()
    site = Site(InProcessGossip(board, "a", [], "run"), 4.0, 1, deadline=0.4)
    with site.nodes:

        def after(report: RoundReport) -> None:
            site.keep(report)
            if report.number == 1:
                site.nodes.leave(0)

        site.strategy.on_round = after
        finish(site.start(3))
    assert site.error is None
    np.testing.assert_allclose(site.models, [[2.0] * 3] * 3)
    assert [len(report.hubs[0].arrived) for report in site.reports] == [1, 0, 0]


def test_known_weights_hold_for_workers_that_are_absent_from_the_start() -> None:
    strategy = GossipingHubStrategy(InProcessGossip(InProcessBoard(), "a", [], "run"))
    strategy.known_weights = {7: 4.0}
    strategy._make_hubs(record(START))
    assert strategy.hubs[0].weight_of(7) == 4.0


def test_a_hub_whose_workers_have_not_reported_weighs_nothing() -> None:
    """It takes its neighbour's model and gives nothing; with its first reports it counts."""
    board = InProcessBoard()
    link_a, link_b = (InProcessGossip(board, *pair, "run") for pair in (("a", "b"), ("b", "a")))
    one, two = Site(link_a, 0.0, 2), Site(link_b, 8.0, 1)
    reported = [False, True, True]

    def train(partition: int, arrays: Any, config: Any) -> Any:
        if not reported[len(two.reports)]:
            raise RuntimeError("not yet")
        return pull_towards(8.0)(partition, arrays, config)

    two.nodes = Nodes(client_app(train), 1)
    with one.nodes, two.nodes:
        finish(one.start(3), two.start(3))
    assert one.error is None
    assert two.error is None
    columns = [(a.column, b.column) for a, b in zip(one.reports, two.reports, strict=True)]
    assert columns[0] == ({"a": 1.0, "b": 0.0}, {"a": 0.5, "b": 0.5})
    # W(a) = 1 + 2, W(b) = 1, both of degree 1: W H = min(3 / 2, 1 / 2).
    for a, b in columns[1:]:
        assert a == pytest.approx({"a": 1 - 0.5 / 3, "b": 0.5 / 3})
        assert b == pytest.approx({"a": 0.5, "b": 0.5})
    np.testing.assert_allclose(one.models[0], 1 / 3)  # 2 / 3 of the way's half to 1
    np.testing.assert_allclose(two.models[0], 1 / 6)


def test_a_hub_keeps_the_weight_that_it_knew_until_its_workers_report() -> None:
    strategy = GossipingHubStrategy(InProcessGossip(InProcessBoard(), "a", [], "run"))
    strategy._make_hubs(record(START))
    assert strategy.hubs[0].reported_weight == 0.0
    strategy.known_weight = 300.0  # from a checkpoint, or the network file
    strategy._make_hubs(record(START))
    hub = strategy.hubs[0]
    assert hub.reported_weight == 300.0
    hub.nodes = [1, 2]
    assert hub.weight == 2.0  # for its own average, in which only shares count
    assert hub.reported_weight == 300.0
    hub.weights = {1: 10.0}
    assert hub.reported_weight == 20.0
    hub.nodes = []
    assert hub.reported_weight == 20.0


class TestStart:
    """Hubs that are started apart begin together."""

    def test_two_hubs_started_apart_mix_from_the_first_round(self) -> None:
        ports = free_port(), free_port()
        addresses = [f"127.0.0.1:{port}" for port in ports]
        gossips = [
            GrpcGossip(id, own, {peer: other}, "run", insecure=True)
            for id, peer, own, other in (("a", "b", *addresses), ("b", "a", *addresses[::-1]))
        ]
        # With deadlines this short the first hub would be long past its rounds.
        one, two = (
            Site(gossip, target, 1, gossip_deadline=1.0)
            for gossip, target in zip(gossips, (0.0, 8.0), strict=True)
        )
        with one.nodes, two.nodes:
            first = one.start(2)
            time.sleep(4.0)
            assert not one.reports
            finish(first, two.start(2))
        for gossip in gossips:
            gossip.close()
        for site in (one, two):
            assert site.error is None
            assert [set(report.column) for report in site.reports] == [{"a", "b"}] * 2
            assert not any(report.silent for report in site.reports)

    def test_a_hub_begins_without_a_neighbour_that_does_not_come(self) -> None:
        gossip = InProcessGossip(InProcessBoard(), "a", ["b"], "run")
        one = Site(gossip, 4.0, 1, gossip_deadline=0.2, neighbour_timeout=0.5)
        with one.nodes:
            finish(one.start(1))
        assert one.error is None
        assert [report.column for report in one.reports] == [{"a": 1.0}]
        assert gossip.status()["start"] == {"begun": True, "ready": {"a": ["b"]}}

    def test_a_hub_that_goes_on_does_not_wait(self) -> None:
        gossip = InProcessGossip(InProcessBoard(), "a", ["b"], "run")
        one = Site(gossip, 4.0, 1, q=2, gossip_deadline=0.2, neighbour_timeout=600.0)
        one.strategy.restore(2, [{"float64": np.zeros(3)}])
        with one.nodes:
            finish(one.start(1))
        assert [report.number for report in one.reports] == [3]

    def test_too_few_workers_are_an_error(self) -> None:
        gossip = InProcessGossip(InProcessBoard(), "a", ["b"], "run")
        one = Site(gossip, 4.0, 1, node_timeout=0.3)
        one.strategy.min_available_nodes = 2
        with one.nodes:
            finish(one.start(1))
        assert isinstance(one.error, RuntimeError)


def test_a_neighbour_that_is_too_far_away_is_refused_at_both_ends() -> None:
    board = InProcessBoard()
    link_a, link_b = (InProcessGossip(board, *pair, "run") for pair in (("a", "b"), ("b", "a")))
    near = Site(link_a, 1.0, 1, max_neighbour_norm=10.0)
    away = Site(link_b, 1e6, 1)
    with near.nodes, away.nodes:
        finish(near.start(1), away.start(1))
    assert near.error is None
    assert away.error is None
    assert near.models[0].tolist() == [0.5] * 3
    assert away.models[0].tolist() == [5e5] * 3
    assert near.reports[0].silent["b"].startswith("a model too far from this hub's own")
    assert "refused our snapshot" in away.reports[0].silent["a"]


def test_a_limit_for_neighbours_that_makes_no_sense_is_an_error() -> None:
    link = InProcessGossip(InProcessBoard(), "a", ["b"], "run")
    with pytest.raises(ValueError, match="max_neighbour_norm='5'"):
        GossipingHubStrategy(link, max_neighbour_norm="5")
