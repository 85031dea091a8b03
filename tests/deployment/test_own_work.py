"""A user's model, data, loss and partition, in files beside the network file, on real hubs."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import numpy as np
import pytest

from mll_flower.config import RunConfig
from mll_flower.deployment.network_entries import NetworkFile
from mll_flower.deployment.run_config import hub_run_config, own_node_config
from mll_flower.deployment.sites import HubSite
from mll_flower.processes.process_tree import Processes
from tests.support.deployment import Deployment, example_with
from tests.support.own_work import write_user_files
from tests.support.replay import Replay

CONFIG = {
    "model": "mine.py:Awkward",
    "dataset": "mine:classes",
    "loss": "mine:smooth",
    "metric": "mine:share_right",
    "partition": "mine:unequal",
    "optimiser": "adamw",
    "learning-rate": 0.02,
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_own_files_train_on_real_hubs(tmp_path: Path) -> None:
    write_user_files(tmp_path)
    with Deployment(
        tmp_path,
        hubs={"a": 1, "b": 2},
        edges=[("a", "b")],
        run_config={**CONFIG, "node-timeout": 120.0},
        tau=6,
        q=1,
        rounds=2,
        slot=0.01,
        round_deadline=90.0,
        gossip_deadline=60.0,
    ) as deployment:
        process = deployment.up()
        deployment.wait("the network ends", lambda: process.poll() is not None, 540.0)
        assert process.returncode == 0, deployment.report()
        assert re.search(r"test share_right 0\.\d+", (tmp_path / "up.out").read_text())
        rows = {hub: deployment.rows(hub) for hub in ("a", "b")}
        for theirs in rows.values():
            assert [len(row["absent"]) for row in theirs] == [0, 0]
            assert theirs[-1]["metric"] == "share_right"
            assert 0 <= theirs[-1]["share_right"] <= 1
        # To the bit, with the user's model, batches of the user's rows, and AdamW.
        replay = Replay(deployment.engine(), rows)
        for hub in rows:
            final = deployment.model(hub)
            assert set(final) == {"float32", "int64"}  # BatchNorm counts its batches
            for dtype, vector in final.items():
                np.testing.assert_array_equal(vector, replay.y[hub][dtype])


def own_network(folder: Path, **values: str) -> NetworkFile:
    """Write the example network with these values in its run config, and the user's files."""
    lines = "".join(f'{key} = "{value}"\n' for key, value in values.items())
    changes = ('dataset = "digits"\nmodel = "mlp"\n', lines)
    return example_with(write_user_files(folder), changes)


def test_code_and_rows_are_looked_for_beside_the_network_file(tmp_path: Path) -> None:
    network = own_network(tmp_path, dataset="mine.py:classes", model="mine.py:Awkward")
    config = hub_run_config(network, "a", tmp_path / "state", False)
    assert config["code-dir"] == str(tmp_path)
    # A worker's machine may have them elsewhere: its own node config goes before the run config.
    assert own_node_config(network) == {"code-dir": str(tmp_path)}
    other = write_user_files(tmp_path / "other")
    given = own_node_config(network, f'code-dir="{other}"')
    assert given == {"code-dir": str(other)}
    at_worker = RunConfig.from_run_config(config).at_node(given)
    assert (at_worker.code_dir, at_worker.dataset) == (str(other), "mine.py:classes")


def test_a_workers_own_function_is_found_without_a_code_dir(tmp_path: Path) -> None:
    network = own_network(write_user_files(tmp_path), dataset="digits", model="mlp")
    given = own_node_config(network, 'dataset="mine.py:classes"')
    assert given == {"dataset": "mine.py:classes", "code-dir": str(tmp_path)}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dataset": "mine.py:classes", "model": "mine.py:Net"}, "mine.py has no 'Net'"),
        ({"dataset": "none:load", "model": "mlp"}, "no module 'none'"),
        ({"dataset": "digits", "model": "mine.py:Awkward"}, "model='mine.py:Awkward' on a batch"),
    ],
)
def test_a_mistake_is_named_before_anything_starts(
    tmp_path: Path, values: dict[str, str], message: str
) -> None:
    network = own_network(tmp_path, **values)
    with pytest.raises(ValueError, match=re.escape(message)):
        own_node_config(network)
    with pytest.raises(ValueError, match=re.escape(message)), Processes() as processes:
        HubSite(network, "a", processes, threading.Event(), insecure=True)
