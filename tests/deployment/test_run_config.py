"""A hub's run config and a worker's node config, from the network file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from mll_flower.config import RunConfig
from mll_flower.deployment.example_network import example_network
from mll_flower.deployment.network_file import load_network
from mll_flower.deployment.run_config import hub_run_config, own_node_config
from tests.support.deployment import example_with, write_data

ROOT = Path(__file__).parents[2]


def test_the_run_config_says_what_the_network_file_says(tmp_path: Path) -> None:
    network = example_with(tmp_path, ("tau = 10", "tau = 7"), ("workers = 2", "workers = 3"))
    values = hub_run_config(network, "b", tmp_path / "state" / "hub-b", insecure=False)
    assert values["role"] == "hub"
    assert values["network"] == str(tmp_path / "network.toml")
    assert (values["hub"], values["run-name"], values["insecure"]) == ("b", "first-look", False)
    config = RunConfig.from_run_config(values)
    assert (config.hubs, config.workers_per_hub, config.tau, config.q) == (3, "3,3,3", 7, 2)
    assert config.slots == 6 * 7
    assert (config.dataset, config.model, config.learning_rate) == ("digits", "mlp", 0.1)
    assert config.output == str(tmp_path / "state" / "hub-b")


@pytest.mark.parametrize(
    ("line", "engine"), [("", "autograd"), ('engine = "compiled"\n', "compiled")]
)
def test_the_engine_of_a_deployment_does_not_depend_on_its_machines(
    tmp_path: Path, line: str, engine: str
) -> None:
    network = example_with(tmp_path, ('dataset = "digits"', f'{line}dataset = "digits"'))
    assert hub_run_config(network, "a", tmp_path, insecure=False)["engine"] == engine


def test_every_key_of_a_hub_s_run_config_is_in_the_app(tmp_path: Path) -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    values = hub_run_config(example_with(tmp_path), "a", tmp_path, insecure=False)
    for key, value in values.items():
        assert key in table, f"flwr run would refuse {key}"
        assert type(value) is type(table[key]), key


def test_paths_in_the_run_config_start_at_the_network_file(tmp_path: Path) -> None:
    network = example_with(
        tmp_path, ('dataset = "digits"', 'dataset = "npz:mine.npz"\ndata-dir = "data"')
    )
    (tmp_path / "mine.npz").touch()
    values = hub_run_config(network, "a", tmp_path, insecure=False)
    assert values["dataset"] == f"npz:{tmp_path}/mine.npz"
    assert values["data-dir"] == f"{tmp_path}/data"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tau = 3", "tau: `tau` of the network file sets it; remove it"),
        ("pool = 'hub'", "a SuperNode of a deployment is one worker"),
        ("learning_rat = 3", "unknown key; the known ones are augment, batch-size"),
        ("model = 'xl'", "model='xl' is not known"),
        ("momentum = 'x'", "momentum='x': give a number"),
        ("dataset = 'npz:none.npz'", "none.npz"),
    ],
)
def test_an_impossible_run_config_is_an_error_before_anything_starts(
    tmp_path: Path, line: str, message: str
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
    assert message in str(error.value)


def test_a_worker_s_own_data(tmp_path: Path) -> None:
    network = example_with(tmp_path)
    with pytest.raises(ValueError, match=r"own data\.npz' does not exist"):
        own_node_config(network, 'dataset="npz:own data.npz"')
    write_data(tmp_path / "own data.npz")
    given = own_node_config(network, 'dataset="npz:own data.npz" data-dir="here" speed=2')
    expected = {"dataset": f"npz:{tmp_path}/own data.npz", "data-dir": f"{tmp_path}/here"}
    assert given == {**expected, "speed": 2}
    assert own_node_config(network) == {}
    for wrong in ("dataset=npz:x", "anything"):
        with pytest.raises(ValueError, match="write pairs"):
            own_node_config(network, wrong)


def test_the_example_of_three_sites_can_be_read() -> None:
    network = load_network(ROOT / "examples" / "deployment" / "three-sites.toml")
    values = hub_run_config(network, "basel", Path("state"), insecure=False)
    assert values["workers-per-hub"] == "12,8,20"
    assert network.neighbours("basel") == ("lyon", "ulm")
