"""The engine of a run config, and the workers that a SuperNode hosts."""

from __future__ import annotations

from dataclasses import replace

from mll_flower.config import RunConfig
from mll_flower.training.run_engine import hosted_workers, network_of, run_engine


def test_one_engine_per_configuration() -> None:
    config, hub_of = RunConfig(model="logistic", batch_size=8, seed=1), (0, 0, 1)
    engine = run_engine(config, hub_of)
    assert run_engine(replace(config, tau=5, output="elsewhere"), hub_of) is engine
    other = run_engine(replace(config, seed=2), hub_of)
    assert other is not engine
    assert other.task.data is engine.task.data
    assert other.task.seed == 2
    assert sum(engine.examples(i) for i in range(engine.workers)) == len(engine.task.data.x_train)
    flat = engine.initial()
    for round in range(20):
        engine.train(flat, 0, round, 10, 0.2)
    assert engine.evaluate(flat)[1] > 0.7


def test_an_engine_has_the_workers_of_the_network() -> None:
    config = RunConfig(model="logistic", hubs=2, workers_per_hub="1,3")
    assert run_engine(config).workers == 4
    assert run_engine(config) is run_engine(config, (0, 1, 1, 1))


def test_a_node_hosts_a_worker_or_all_workers_of_a_hub() -> None:
    config = RunConfig(hubs=3, workers_per_hub="2,1,3")
    assert [hosted_workers(config, node) for node in range(3)] == [[0, 1], [2], [3, 4, 5]]
    alone = replace(config, pool="worker")
    assert [hosted_workers(alone, node) for node in range(6)] == [[i] for i in range(6)]
    assert network_of(config) is network_of(replace(config))
