"""One hub's run without a deployment: its rounds, its files, a restart."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from safetensors.numpy import load_file

from mll_flower.algorithm.corrected_reference import corrected_mll_sgd
from mll_flower.algorithm.network import HubNetwork
from mll_flower.apps import deployed_worker
from mll_flower.apps.hub_run import run_hub
from mll_flower.apps.worker_app import worker_app
from mll_flower.config import RunConfig
from mll_flower.deployment.hub_state import HUB_LOG, MODEL_FILE, ROUNDS_FILE, Phase, read_now
from mll_flower.deployment.network_file import load_network
from mll_flower.deployment.run_config import hub_run_config
from mll_flower.grids.in_process import InProcessGrid
from mll_flower.models.checkpoint import FILE, load_checkpoint
from mll_flower.training.run_engine import run_engine
from tests.support.deployment import free_ports, write_data
from tests.support.replay import Replay, real_gradient

NETWORK = """
name = "{name}"
tau = 5
q = 2
slot = 0.001
rounds = {rounds}
round-deadline = {deadline}
{keys}
[run-config]
dataset = "npz:data.npz"
model = "{model}"
batch-size = 8
learning-rate = 0.1
weights = "{weights}"
node-timeout = 1.0
[[hub]]
id = "a"
superlink = "127.0.0.1:{superlink}"
gossip = "127.0.0.1:{gossip}"
workers = {workers}
"""


class Site:
    """A hub with two workers in this process, and where it keeps its files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "state" / "hub-a"
        self.superlink, self.gossip = free_ports(2)
        write_data(folder / "data.npz")

    def run(
        self,
        rounds: int,
        model: str = "logistic",
        name: str = "trial",
        workers: int = 2,
        keys: str = "",
        deadline: str = "30",
        weights: str = "examples",
    ) -> None:
        text = NETWORK.format(
            name=name,
            rounds=rounds,
            model=model,
            workers=workers,
            keys=keys,
            deadline=deadline,
            weights=weights,
            superlink=self.superlink,
            gossip=self.gossip,
        )
        (self.folder / "network.toml").write_text(text)
        network = load_network(self.folder / "network.toml")
        values = hub_run_config(network, "a", self.state, insecure=True)
        self.config = RunConfig.from_run_config(values)
        context = Context(1, 1, {}, RecordDict(), values)
        run_hub(InProcessGrid(worker_app(), 2, values), context)

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.state / ROUNDS_FILE).read_text().splitlines()]

    def rows(self) -> list[dict[str, Any]]:
        return [entry for entry in self.entries() if "arrived" in entry]

    def events(self) -> list[tuple[str, int, bool]]:
        entries = [entry for entry in self.entries() if "event" in entry]
        return [(entry["event"], entry["round"], entry["resumed"]) for entry in entries]

    def check_model(self) -> None:
        """Check that the hub's model is that of the recorded steps, to the bit."""
        engine = run_engine(self.config)
        expected = Replay(engine, {"a": self.rows()}).y["a"]
        model = engine.layout.flatten(load_file(self.state / MODEL_FILE))
        np.testing.assert_array_equal(model["float32"], expected["float32"])


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_whole_run(site: Site) -> None:
    site.run(rounds=4)
    rows = site.rows()
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert [row["mixing"] for row in rows] == [None, 1, None, 2]
    assert ["accuracy" in row for row in rows] == [False, True, False, True]
    assert [[reply["worker"] for reply in row["arrived"]] for row in rows] == [[0, 1]] * 4
    assert site.events() == [("begins", 0, False)]
    now = read_now(site.state)
    assert (now["phase"], now["round"], now["workers"]) == (Phase.FINISHED, 4, 2)
    site.check_model()
    with socket.create_server(("127.0.0.1", site.gossip)):
        pass  # its port is free again


@pytest.mark.parametrize(("weights", "believed"), [("equal", [1, 1]), ("3,2", [3, 3])])
def test_a_worker_weighs_no_more_than_the_network_file_says(
    site: Site, monkeypatch: pytest.MonkeyPatch, weights: str, believed: list[float]
) -> None:
    monkeypatch.setattr(deployed_worker, "_weight", lambda *_: 1e9)
    site.run(rounds=2, weights=weights)
    assert [reply["weight"] for reply in site.rows()[-1]["arrived"]] == believed


def test_a_hub_learns_the_deadline_of_its_rounds(site: Site) -> None:
    site.run(rounds=3, deadline='"auto"\nround-deadline-cap = 70')
    first, *others = [row["deadline"] for row in site.rows()]
    assert first == 70.0, "before anything is known, the longest"
    assert all(5.005 <= deadline < 70.0 for deadline in others)
    assert read_now(site.state)["deadline"] == others[-1]
    site.check_model()


