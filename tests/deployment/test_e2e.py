"""Three hubs on a path with two workers each, as real processes, with TLS on all connections."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mll_flower.algorithm.graphs import hub_graph
from mll_flower.algorithm.mixing import mixing_matrix, zeta
from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.reference import mll_sgd
from mll_flower.deployment.example_network import example_network
from mll_flower.deployment.hub_state import FLOWER_HOME, SUPERLINK_LOG
from mll_flower.models.sums import distance
from tests.support.deployment import COMMAND, Deployment, running_in
from tests.support.replay import Replay, real_gradient

pytestmark = pytest.mark.timeout(600)

TAU, Q, ROUNDS, HUBS = 10, 2, 4, ("a", "b", "c")


@pytest.fixture(scope="module", params=["warm", pytest.param("cold", marks=pytest.mark.slow)])
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Deployment:
    """A run that is over, with its files; with warm workers, and as Flower runs them."""
    with Deployment(
        tmp_path_factory.mktemp("e2e"),
        hubs=dict.fromkeys(HUBS, 2),
        edges=[("a", "b"), ("b", "c")],
        run_config={"model": "logistic", "partition": "sized", "node-timeout": 120.0},
        tau=TAU,
        q=Q,
        rounds=ROUNDS,
        slot=0.002,  # seconds; so short that workers miss some slots
        round_deadline=90.0,  # nobody is late; a round ends when all have answered
        gossip_deadline=60.0,
    ) as deployment:
        cold = ["--cold"] if request.param == "cold" else []
        deployment.run("up", "up", str(deployment.path), *cold)
        process = deployment.processes["up"]
        deployment.wait("the network ends", lambda: process.poll() is not None, 540.0)
        assert process.returncode == 0, deployment.report()
        deployment.left = running_in(deployment.folder)
        return deployment


def test_every_hub_ran_every_round(finished: Deployment) -> None:
    for hub in HUBS:
        rows = finished.rows(hub)
        assert [row["round"] for row in rows] == [1, 2, 3, 4]
        assert [row["mixing"] for row in rows] == [None, 1, None, 2]
        assert all(len(row["arrived"]) == 2 and not row["absent"] for row in rows), rows
        assert not any(row["silent"] for row in rows)
        steps = [reply["steps"] for row in rows for reply in row["arrived"]]
        assert all(1 <= n <= TAU for n in steps)
        assert all(reply["rate"] == reply["steps"] / TAU for r in rows for reply in r["arrived"])
        assert rows[-1]["accuracy"] > 0.5
        assert all(row["late"] <= 2.0 for row in rows)


def test_the_models_are_those_of_the_reported_steps_to_the_bit(finished: Deployment) -> None:
    replay = Replay(finished.engine(), {hub: finished.rows(hub) for hub in HUBS})
    for hub in HUBS:
        final = finished.model(hub)
        np.testing.assert_array_equal(final["float32"], replay.y[hub]["float32"])


def network_of(finished: Deployment) -> HubNetwork:
    examples = [finished.engine().examples(i) for i in range(6)]
    return HubNetwork.build(workers_per_hub=[2, 2, 2], graph=hub_graph("path", 3), weights=examples)


def test_the_mixing_matrix_from_local_knowledge_is_metropolis(finished: Deployment) -> None:
    network = network_of(finished)
    expected = mixing_matrix(network.graph, network.b, "metropolis")
    assert len(set(network.b)) > 1  # unequal hubs: weights matter
    for d, hub in enumerate(HUBS):
        for row in finished.rows(hub):
            if row["mixing"]:
                column = [row["column"].get(j, 0.0) for j in HUBS]
                np.testing.assert_allclose(column, expected[:, d], atol=1e-12)


def test_the_models_are_those_of_algorithm_1(finished: Deployment) -> None:
    engine, network = finished.engine(), network_of(finished)
    coins = np.zeros((ROUNDS * TAU, 6), dtype=bool)
    for hub in HUBS:
        for row in finished.rows(hub):
            for reply in row["arrived"]:
                first = (row["round"] - 1) * TAU
                coins[first : first + reply["steps"], reply["worker"]] = True

    start = engine.initial()["float32"].astype(np.float64)
    H = mixing_matrix(network.graph, network.b, "metropolis")
    history = mll_sgd(real_gradient(engine, TAU, 8), network, H, TAU, Q, 0.1, coins, start)
    for d, hub in enumerate(HUBS):
        np.testing.assert_allclose(
            finished.model(hub)["float32"], history.hubs[-1, d], atol=1e-5, rtol=0
        )


def test_a_mixing_brings_the_hubs_together_by_zeta(finished: Deployment) -> None:
    network = network_of(finished)
    factor = zeta(mixing_matrix(network.graph, network.b, "metropolis"))
    replay = Replay(finished.engine(), {hub: finished.rows(hub) for hub in HUBS})

    def disagreement(models: list[dict[str, np.ndarray]]) -> float:
        middle = {"float32": sum(b * m["float32"] for b, m in zip(network.b, models, strict=True))}
        return float(
            np.sqrt(
                sum(b * distance(m, middle) ** 2 for b, m in zip(network.b, models, strict=True))
            )
        )

    before = disagreement([replay.z[hub, 2] for hub in HUBS])
    after = disagreement([finished.model(hub) for hub in HUBS])
    assert 0 < after <= factor * before * (1 + 1e-4)


def test_nothing_is_left_behind(finished: Deployment) -> None:
    assert finished.left == []
    for port in finished.ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))


def test_tls_and_authentication_were_on(finished: Deployment) -> None:
    for hub in HUBS:
        log = (finished.state_of(hub) / SUPERLINK_LOG).read_text()
        assert "https://" in log
        assert log.count("Activated node_id") >= 2
        config = (finished.state_of(hub) / FLOWER_HOME / "config.toml").read_text()
        assert "root-certificates" in config
        assert "insecure" not in config


@pytest.mark.parametrize(
    "arguments",
    [["up"], ["hub", "--id", "a"], ["worker", "--hub", "a", "--number", "0"], ["status"]],
    ids=lambda arguments: arguments[0],
)
def test_nothing_runs_without_tls_unless_it_is_asked_for(
    tmp_path: Path, arguments: list[str]
) -> None:
    path = tmp_path / "network.toml"
    path.write_text(example_network())
    command = [COMMAND, arguments[0], str(path), *arguments[1:]]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 2
    assert f"mll-flower certs {path}" in run.stderr
    assert "--insecure" in run.stderr
    assert running_in(tmp_path) == []
    assert not (tmp_path / "state").exists()
