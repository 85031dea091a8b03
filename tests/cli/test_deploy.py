"""The commands of a deployment that need no running network, and `status`."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mll_flower.cli import app
from mll_flower.cli.stopping import stop_on_signals
from mll_flower.deployment.certs import make_certs
from mll_flower.deployment.hub_gossip import start_gossip
from mll_flower.deployment.hub_state import Phase
from mll_flower.deployment.network_file import load_network
from tests.support.deployment import example_with, free_ports


def test_example_network_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "new [draft]" / "network.toml"
    arguments = ["example-network", "-o", str(path), "--hubs", "4", "--workers", "1"]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0
    assert f"mll-flower certs {path}" in first.stdout
    assert len(load_network(path).hubs) == 4
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 2
    assert "nothing was written" in again.stderr
    made = CliRunner().invoke(app, ["certs", str(path)])
    assert made.exit_code == 0
    assert str(path.parent / "certs" / "README.txt") in made.stdout
    assert (path.parent / "certs" / "hub-d.crt").is_file()


def test_example_network_on_the_screen_is_a_network_file(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["example-network"])
    (tmp_path / "network.toml").write_text(shown.stdout)
    assert [hub.id for hub in load_network(tmp_path / "network.toml").hubs] == ["a", "b", "c"]


def test_status_as_json_and_as_a_table(tmp_path: Path) -> None:
    ports = free_ports(6)
    changes = [(f"127.0.0.1:{9400 + n}", f"127.0.0.1:{port}") for n, port in enumerate(ports)]
    network = example_with(tmp_path, *changes)
    make_certs(network, network.certs)
    gossip = start_gossip(network, "b")
    try:
        gossip.set_status({"phase": Phase.TRAINING, "round": 3, "loss": 0.25, "workers": 2})
        arguments = ["status", str(network.path)]
        answers = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
        table = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"}).stdout
    finally:
        gossip.close()
    assert answers["b"]["reachable"]
    assert (answers["b"]["round"], answers["b"]["loss"], answers["b"]["mixing"]) == (3, 0.25, None)
    assert not answers["a"]["reachable"]
    assert "UNAVAILABLE" in answers["a"]["reason"]
    assert "3 / 6" in table
    assert "2 of 2" in table
    assert table.count("unreachable") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hub", "--id", "x"], "hub 'x' does not exist; the hubs are a, b, c"),
        (["worker", "--hub", "b", "--number", "7"], "no number 7"),
        (["worker", "--hub", "b", "--number", "0", "--node-config", "x"], "write pairs"),
        (["worker", "--hub", "b", "--number", "0", "--insecure", "--preload", "a b"], "'a b'"),
        (["certs", "--days", "0"], "days=0"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, arguments: list[str], message: str) -> None:
    path = str(example_with(tmp_path).path)
    result = CliRunner().invoke(app, [arguments[0], path, *arguments[1:]])
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_sets_the_event(kind: signal.Signals) -> None:
    before = signal.getsignal(kind)
    with stop_on_signals() as stop:
        assert isinstance(stop, threading.Event)
        signal.raise_signal(kind)
        assert stop.is_set()
    assert signal.getsignal(kind) is before
