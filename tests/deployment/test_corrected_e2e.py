"""Three hubs with corrections, as real processes: they equal the readable algorithm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mll_flower.algorithm.corrected_reference import corrected_mll_sgd
from mll_flower.algorithm.graphs import hub_graph
from mll_flower.algorithm.mixing import mixing_matrix
from mll_flower.algorithm.network import HubNetwork
from tests.support.deployment import Deployment
from tests.support.replay import real_gradient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TAU, Q, ROUNDS, HUBS = 10, 2, 6, ("a", "b", "c")


@pytest.mark.parametrize(
    ("keys", "tolerance"),
    [
        (
            {
                "hub-correction": "exact-diffusion",
                "worker-correction": "mtgc",
                "outer": "slowmo",
            },
            1e-5,
        ),
        # Models that differ in the last bits of single precision may round to other numbers.
        ({"gossip-precision": "half"}, 1e-3),
    ],
    ids=["drift", "half"],
)
def test_hubs_equal_the_readable_algorithm(tmp_path: Path, keys, tolerance: float) -> None:
    with Deployment(
        tmp_path,
        hubs=dict.fromkeys(HUBS, 2),
        edges=[("a", "b"), ("b", "c")],
        run_config={"model": "logistic", "partition": "sized", "node-timeout": 120.0},
        tau=TAU,
        q=Q,
        rounds=ROUNDS,
        slot=0.002,
        round_deadline=90.0,
        gossip_deadline=60.0,
        **keys,
    ) as deployment:
        deployment.run("up", "up", str(deployment.path))
        process = deployment.processes["up"]
        deployment.wait("the network ends", lambda: process.poll() is not None, 540.0)
        assert process.returncode == 0, deployment.report()
        engine = deployment.engine()
        examples = [engine.examples(i) for i in range(6)]
        network = HubNetwork.build(
            workers_per_hub=[2, 2, 2], graph=hub_graph("path", 3), weights=examples
        )
        coins = np.zeros((ROUNDS * TAU, 6), dtype=bool)
        for hub in HUBS:
            for row in deployment.rows(hub):
                assert len(row["arrived"]) == 2
                assert not row["silent"]
                for reply in row["arrived"]:
                    first = (row["round"] - 1) * TAU
                    coins[first : first + reply["steps"], reply["worker"]] = True
        history = corrected_mll_sgd(
            real_gradient(engine, TAU, 8),
            network,
            mixing_matrix(network.graph, network.b, "metropolis"),
            TAU,
            Q,
            0.1,
            coins,
            engine.initial()["float32"].astype(np.float64),
            deployment.network.corrections,
        )
        for d, hub in enumerate(HUBS):
            np.testing.assert_allclose(
                deployment.model(hub)["float32"], history.hubs[-1, d], atol=tolerance, rtol=0
            )
        if "gossip-precision" in keys:
            row = deployment.rows("a")[-1]
            mixings, size = ROUNDS // Q, engine.initial()["float32"].nbytes
            assert row["gossip_sent"] < mixings * (size / 2 + 2000)
