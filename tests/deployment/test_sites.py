"""What a network file becomes: run configs, commands, columns of H; and how hubs are asked."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mll_flower.cli import app
from mll_flower.config import RunConfig
from mll_flower.deployment import commands as flower
from mll_flower.deployment.certs import make_certs
from mll_flower.deployment.connect import connect
from mll_flower.deployment.example_network import example_network
from mll_flower.deployment.mixing_column import mixing_column
from mll_flower.deployment.network_file import NetworkFile, NetworkFileError, load_network
from mll_flower.deployment.run_config import hub_run_config, own_node_config
from mll_flower.deployment.sites import HubSite, SiteFailed, WorkerSite
from mll_flower.processes.process_tree import Processes
from tests.support.deployment import free_ports

ROOT = Path(__file__).parents[2]


def network_with(folder: Path, *changes: tuple[str, str]) -> NetworkFile:
    text = example_network()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "network.toml").write_text(text)
    return load_network(folder / "network.toml")


def test_the_run_config_says_what_the_network_file_says(tmp_path: Path) -> None:
    network = network_with(tmp_path, ("tau = 10", "tau = 7"), ("workers = 2", "workers = 3"))
    values = hub_run_config(network, "b", tmp_path / "state" / "hub-b", insecure=False)
    assert values["role"] == "hub"
    assert values["network"] == str(tmp_path / "network.toml")
    assert (values["hub"], values["run-name"], values["insecure"]) == ("b", "first-look", False)
    config = RunConfig.from_run_config(values)
    assert (config.hubs, config.workers_per_hub, config.tau, config.q) == (3, "3,3,3", 7, 2)
    assert config.slots == 6 * 7
    assert (config.dataset, config.model, config.learning_rate) == ("digits", "mlp", 0.1)
    assert config.output == str(tmp_path / "state" / "hub-b")


def test_every_key_of_a_hub_s_run_config_is_in_the_app(tmp_path: Path) -> None:
    import tomllib

    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    values = hub_run_config(network_with(tmp_path), "a", tmp_path, insecure=False)
    for key, value in values.items():
        assert key in table, f"flwr run would refuse {key}"
        assert type(value) is type(table[key]), key


def test_paths_in_the_run_config_start_at_the_network_file(tmp_path: Path) -> None:
    network = network_with(
        tmp_path, ('dataset = "digits"', 'dataset = "npz:mine.npz"\ndata-dir = "data"')
    )
    (tmp_path / "mine.npz").touch()
    values = hub_run_config(network, "a", tmp_path, insecure=False)
    assert values["dataset"] == f"npz:{tmp_path}/mine.npz"
    assert values["data-dir"] == f"{tmp_path}/data"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tau = 3", "sets this by `tau`"),
        ("pool = 'hub'", "a SuperNode is one worker"),
        ("learning_rat = 3", "unknown key; the known ones are batch-size"),
        ("model = 'xl'", "model='xl' is not known"),
        ("momentum = 'x'", "momentum='x': give a number"),
        ("dataset = 'npz:none.npz'", "none.npz' is not there"),
    ],
)
def test_a_run_config_that_cannot_be_is_an_error_before_anything_starts(
    tmp_path: Path, line: str, words: str
) -> None:
    text = "".join(
        f"{line}\n" if old.startswith("model") else f"{old}\n"
        for old in example_network().splitlines()
        if not (old.startswith("dataset") and line.startswith("dataset"))
    )
    (tmp_path / "network.toml").write_text(text)
    network = load_network(tmp_path / "network.toml")
    with pytest.raises(ValueError) as error:
        hub_run_config(network, "a", tmp_path, insecure=False)
    assert words in str(error.value)


def test_a_worker_s_own_data(tmp_path: Path) -> None:
    network = network_with(tmp_path)
    given = own_node_config(network, 'dataset="npz:own data.npz" data-dir="here" speed=2')
    expected = {"dataset": f"npz:{tmp_path}/own data.npz", "data-dir": f"{tmp_path}/here"}
    assert given == {**expected, "speed": 2}
    assert own_node_config(network) == {}
    for wrong in ("dataset=npz:x", "words"):
        with pytest.raises(ValueError, match="write pairs"):
            own_node_config(network, wrong)


def test_workers_are_numbered_through_all_hubs(tmp_path: Path) -> None:
    network = network_with(tmp_path)
    places = [
        flower.node_config(network, hub.id, n)["partition-id"]
        for hub in network.hubs
        for n in range(hub.workers)
    ]
    assert places == [0, 1, 2, 3, 4, 5]
    with pytest.raises(NetworkFileError, match="hub b has 2 workers, 0 to 1; there is no number 2"):
        WorkerSite(network, "b", 2, Processes(), print)


def test_commands_have_tls_and_authentication_unless_told(tmp_path: Path) -> None:
    network = network_with(tmp_path)
    superlink = flower.superlink_words(network.hub("a"), tmp_path, insecure=False)
    assert "--enable-supernode-auth" in superlink
    assert "--insecure" not in superlink
    assert str(tmp_path / "certs" / "hub-a.key") in superlink
    supernode = flower.supernode_words(network, "a", 1, 9999, {"x": "y"}, insecure=False)
    assert "--insecure" not in supernode
    assert supernode[-1] == str(tmp_path / "certs" / "workers" / "a-1")
    assert "--insecure" in flower.superlink_words(network.hub("a"), tmp_path, insecure=True)
    assert "--insecure" in flower.supernode_words(network, "a", 1, 9999, {}, insecure=True)


@pytest.mark.parametrize("value", ['a"b', "a'b", "a\\b", "a\nb"])
def test_values_that_flower_would_misread_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="no quotes"):
        flower.pairs({"key": value})


def test_a_column_of_h_from_a_file(tmp_path: Path) -> None:
    h = np.array([[0.5, 0.25, 0], [0.5, 0.5, 0.25], [0, 0.25, 0.75]])
    np.savetxt(tmp_path / "H.txt", h)
    change = ('mixing = "metropolis"', 'mixing = "H.txt"')
    network = network_with(tmp_path, change)
    with pytest.raises(NetworkFileError, match='set weights = "equal"'):
        mixing_column(network, RunConfig(hubs=3, workers_per_hub="2", weights="examples"), "b")
    config = RunConfig(hubs=3, workers_per_hub="2", weights="equal")
    with pytest.raises(ValueError, match="detailed balance"):
        mixing_column(network, config, "b")
    h[:, 0] = [0.75, 0.25, 0]
    np.savetxt(tmp_path / "H.txt", h)
    assert mixing_column(network, config, "b") == {"a": 0.25, "b": 0.5, "c": 0.25}
    assert mixing_column(network, config, "c") == {"b": 0.25, "c": 0.75}
    assert mixing_column(network_with(tmp_path), config, "b") is None


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    network = network_with(tmp_path)
    make_certs(network, network.certs)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        network = network_with(tmp_path, ("127.0.0.1:9401", f"127.0.0.1:{port}"))
        with Processes() as processes:
            site = HubSite(network, "a", processes, threading.Event(), print)
            with pytest.raises(SiteFailed, match=f"127.0.0.1:{port} .gossip. cannot be used"):
                site.start()


def test_the_example_of_three_sites_can_be_read() -> None:
    network = load_network(ROOT / "examples" / "deployment" / "three-sites.toml")
    values = hub_run_config(network, "basel", Path("state"), insecure=False)
    assert values["workers-per-hub"] == "12,8,20"
    assert network.neighbours("basel") == ("lyon", "ulm")


def test_status_asks_every_hub(tmp_path: Path) -> None:
    ports = free_ports(6)
    changes = [(f"127.0.0.1:{9400 + n}", f"127.0.0.1:{port}") for n, port in enumerate(ports)]
    network = network_with(tmp_path, *changes)
    make_certs(network, network.certs)
    gossip = connect(network, "b")
    try:
        gossip.set_status({"phase": "training", "round": 3, "loss": 0.25, "workers": 2})
        words = ["status", str(network.path)]
        told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
        assert told["b"]["reachable"]
        assert (told["b"]["round"], told["b"]["loss"], told["b"]["mixing"]) == (3, 0.25, None)
        assert not told["a"]["reachable"]
        assert "UNAVAILABLE" in told["a"]["reason"]
        drawn = CliRunner().invoke(app, words, env={"COLUMNS": "200"}).stdout
        assert "3 / 6" in drawn
        assert "2 of 2" in drawn
        assert drawn.count("unreachable") == 2
    finally:
        gossip.close()


def test_example_network_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "network.toml"
    words = ["example-network", "-o", str(path), "--hubs", "4", "--workers", "1"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert len(load_network(path).hubs) == 4
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 2
    assert "nothing was written" in again.stderr
    made = CliRunner().invoke(app, ["certs", str(path)])
    assert made.exit_code == 0
    assert (path.parent / "certs" / "hub-d.crt").is_file()
