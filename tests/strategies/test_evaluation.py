"""Evaluation on nodes: it ends on time, copes with other metrics, and is reported for each hub."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from flwr.app import ConfigRecord

from mll_flower import HubNetwork, MultiLevelResult, MultiLevelStrategy, RoundReport
from tests.support.arrays import record
from tests.support.flower_grid import EXAMPLES, Nodes, client_app, evaluate, fixed_weights, run

START = {"x": np.zeros(2)}


def step(partition, arrays, config):
    return {"x": arrays["x"] + partition}, {"num-examples": 1, "loss": float(partition)}


def value(partition, arrays, config):
    return {}, {"num-examples": 1, "value": float(arrays["x"][0]), "who": float(partition)}


# --- On time, with the nodes that there are ---


def test_evaluation_goes_on_with_fewer_nodes_than_the_minimum() -> None:
    """FedAvg would wait for ever for the node that has left."""
    strategy = MultiLevelStrategy(hubs=1, min_available_nodes=3, deadline=0.5)
    with Nodes(client_app(step, value), 3) as nodes:
        strategy.on_round = lambda report: nodes.leave(2) if report.number == 1 else None
        began = time.monotonic()
        result = run(strategy, nodes, START, 4)
        lasted = time.monotonic() - began
    assert [result.evaluate_metrics_clientapp[k]["who"] for k in (1, 2, 3, 4)] == [0.5] * 4
    assert lasted < 10  # it waits once, and not in every round


def test_evaluation_waits_no_longer_than_the_node_timeout() -> None:
    strategy = MultiLevelStrategy(hubs=1, node_timeout=0.4, min_available_nodes=3)
    with Nodes(client_app(step, value), 2) as nodes:
        began = time.monotonic()
        messages = strategy.configure_evaluate(1, record(START), ConfigRecord(), nodes.grid)
        assert 0.4 <= time.monotonic() - began < 10
    assert len(list(messages)) == 2


def test_evaluation_waits_for_nodes_that_come() -> None:
    strategy = MultiLevelStrategy(hubs=1, node_timeout=60, min_available_nodes=3)
    with Nodes(client_app(step, value), 2) as nodes:
        later = threading.Timer(0.4, nodes.add)
        later.start()
        messages = strategy.configure_evaluate(1, record(START), ConfigRecord(), nodes.grid)
        later.join()  # the nodes may end only after the last one has begun
        assert len(list(messages)) == 3


def test_a_node_that_never_evaluates_does_not_stop_the_run() -> None:
    release = threading.Event()

    def hang(partition, arrays, config):
        if partition == 0:
            release.wait(60)
        return value(partition, arrays, config)

    strategy = MultiLevelStrategy(hubs=1, deadline=0.5)
    with Nodes(client_app(step, hang), 3) as nodes:
        result = run(strategy, nodes, START, 1)
        release.set()
    assert result.evaluate_metrics_clientapp[1]["who"] == 1.5


# --- Replies with different metrics ---


def test_different_metrics_do_not_end_the_run() -> None:
    def partly(partition, arrays, config):
        metrics = {"num-examples": partition, "loss": float(partition)}
        if partition == 1:
            metrics["accuracy"] = 0.5
        if partition == 2:
            metrics = {"loss": 7.0}  # no weight: it is left out
        return {}, metrics

    with Nodes(client_app(step, partly), 4) as nodes:
        result = run(MultiLevelStrategy(hubs=2), nodes, START, 2)
    # Partition 0 weighs nothing; what all have in common is the loss of 1 and 3.
    assert result.evaluate_metrics_clientapp[2] == pytest.approx({"loss": (1 * 1 + 3 * 3) / 4})
    # Hub 0: the workers 0 (no weight) and 2 (no metric of weight); hub 1: 1 and 3.
    assert result.evaluate_metrics_hubs[2][0] is None
    assert result.evaluate_metrics_hubs[2][1] == pytest.approx({"loss": 2.5})


@pytest.mark.parametrize("metrics", [{}, {"num-examples": 0}, {"num-examples": [1, 2]}])
def test_metrics_that_cannot_be_weighed_give_none(metrics) -> None:
    app = client_app(step, lambda p, a, c: ({}, metrics))
    with Nodes(app, 2) as nodes:
        result = run(MultiLevelStrategy(hubs=1), nodes, START, 1)
    assert result.evaluate_metrics_clientapp == {}
    assert result.evaluate_metrics_hubs == {1: [None]}


# --- Each hub ---


def test_results_and_reports_have_the_metrics_of_each_hub() -> None:
    reports: list[RoundReport] = []
    strategy = MultiLevelStrategy(hubs=2, on_round=reports.append)
    with Nodes(client_app(fixed_weights, evaluate), 4) as nodes:
        result = run(strategy, nodes, START, 2)
    assert isinstance(result, MultiLevelResult)

    def mean(*workers: int) -> float:
        w = np.array([EXAMPLES[k] for k in workers])
        return float(w @ workers / w.sum())

    for number in (1, 2):
        trained = [m["loss"] for m in result.train_metrics_hubs[number]]
        assert trained == pytest.approx([mean(0, 2), mean(1, 3)])
        assert [hub.metrics["loss"] for hub in reports[number - 1].hubs] == trained
        evaluated = result.evaluate_metrics_hubs[number]
        assert [m["who"] for m in evaluated] == pytest.approx([mean(0, 2), mean(1, 3)])
        assert reports[number - 1].evaluation == evaluated
        # By default everyone evaluates u.
        assert evaluated[0]["total"] == pytest.approx(evaluated[1]["total"])
    assert result.evaluate_metrics_clientapp[2]["who"] == pytest.approx(mean(0, 1, 2, 3))


@pytest.mark.parametrize("kind", ["hubs", "network"])
def test_each_hubs_model_can_be_evaluated_on_its_own_workers(kind: str) -> None:
    options = {"q": 9, "evaluate": "hub"}
    if kind == "hubs":
        strategy = MultiLevelStrategy(hubs=2, **options)
    else:
        strategy = MultiLevelStrategy(HubNetwork.build(2, 2), **options)
    with Nodes(client_app(step, value), 4) as nodes:
        result = run(strategy, nodes, START, 2)
    hubs = [model["x"].numpy()[0] for model in strategy.hub_models()]
    assert hubs[0] != hubs[1]
    assert [m["value"] for m in result.evaluate_metrics_hubs[2]] == pytest.approx(hubs)
    assert result.evaluate_metrics_clientapp[2]["value"] == pytest.approx(np.mean(hubs))


def test_workers_are_sampled_within_each_hub_to_evaluate_its_model() -> None:
    strategy = MultiLevelStrategy(
        hubs=2, evaluate="hub", fraction_evaluate=0.5, min_evaluate_nodes=1
    )
    with Nodes(client_app(step, value), 8) as nodes:
        run(strategy, nodes, START, 1)
        asked = [nodes.ids.index(node) for node, kind in nodes.asked if kind == "evaluate"]
    assert sorted(k % 2 for k in asked) == [0, 0, 1, 1]


def test_hubs_are_evaluated_with_what_a_wrapper_has_added() -> None:
    class Noisy(MultiLevelStrategy):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            return record({"x": arrays["x"].numpy() + 1000}), metrics

    strategy = Noisy(hubs=2, q=9, evaluate="hub")
    with Nodes(client_app(step, value), 4) as nodes:
        result = run(strategy, nodes, START, 1)
    # The hubs' own models are 1 and 2.
    assert [m["value"] for m in result.evaluate_metrics_hubs[1]] == [1001, 1002]
