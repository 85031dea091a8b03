"""The hubs' status: asked over mutual TLS, and shown as a table."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mll_flower.deployment.certs import make_certs
from mll_flower.deployment.hub_gossip import start_gossip
from mll_flower.deployment.hub_state import Phase
from mll_flower.deployment.network_file import NetworkFile
from mll_flower.deployment.status import ask_hubs, status_table
from tests.support.deployment import example_with, free_ports

SILENT = {"reachable": False, "reason": "UNAVAILABLE: [red]nobody[/red] at ipv4:[::1]:9401 [/b]"}
FRESH = {"reachable": True, "phase": Phase.STARTING, "neighbours": {"a": "not met yet"}}
BUSY: dict[str, Any] = {
    "reachable": True,
    "phase": Phase.TRAINING,
    "round": 3,
    "mixing": 1,
    "workers": 0,
    "causes": {"late": 1, "gone": 1},
    "deadline": 11.25,
    "loss": 0.25,
    "neighbours": {"a": "mixed", "c": "refused our snapshot: [/] shape [bold]"},
}


def rows(network: NetworkFile, answers: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Return the cells of the table as they are shown, by hub."""
    screen = io.StringIO()
    Console(file=screen, width=250).print(status_table(network, answers))
    cells = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in screen.getvalue().splitlines()
        if line.startswith("│")
    ]
    return {row[0]: row for row in cells}


def test_the_table(tmp_path: Path) -> None:
    workers = "0 of 2: 1 late, 1 gone"
    neighbours = "a, c: refused our snapshot: [/] shape [bold]"
    shown = rows(example_with(tmp_path), {"a": SILENT, "b": BUSY, "c": FRESH})
    assert shown == {
        "a": ["a", "unreachable", "", "", "", "", "", SILENT["reason"]],
        "b": ["b", "training", "3 / 6", "1", workers, "11.2 s", "0.2500", neighbours],
        "c": ["c", "starting", "0 / 6", "0", "- of 2", "-", "-", "a: not met yet"],
    }


@pytest.mark.parametrize(
    "lie",
    [
        {"phase": ["[/red]"], "round": {}, "mixing": 10**400, "workers": None, "deadline": "[b]"},
        {"neighbours": ["a"], "phase": "\x1b]0;owned\x07\x1b[2J"},
        {"neighbours": {"[/red]": 7, "c": {"x": [1]}, "d": "refused: [/red]"}},
        {"neighbours": "mixed", "loss": float("nan"), "deadline": [1], "causes": [1]},
        {"causes": {"[/red]\x1b": {"x": 1}}},
    ],
)
def test_whatever_a_hub_answers_can_be_shown(tmp_path: Path, lie: dict[str, Any]) -> None:
    network = example_with(tmp_path)
    screen = io.StringIO()
    answers = {"a": {"reachable": True, **lie}, "b": BUSY, "c": FRESH}
    Console(file=screen, width=250).print(status_table(network, answers))
    assert "\x1b" not in screen.getvalue()
    assert "\x07" not in screen.getvalue()


def test_every_hub_is_asked(tmp_path: Path) -> None:
    ports = free_ports(6)
    changes = [(f"127.0.0.1:{9400 + n}", f"127.0.0.1:{port}") for n, port in enumerate(ports)]
    network = example_with(tmp_path, *changes)
    with pytest.raises(FileNotFoundError, match=r"operator\.crt|ca\.crt"):
        ask_hubs(network)
    make_certs(network, network.certs)
    gossip = start_gossip(network, "b")
    try:
        gossip.set_status({"phase": Phase.TRAINING, "round": 3, "loss": 0.25, "workers": 2})
        answers = ask_hubs(network)
    finally:
        gossip.close()
    assert list(answers) == ["a", "b", "c"]
    b = answers["b"]
    assert (b["reachable"], b["phase"], b["round"], b["loss"]) == (True, "training", 3, 0.25)
    assert b["mixing"] is None
    for hub in ("a", "c"):
        assert not answers[hub]["reachable"]
        assert "UNAVAILABLE" in answers[hub]["reason"]
