"""Which node belongs to which hub, what it receives, and what a strategy reports about it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord

from mll_flower import HubNetwork, MultiLevelStrategy, RoundReport, answer_identity
from tests.support.flower_grid import (
    Nodes,
    client_app,
    drift,
    evaluate,
    fixed_weights,
    model,
    run,
    unpack,
)


def test_fraction_train_samples_within_each_hub() -> None:
    reports: list[RoundReport] = []
    strategy = MultiLevelStrategy(
        hubs=2,
        fraction_train=0.5,
        min_train_nodes=1,
        fraction_evaluate=0.0,
        on_round=reports.append,
        q=99,
    )
    with Nodes(client_app(fixed_weights), 8) as nodes:
        run(strategy, nodes, model("float64"), 6)
        number = {node: k for k, node in enumerate(nodes.ids)}
    groups = set()
    for report in reports:
        for d, hub in enumerate(report.hubs):
            sampled = tuple(number[a.node] for a in hub.arrived)
            assert len(sampled) == 2
            assert all(k % 2 == d for k in sampled)
            groups.add(sampled)
    assert len(groups) > 2  # not always the same workers
    last = reports[-1].hubs[1].arrived
    w = np.array([a.metrics["num-examples"] for a in last]) / sum(
        a.metrics["num-examples"] for a in last
    )
    mean = sum(v * a.arrays["w"].numpy() for v, a in zip(w, last, strict=True))
    hub = strategy.hubs[1]
    np.testing.assert_allclose(hub.layout.arrays(hub.model)["w"], mean, rtol=1e-12)


def test_min_train_nodes_counts_within_each_hub() -> None:
    reports: list[RoundReport] = []
    strategy = MultiLevelStrategy(
        hubs=2,
        assign=lambda node: 0 if node == last else 1,
        fraction_train=0.2,
        min_train_nodes=3,
        fraction_evaluate=0.0,
        on_round=reports.append,
    )
    with Nodes(client_app(fixed_weights), 6) as nodes:
        last = nodes.ids[-1]
        run(strategy, nodes, model("float32"), 1)
    assert [len(hub.arrived) for hub in reports[0].hubs] == [1, 3]


def hub_members(strategy: MultiLevelStrategy, nodes: Nodes) -> list[list[int]]:
    number = {node: k for k, node in enumerate(nodes.ids)}
    return [sorted(number[n] for n in hub.nodes) for hub in strategy.hubs]


def test_nodes_are_dealt_out_evenly() -> None:
    strategy = MultiLevelStrategy(hubs=3, fraction_evaluate=0.0)
    with Nodes(client_app(drift), 7) as nodes:
        run(strategy, nodes, model("float32"), 1)
        assert hub_members(strategy, nodes) == [[0, 3, 6], [1, 4], [2, 5]]


def test_nodes_are_assigned_by_a_function() -> None:
    with Nodes(client_app(drift), 5) as nodes:
        place = {node: int(k > 0) for k, node in enumerate(nodes.ids)}
        strategy = MultiLevelStrategy(hubs=2, assign=place.__getitem__, fraction_evaluate=0.0)
        run(strategy, nodes, model("float32"), 1)
        assert hub_members(strategy, nodes) == [[0], [1, 2, 3, 4]]


@pytest.mark.parametrize("source", ["node config", "app"])
def test_nodes_are_assigned_by_their_identity(source: str) -> None:
    app = client_app(drift)
    place = [1, 0, 0, 1, 1]
    if source == "app":
        answer_identity(app, lambda context: {"hub": place[context.node_config["partition-id"]]})
        config: Callable[[int], dict] = lambda k: {}  # noqa: E731
    else:
        answer_identity(app)
        config = lambda k: {"hub": place[k]}  # noqa: E731
    strategy = MultiLevelStrategy(hubs=2, assign="node-config:hub", fraction_evaluate=0.0)
    with Nodes(app, 5, config) as nodes:
        run(strategy, nodes, model("float32"), 2)
        assert hub_members(strategy, nodes) == [[1, 2], [0, 3, 4]]
        assert sum(kind.startswith("query") for _, kind in nodes.asked) == 5


def test_a_network_determines_the_hub_and_the_weight_of_each_worker() -> None:
    network = HubNetwork.build(workers_per_hub=[1, 3], weights=[5.0, 1.0, 2.0, 3.0])
    with Nodes(client_app(fixed_weights), 5) as nodes:
        workers = {nodes.ids[k]: worker for k, worker in [(4, 0), (0, 1), (1, 2), (3, 3)]}
        strategy = MultiLevelStrategy(network, workers=workers, q=9, fraction_evaluate=0.0)
        run(strategy, nodes, model("float64"), 1)
        assert hub_members(strategy, nodes) == [[4], [0, 1, 3]]
    np.testing.assert_allclose(strategy.shares(), network.b)
    config = ConfigRecord({"server-round": 1})
    x = [fixed_weights(k, model("float64"), config)[0]["w"] for k in (0, 1, 3)]
    hub = strategy.hubs[1]
    expected = (1 * x[0] + 2 * x[1] + 3 * x[2]) / 6
    np.testing.assert_allclose(hub.layout.arrays(hub.model)["w"], expected, rtol=1e-12)


def test_nodes_join_leave_and_come_back() -> None:
    strategy = MultiLevelStrategy(hubs=2, fraction_evaluate=0.0)
    members = []
    with Nodes(client_app(fixed_weights), 4) as nodes:

        def after(report: RoundReport) -> None:
            members.append(hub_members(strategy, nodes))
            assert not any(hub.absent for hub in report.hubs)
            if report.number == 1:
                nodes.add()
            if report.number == 2:
                nodes.leave(0)
                nodes.leave(2)
                nodes.leave(4)  # hub 0 has no worker left
            if report.number == 3:
                nodes.add()
            if report.number == 4:
                nodes.come_back(2)

        strategy.on_round = after
        run(strategy, nodes, model("float32"), 5)
    assert members == [
        [[0, 2], [1, 3]],
        [[0, 2, 4], [1, 3]],
        [[], [1, 3]],
        [[], [1, 3, 5]],
        [[2], [1, 3, 5]],
    ]


def test_a_new_node_that_names_no_hub_does_not_stop_the_run() -> None:
    app = client_app(fixed_weights)
    answer_identity(
        app, lambda context: {"hub": [0, 1, "nowhere"][context.node_config["partition-id"]]}
    )
    strategy = MultiLevelStrategy(hubs=2, assign="node-config:hub", fraction_evaluate=0.0)
    with Nodes(app, 2) as nodes:
        strategy.on_round = lambda report: nodes.add() if report.number == 1 else None
        result = run(strategy, nodes, model("float32"), 3)
        assert hub_members(strategy, nodes) == [[0], [1]]
    assert len(result.train_metrics_clientapp) == 3


# --- What is sent, and what is reported ---


def test_workers_receive_their_round_and_budget() -> None:
    received = {}

    def train(partition, arrays, config):
        received[partition, config["round"]] = dict(config)
        return fixed_weights(partition, arrays, config)

    strategy = MultiLevelStrategy(
        hubs=2,
        tau=8,
        slot=0.25,
        worker_config=lambda worker, round: {"rate": worker / 10, "twice": 2 * round},
        fraction_evaluate=0.0,
    )
    with Nodes(client_app(train), 3) as nodes:
        config = ConfigRecord({"lr": 0.5})
        run(strategy, nodes, model("float32"), 2, train_config=config)
    assert received[2, 2] == {
        "lr": 0.5,
        "server-round": 2,
        "round": 2,
        "tau": 8,
        "slot-seconds": 0.25,
        "rate": 0.2,
        "twice": 4,
    }
    assert received[0, 1]["rate"] == 0.0
    assert dict(config) == {"lr": 0.5}


def test_reports_list_arrivals_and_the_distances_between_hubs() -> None:
    reports: list[RoundReport] = []
    strategy = MultiLevelStrategy(
        hubs=3, graph="path", q=2, fraction_evaluate=0.0, on_round=reports.append
    )
    with Nodes(client_app(fixed_weights), 6) as nodes:
        result = run(strategy, nodes, model("float64"), 3)
    assert [(r.number, r.mixed) for r in reports] == [(1, False), (2, True), (3, False)]
    assert [len(hub.arrived) for hub in reports[0].hubs] == [2, 2, 2]
    u = np.concatenate([a.ravel() for a in unpack(result.arrays).values()])
    apart = [np.linalg.norm(hub.model["float64"] - u) for hub in strategy.hubs]
    np.testing.assert_allclose(reports[2].spread, apart, rtol=1e-9)


def test_keys_and_metrics_functions_work_as_in_fedavg() -> None:
    seen = []

    def train_metrics(contents, key):
        seen.append((len(contents), key))
        return MetricRecord({"mine": 1.0})

    app = client_app(lambda p, a, c: (drift(p, a, c)[0], {"count": 2}), evaluate)
    strategy = MultiLevelStrategy(
        hubs=2,
        weighted_by_key="count",
        train_metrics_aggr_fn=train_metrics,
        fraction_evaluate=0.0,
    )
    with Nodes(app, 4) as nodes:
        result = run(strategy, nodes, model("float32"), 1)
    # Once for all workers, and once for each hub.
    assert seen == [(4, "count"), (2, "count"), (2, "count")]
    assert result.train_metrics_clientapp[1] == {"mine": 1.0}


def test_equal_weights_need_no_weight_in_replies() -> None:
    def train(partition, arrays, config):
        return {"x": arrays["x"] + partition}, {"loss": float(partition)}

    def evaluate_unequal(partition, arrays, config):
        return {}, {"loss": float(partition), "num-examples": 10**partition}

    strategy = MultiLevelStrategy(hubs=2, weighted_by_key=None)
    with Nodes(client_app(train, evaluate_unequal), 5) as nodes:
        result = run(strategy, nodes, {"x": np.zeros(2)}, 1)
    np.testing.assert_allclose(unpack(result.arrays)["x"], 2.0)
    assert result.train_metrics_clientapp[1] == pytest.approx({"loss": 2.0})
    assert result.evaluate_metrics_clientapp[1] == pytest.approx({"loss": 2.0})


def test_metrics_that_differ_are_not_averaged_but_models_are() -> None:
    def train(partition, arrays, config):
        more = {"extra": 1.0} if partition == 1 else {}
        return {"x": arrays["x"] + partition}, {"num-examples": 1, **more}

    with Nodes(client_app(train), 3) as nodes:
        result = run(
            MultiLevelStrategy(hubs=1, fraction_evaluate=0.0), nodes, {"x": np.zeros(2)}, 1
        )
    np.testing.assert_allclose(unpack(result.arrays)["x"], 1.0)
    assert result.train_metrics_clientapp == {}
