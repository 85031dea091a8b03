"""Flower's command lines: exactly these, with TLS and without."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from mll_flower.deployment.commands import (
    deployment_environment,
    submit_command,
    superlink_command,
    supernode_command,
    worker_node_config,
)
from mll_flower.deployment.network_file import NetworkFile, NetworkFileError
from mll_flower.processes.warm.settings import WarmSettings
from tests.support.deployment import example_with


@pytest.fixture
def network(tmp_path: Path) -> NetworkFile:
    """Hubs a, b and c; b binds all interfaces."""
    return example_with(tmp_path, ('id = "b"', 'id = "b"\nlisten = "0.0.0.0"'))


def test_a_superlink_has_tls_and_authentication(network: NetworkFile, tmp_path: Path) -> None:
    certs, state = tmp_path / "certs", tmp_path / "state"
    keys = [tmp_path / "0.pub", tmp_path / "1.pub"]
    command = superlink_command(network.hub("a"), state, "127.0.0.1:5000", keys, insecure=False)
    assert command == [
        *[sys.executable, "-m", "mll_flower.processes.guarded_superlink"],
        *["--listen", "127.0.0.1:9400", "--host", "127.0.0.1", "--port", "5000"],
        *["--database", f"{state}/superlink.db"],
        *["--worker-key", str(keys[0]), "--worker-key", str(keys[1])],
        *["--private-certificate", f"{state}/private.crt", "--private-key", f"{state}/private.key"],
        *["--ssl-ca-certfile", f"{certs}/ca.crt"],
        *["--ssl-certfile", f"{certs}/hub-a.crt"],
        *["--ssl-keyfile", f"{certs}/hub-a.key"],
        "--enable-supernode-auth",
    ]


def test_a_superlink_without_tls_if_asked_for(network: NetworkFile, tmp_path: Path) -> None:
    command = superlink_command(network.hub("b"), tmp_path, "127.0.0.1:5000", [], insecure=True)
    assert command == [
        *[sys.executable, "-m", "mll_flower.processes.guarded_superlink"],
        *["--listen", "0.0.0.0:9402", "--host", "127.0.0.1", "--port", "5000"],
        *["--database", f"{tmp_path}/superlink.db"],
        "--insecure",
    ]


def test_a_supernode_has_tls_and_its_key(network: NetworkFile, tmp_path: Path) -> None:
    config = {"partition-id": 3, "data-dir": "/my data"}
    certs = tmp_path / "certs"
    assert supernode_command(network, "b", 1, 9999, config, insecure=False) == [
        *[sys.executable, "-m", "mll_flower.processes.warm.supernode", *WarmSettings().words()],
        *["--superlink", "127.0.0.1:9402"],
        *["--host", "127.0.0.1", "--port", "9999"],
        *["--node-config", 'partition-id=3 data-dir="/my data"'],
        *["--root-certificates", f"{certs}/ca.crt"],
        *["--auth-supernode-private-key", f"{certs}/workers/b-1"],
    ]


def test_a_supernode_without_tls_and_cold_if_asked_for(network: NetworkFile) -> None:
    cold = WarmSettings(cold=True)
    assert supernode_command(network, "a", 0, 9999, {}, insecure=True, settings=cold) == [
        *[sys.executable, "-m", "mll_flower.processes.warm.supernode", "--cold", "--"],
        *["--superlink", "127.0.0.1:9400"],
        *["--host", "127.0.0.1", "--port", "9999"],
        *["--node-config", ""],
        "--insecure",
    ]


def test_a_run_is_submitted_by_a_module_that_exists() -> None:
    config = {"role": "hub", "output": 'a "quoted" folder'}
    keys = [Path("/certs/a-0.pub"), Path("/certs/a-1.pub")]
    command = submit_command(Path("/app"), config, keys)
    assert command[:5] == [sys.executable, "-m", "mll_flower.processes.submit", "mll", "/app"]
    assert parse_config_args([command[5]]) == config
    assert command[6:] == ["/certs/a-0.pub", "/certs/a-1.pub"]
    __import__(command[2])


def test_workers_are_numbered_through_all_hubs(network: NetworkFile) -> None:
    places = [
        worker_node_config(network, hub.id, n)["partition-id"]
        for hub in network.hubs
        for n in range(hub.workers)
    ]
    assert places == [0, 1, 2, 3, 4, 5]
    assert worker_node_config(network, "c", 1) == {
        "partition-id": 5,
        "num-partitions": 6,
        "hub": "c",
        "number": 1,
    }


@pytest.mark.parametrize("number", [-1, 2])
def test_a_worker_that_the_hub_does_not_have(network: NetworkFile, number: int) -> None:
    with pytest.raises(NetworkFileError, match=f"2 workers, 0 to 1, and no number {number}"):
        worker_node_config(network, "b", number)


def test_flower_s_home_exists(tmp_path: Path) -> None:
    env = deployment_environment(tmp_path / "a" / "flwr")
    assert env["FLWR_HOME"] == str(tmp_path / "a" / "flwr")
    assert (tmp_path / "a" / "flwr").is_dir()
