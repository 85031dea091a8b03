"""What `mll-flower up` says and does when hubs start, train and fail; no process is started."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mll_flower.deployment.hub_state import Phase, write_now
from mll_flower.deployment.sites import HubSite, SiteFailed, WorkerSite
from mll_flower.deployment.whole_network import progress_line, run_whole_network
from mll_flower.processes.process_tree import Processes
from tests.support.deployment import example_with


@pytest.mark.parametrize(
    ("now", "line"),
    [
        ({}, "starting"),
        ({"phase": "waiting for workers", "round": 0}, "waiting for workers"),
        ({"phase": "training", "round": 3, "loss": None}, "training, round 3 of 6"),
        (
            {"phase": "training", "round": 4, "loss": 0.5, "accuracy": 0.75},
            "training, round 4 of 6, loss 0.5000, test accuracy 0.7500",
        ),
    ],
)
def test_a_line_of_progress(now: dict[str, object], line: str) -> None:
    assert progress_line(now, 6) == line


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the sites that were started: hub a finishes, b fails, c cannot start."""
    names: list[str] = []

    def start_hub(site: HubSite) -> None:
        if site.entry.id == "c":
            raise SiteFailed("hub c: its port is taken")
        names.append(site.name)
        site.folder.mkdir(parents=True)
        phase = Phase.FINISHED if site.entry.id == "a" else Phase.FAILED
        write_now(site.folder, {"phase": phase, "round": 6, "loss": 0.5, "error": "[bad] luck"})

    monkeypatch.setattr(HubSite, "start", start_hub)
    monkeypatch.setattr(WorkerSite, "start", lambda site: names.append(site.name))
    return names


def test_hubs_that_fail_do_not_stop_the_others(tmp_path: Path, started: list[str]) -> None:
    network = example_with(tmp_path)
    said: list[str] = []
    failures: list[str] = []
    with Processes() as processes:
        stop = threading.Event()
        finished = run_whole_network(
            network, processes, stop, said.append, failures.append, insecure=True
        )
    assert not finished
    assert sorted(started[:2]) == ["SuperLink of hub a", "SuperLink of hub b"]
    assert started[2:] == [f"SuperNode {hub}-{n}" for hub in "ab" for n in range(2)]
    assert failures[0] == "hub c: its port is taken"
    assert failures[1].startswith("hub b: [bad] luck; see ")
    model = tmp_path / "state" / "hub-a" / "model.safetensors"
    assert said == [
        "Starting 3 SuperLinks and 6 SuperNodes",
        f"hub a: finished, round 6 of 6, loss 0.5000: {model}",
        "All hubs have ended",
    ]


def test_a_stop_ends_the_wait(tmp_path: Path, started: list[str]) -> None:
    stop = threading.Event()
    stop.set()
    said: list[str] = []
    with Processes() as processes:
        run_whole_network(
            example_with(tmp_path), processes, stop, said.append, said.append, insecure=True
        )
    assert not any(name.startswith("SuperNode") for name in started)
    assert said[-1] == "Stopped"