def test_a_hub_that_is_started_again_goes_on_from_its_checkpoint(site: Site) -> None:
    site.run(rounds=2)
    rows = site.rows()
    # As if it had been killed after the checkpoint, while it wrote the row.
    text = (site.state / ROUNDS_FILE).read_text()
    (site.state / ROUNDS_FILE).write_text(text[:-30])
    site.run(rounds=4)
    assert site.rows()[:2] == rows
    assert [row["round"] for row in site.rows()] == [1, 2, 3, 4]
    assert site.events() == [("begins", 0, False), ("begins", 2, True)]
    site.check_model()


def test_a_hub_that_comes_back_after_the_last_round_has_its_model(site: Site) -> None:
    site.run(rounds=2)
    (site.state / MODEL_FILE).unlink()
    site.run(rounds=2)
    assert [row["round"] for row in site.rows()] == [1, 2]
    site.check_model()


def test_the_checkpoint_of_another_run_is_not_used(site: Site) -> None:
    site.run(rounds=2)
    site.run(rounds=2, name="another")
    assert site.events() == [("begins", 0, False)] * 2
    assert [row["round"] for row in site.rows()] == [1, 2, 1, 2]


def test_a_checkpoint_of_another_model_is_kept_aside(site: Site) -> None:
    site.run(rounds=2)
    before = (site.state / FILE).read_bytes()
    site.run(rounds=4, model="mlp")
    assert [row["round"] for row in site.rows()] == [1, 2, 1, 2, 3, 4]
    (bad,) = site.state.glob(f"{FILE}.bad-*")
    assert bad.read_bytes() == before
    assert "it holds another model than this run trains" in (site.state / HUB_LOG).read_text()


def test_a_damaged_checkpoint_and_record_do_not_end_a_hub(site: Site) -> None:
    site.run(rounds=2)
    path = site.state / FILE
    path.write_bytes(path.read_bytes()[:-3])
    with (site.state / ROUNDS_FILE).open("ab") as file:
        file.write(b'\xff\xfe{"round": \n[1]\n{"half')
    site.run(rounds=2)
    site.run(rounds=4)  # from the new checkpoint
    assert len(list(site.state.glob(f"{FILE}.bad-*"))) == 1
    rows = []
    for line in (site.state / ROUNDS_FILE).read_bytes().splitlines():
        with suppress(ValueError):
            rows.append(json.loads(line))
    assert [row["round"] for row in rows if "arrived" in row] == [1, 2, 1, 2, 3, 4]


def test_a_hub_begins_without_workers_that_do_not_come(site: Site) -> None:
    site.run(rounds=2, workers=3)  # one more than connect; it waits for node-timeout
    assert [len(row["arrived"]) for row in site.rows()] == [2, 2]


def test_the_limits_of_the_network_file_hold_at_its_hubs(site: Site) -> None:
    site.run(rounds=2, keys='max-examples = 3\nmax-update-norm = "20x"\nmax-metrics = 50')
    rows = site.rows()
    assert [[reply["weight"] for reply in row["arrived"]] for row in rows] == [[3, 3]] * 2
    assert rows[0]["weight"] == 6
    site.check_model()
    site.run(rounds=3, keys="max-update-norm = 1e-9")
    assert [reply["cause"] for reply in site.rows()[-1]["absent"]] == ["too-large"] * 2


def test_corrections_equal_the_readable_algorithm_across_a_restart(site: Site) -> None:
    keys = """
        worker-correction = "mtgc"
        hub-correction = "exact-diffusion"
        outer = "slowmo"
        gossip-precision = "half"
    """
    site.run(rounds=3, keys=keys)
    assert {name.partition("/")[0] for name in load_checkpoint(site.state).state} == {
        "drift",
        "gradient",
        "momentum",
        "mixed",
    }
    site.run(rounds=6, keys=keys)
    engine, tau = run_engine(site.config), site.config.tau
    coins = np.zeros((6 * tau, 2), dtype=bool)
    for row in site.rows():
        for reply in row["arrived"]:
            first = (row["round"] - 1) * tau
            coins[first : first + reply["steps"], reply["worker"]] = True
    network = HubNetwork.build(1, 2, weights=[engine.examples(i) for i in range(2)])
    history = corrected_mll_sgd(
        real_gradient(engine, tau, 8),
        network,
        [[1.0]],
        tau,
        2,
        0.1,
        coins,
        engine.initial()["float32"].astype(np.float64),
        load_network(site.folder / "network.toml").corrections,
    )
    model = engine.layout.flatten(load_file(site.state / MODEL_FILE))["float32"]
    np.testing.assert_allclose(model, history.hubs[-1, 0], atol=1e-5, rtol=0)
    assert np.abs(model).max() > 0.01


@pytest.mark.parametrize("name", ["fedmedian", "fedtrimmedavg"])
def test_a_robust_strategy_aggregates_inside_the_hub(site: Site, name: str) -> None:
    site.run(rounds=2, keys=f'inner-strategy = "{name}"')
    assert [len(row["arrived"]) for row in site.rows()] == [2, 2]
    text = (site.state / HUB_LOG).read_text().lower()
    assert f"inner_strategy: {name}" in text
