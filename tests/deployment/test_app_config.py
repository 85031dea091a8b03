"""A Flower app of the user's own in a network file: where it is, and what its run config gets."""

from __future__ import annotations

import os
import threading
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mll_flower.cli import app as command_line
from mll_flower.deployment.app_config import app_run_config
from mll_flower.deployment.hub_place import VARIABLE, HubPlace
from mll_flower.deployment.hub_state import Phase, write_now
from mll_flower.deployment.network_file import NetworkFile, load_network
from mll_flower.deployment.run_config import own_node_config
from mll_flower.deployment.sites import HubSite, SiteFailed
from mll_flower.processes.process_tree import Processes
from mll_flower.processes.superlink import SuperLink
from tests.support.deployment import example_with

APP = Path(__file__).parents[1] / "support" / "own_app"
TASK = 'dataset = "digits"\nmodel = "mlp"\nbatch-size = 16\nlearning-rate = 0.1\n'


def network_of(folder: Path, lines: str, app: str = f'app = "{APP}"') -> NetworkFile:
    """The example network with an app and these lines in its [run-config]."""
    return example_with(folder, (TASK, lines), ('name = "first-look"', f'name = "trial"\n{app}'))


def test_keys_go_to_the_app_with_its_types(tmp_path: Path) -> None:
    network = network_of(tmp_path, 'step_size = 1\ntitle = "a \\"b\\""\nnode-timeout = 5\n')
    values = app_run_config(network, APP)
    assert values == {"step-size": 1.0, "title": 'a "b"'}
    assert isinstance(values["step-size"], float)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("stepsize = 1", "run-config: stepsize: neither the app in .* keys, .* are num-server"),
        ("dataset = 'digits'", "run-config: dataset: neither the app"),
        ("step-size = 'fast'", "'fast' is of another type than the app's own 0.5: give a number"),
        (
            "num-server-rounds = 2.5",
            "2.5 is of another type than the app's own 2: give a whole number",
        ),
        ("num-server-rounds = true", "True is of another type"),
        ("node-timeout = 0", "node-timeout: 0: use a positive number of seconds"),
        ("weights = '1,2'", "weights: '1,2': with an app of your own use one of examples, equal"),
    ],
)
def test_a_bad_key_is_named_before_anything_starts(tmp_path: Path, line: str, message: str) -> None:
    network = network_of(tmp_path, line + "\n")
    with pytest.raises(ValueError, match=message), Processes() as processes:
        HubSite(network, "a", processes, threading.Event(), insecure=True)
    assert not (tmp_path / "state").exists()


def test_an_app_that_is_none(tmp_path: Path) -> None:
    network = network_of(tmp_path, "")
    with pytest.raises(ValueError, match=r"cannot be read .* folder of a Flower app"):
        app_run_config(network, tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.flwr.app.components]\nclientapp = 'x'")
    with pytest.raises(ValueError, match="names no serverapp in"):
        app_run_config(network, tmp_path)
    (tmp_path / "pyproject.toml").write_text("no toml")
    with pytest.raises(ValueError, match="is not TOML"):
        app_run_config(network, tmp_path)


def test_the_path_starts_at_the_network_file_and_workers_need_no_app(tmp_path: Path) -> None:
    network = network_of(tmp_path, 'stepsize = 1\ndata-dir = "here"\n', 'app = "../mine"')
    assert network.app == tmp_path / ".." / "mine"
    assert own_node_config(network) == {"data-dir": f"{tmp_path}/here"}


def test_the_state_must_not_be_in_the_app(tmp_path: Path) -> None:
    network = replace(network_of(tmp_path, ""), app=tmp_path)
    with pytest.raises(ValueError, match="which Flower sends to the workers"), Processes() as p:
        HubSite(network, "a", p, threading.Event(), insecure=True)


@pytest.fixture
def site(tmp_path: Path) -> HubSite:
    network = network_of(tmp_path, "")
    found = HubSite(network, "b", Processes(), threading.Event(), insecure=True)
    found.folder.mkdir(parents=True)
    return found


def test_the_app_s_processes_are_told_which_hub_they_are(
    site: HubSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, site._superlink().env[VARIABLE])
    place = HubPlace(str(tmp_path / "network.toml"), "b", str(site.folder), "trial", True)
    assert HubPlace.find({}) == place
    own = HubSite(
        replace(site.network, app=None, run_config={}), "b", Processes(), site.stop, insecure=True
    )
    monkeypatch.delenv(VARIABLE)
    assert VARIABLE not in own._superlink().env


def test_an_app_has_time_to_end_by_itself(site: HubSite) -> None:
    write_now(site.folder, {"phase": Phase.FINISHED, "pid": os.getpid(), "time": time.time()})
    assert site.phase() is Phase.FINISHING
    write_now(site.folder, {"phase": Phase.FINISHED, "pid": os.getpid(), "time": time.time() - 61})
    assert site.phase() is Phase.FINISHED
    write_now(site.folder, {"phase": Phase.FINISHED, "pid": 2**22 + 1, "time": time.time()})
    assert site.phase() is Phase.FINISHED


def test_an_app_that_is_no_hub_is_told_what_to_do(
    site: HubSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SuperLink, "newest_run_status", lambda self: "finished:completed")
    with pytest.raises(SiteFailed, match=r"with mll_flower\.multi_level\(context"):
        site.phase()


def test_an_app_that_fails_before_it_is_a_hub_shows_its_log(
    site: HubSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SuperLink, "newest_run_status", lambda self: "finished:failed")
    monkeypatch.setattr(SuperLink, "newest_run_log", lambda self: "No module named 'pandas'")
    with pytest.raises(SiteFailed, match=r"before it began; see .*\n.*'pandas'"):
        site.phase()


@pytest.mark.parametrize("command", [["up"], ["hub", "--id", "a"]], ids=lambda c: c[0])
def test_an_app_on_the_command_line_takes_the_place_of_the_file_s(
    tmp_path: Path, command: list[str]
) -> None:
    network = network_of(tmp_path, "")
    arguments = [command[0], str(network.path), *command[1:], "--app", str(tmp_path / "none")]
    result = CliRunner().invoke(command_line, [*arguments, "--insecure"])
    assert result.exit_code == 2
    assert f"app {tmp_path}/none: " in result.output
    assert not (tmp_path / "state").exists()


def test_an_example_network_for_an_app(tmp_path: Path) -> None:
    path = tmp_path / "sites" / "network.toml"
    arguments = ["example-network", "--app", str(APP), "-o", str(path), "--hubs", "2"]
    result = CliRunner().invoke(command_line, arguments)
    assert result.exit_code == 0, result.output
    network = load_network(path)
    assert network.app is not None
    assert network.app.resolve() == APP
    assert not Path(tomllib.loads(path.read_text())["app"]).is_absolute()
    assert app_run_config(network, network.app) == {}
    text = path.read_text().replace("# step-size = 0.5", "step-size = 0.25")
    path.write_text(text)
    assert app_run_config(load_network(path), APP) == {"step-size": 0.25}
