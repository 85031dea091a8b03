"""A Flower app that is not this project's, on two real hubs with TLS: the simulation's models."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, RecordDict
from safetensors.numpy import load_file

from mll_flower import HubNetwork, MultiLevelStrategy
from mll_flower.algorithm.graphs import hub_graph
from mll_flower.deployment.hub_state import FLOWER_HOME, HUB_LOG, MODEL_FILE, SUPERLINK_LOG
from mll_flower.grids.in_process import InProcessGrid
from tests.support.deployment import Deployment, running_in

pytestmark = pytest.mark.timeout(400)

APP = Path(__file__).parents[1] / "support" / "own_app"
WORKERS, ROUNDS, STEP = {"a": 1, "b": 2}, 2, 0.25


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A run that is over, with its files."""
    with Deployment(
        tmp_path_factory.mktemp("own-app"),
        hubs=WORKERS,
        edges=[("a", "b")],
        run_config={"step-size": STEP, "title": "deployed", "node-timeout": 120.0},
        app=str(APP),
        tau=7,
        q=1,
        rounds=ROUNDS,
        slot=0.01,
        round_deadline=90.0,
        gossip_deadline=90.0,
    ) as deployment:
        process = deployment.up()
        deployment.wait("the network ends", lambda: process.poll() is not None, 300.0)
        assert process.returncode == 0, deployment.report()
        deployment.left = running_in(deployment.folder)
        return deployment


@pytest.fixture
def own_app(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(APP))
    yield lambda name: importlib.import_module(f"ownapp.{name}").app
    for name in [name for name in sys.modules if name.startswith("ownapp")]:
        del sys.modules[name]


def test_the_models_are_those_of_the_simulation(finished: Deployment, own_app: Any) -> None:
    network = HubNetwork.build(
        workers_per_hub=list(WORKERS.values()), graph=hub_graph("path", 2), weights=[1, 2, 3]
    )
    simulated = MultiLevelStrategy(network, q=1, mixing="metropolis", fraction_evaluate=0.0)
    grid = InProcessGrid(own_app("client_app"), 3, {"step-size": STEP})
    simulated.start(grid, ArrayRecord([np.zeros(3)]), num_rounds=ROUNDS)
    for d, hub in enumerate(WORKERS):
        (expected,) = simulated.hubs[d].layout.arrays(simulated.hubs[d].model).values()
        (found,) = load_file(finished.state_of(hub) / MODEL_FILE).values()
        np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_the_same_app_runs_the_whole_network(
    own_app: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    config = {"step-size": STEP, "title": "simulated", "num-server-rounds": ROUNDS}
    grid = InProcessGrid(own_app("client_app"), 3, config)
    own_app("server_app")(grid, Context(1, 1, {}, RecordDict(), config))
    assert json.loads((tmp_path / "result.json").read_text())["title"] == "simulated"


def test_what_the_hubs_recorded(finished: Deployment) -> None:
    numbers = {"a": [0], "b": [1, 2]}
    for hub in WORKERS:
        rows = finished.rows(hub)
        assert [row["round"] for row in rows] == [1, 2]
        assert not any(row["absent"] or row["silent"] for row in rows), rows
        for row in rows:
            assert sorted(reply["worker"] for reply in row["arrived"]) == numbers[hub]
            assert {reply["steps"] for reply in row["arrived"]} == {None}
            assert row["loss"] > 0
        (model,) = load_file(finished.state_of(hub) / MODEL_FILE).values()
        assert (rows[-1]["accuracy"], rows[-1]["test_loss"]) == (model[0], model[1])
        assert rows[-1]["evaluation"] == {"third": model[2]}


def test_what_the_app_did_after_its_last_round(finished: Deployment) -> None:
    for hub in WORKERS:
        folder = finished.state_of(hub)
        known = json.loads((folder / FLOWER_HOME / "result.json").read_text())
        (model,) = load_file(folder / MODEL_FILE).values()
        assert known == {"x": model.tolist(), "title": "deployed"}
        assert "hubs=3 in the app: the network file decides, 2" in (folder / HUB_LOG).read_text()
        assert "https://" in (folder / SUPERLINK_LOG).read_text()


def test_nothing_is_left_behind(finished: Deployment) -> None:
    assert finished.left == []
