"""Presets: each runs the algorithm of its name, which is written out by hand here."""

from __future__ import annotations

import numpy as np
import pytest

from mll_flower.algorithm.mixing import mixing_matrix, zeta
from mll_flower.presets import PRESETS
from tests.support.simulated import Batches, close, config_of, network_of, play


def test_distributed_sgd_is_sgd_on_all_workers_batches(tmp_path):
    settings = {"preset": "distributed-sgd", "slots": 12, "partition": "sized"}
    run, config = play(tmp_path, **settings), config_of(**settings)
    batches = Batches(config)
    examples = [len(shard) for shard in batches.shards]
    w = np.zeros(65)
    for round in range(1, 13):
        gradients = [batches.gradient(i, round, 0, w) for i in range(6)]
        w = w - config.learning_rate * np.average(gradients, axis=0, weights=examples)
    assert len(set(examples)) > 1
    assert close(run.vector(), w)
    assert {row["hub"] for row in run.rows} == {"0", "all"}


def test_local_sgd_on_one_hub_equals_that_on_a_complete_graph(tmp_path):
    settings = {"preset": "local-sgd", "slots": 100, "rates": "0.5"}
    complete = play(tmp_path / "complete", hubs=3, workers_per_hub="2", **settings)
    one = play(tmp_path / "one", hubs=1, workers_per_hub="6", **settings)
    assert close(one.vector(), complete.vector())
    assert [e["slot"] for e in one.evaluations] == [e["slot"] for e in complete.evaluations]
    assert complete.report["network"]["zeta"] == pytest.approx(0, abs=1e-9)


def test_fedavg_weighs_by_examples(tmp_path):
    settings = {"preset": "fedavg", "partition": "sized", "weights": "equal", "tau": 3}
    run, config = play(tmp_path, slots=3, rates="1", **settings), config_of(slots=99, **settings)
    batches = Batches(config)
    examples = [len(shard) for shard in batches.shards]
    local = []
    for i in range(6):
        w = np.zeros(65)
        for step in range(3):
            w = w - config.learning_rate * batches.gradient(i, 1, step, w)
        local.append(w)
    assert len(set(examples)) > 1
    assert [w["weight"] for w in run.report["workers"]] == examples
    assert close(run.vector(), np.average(local, axis=0, weights=examples))


def test_fedavg_waits_and_fedavg_deadline_does_not(tmp_path):
    settings = {"rates": "0.5", "slots": 60, "tau": 4}
    waiting = play(tmp_path / "waiting", preset="fedavg", **settings)
    deadline = play(tmp_path / "deadline", preset="fedavg-deadline", **settings)
    rounds = waiting.report["summary"]["rounds"]
    assert {w["steps"] for w in waiting.report["workers"]} == {4 * rounds}
    assert 4 * rounds < waiting.report["summary"]["slot"] <= 60
    assert deadline.report["summary"]["rounds"] == 15
    assert len({w["steps"] for w in deadline.report["workers"]}) > 1
    # Neither inherits q: each round is evaluated.
    assert len(waiting.evaluations) == rounds + 1
    assert len(deadline.evaluations) == 16


def test_cooperative_sgd_is_one_step_per_worker_and_a_mixing(tmp_path):
    settings = {"preset": "cooperative-sgd", "tau": 1, "slots": 10, "partition": "sized"}
    run, config = play(tmp_path, **settings), config_of(**settings)
    network, batches = network_of(config), Batches(config)
    h = mixing_matrix(network.graph, np.full(6, 1 / 6), "metropolis")
    x = np.zeros((6, 65))
    for k in range(1, 11):
        x -= config.learning_rate * np.array([batches.gradient(i, k, 0, x[i]) for i in range(6)])
        x = h.T @ x
    assert run.report["network"]["b"] == pytest.approx([1 / 6] * 6)
    assert run.report["network"]["zeta"] == pytest.approx(zeta(h))
    assert close(run.vector(), x.mean(axis=0))
    assert not close(x[0], x[5], 1e-3)


def test_mll_sgd_changes_no_value():
    assert PRESETS["mll-sgd"] == {}
