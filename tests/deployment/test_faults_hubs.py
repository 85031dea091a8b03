"""Hubs that are killed, in part or together with everything, frozen, or started twice.

Tests end with a replay, see `tests.support.faults`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import time
from pathlib import Path

import pytest

from mll_flower.deployment.hub_state import NOW_FILE
from tests.support.deployment import COLD, Deployment, running_in
from tests.support.faults import (
    DEADLINE,
    GOSSIP,
    LONG,
    SHORT,
    check,
    network,
    stop_and_check,
    wait_mixed,
)

pytestmark = pytest.mark.timeout(1500)
slow = pytest.mark.slow


@slow
def test_a_killed_hub_comes_back_from_its_checkpoint(tmp_path: Path) -> None:
    with network(tmp_path, {"a": 1, "b": 1}, rounds=12) as trial:
        trial.start_all()
        trial.wait_round("b", 2)
        before = trial.rows("b")[-1]["round"]
        trial.signal("hub-b", signal.SIGKILL)
        killed = trial.rows("b")[-1]["round"]
        assert killed - before <= 1
        trial.wait(
            "hub a notices",
            lambda: any("b" in row["silent"] for row in trial.rows("a")),
            2 * (DEADLINE + GOSSIP),
        )
        trial.hub("b")
        trial.wait(
            "hub b is back",
            lambda: any(row["round"] > killed for row in trial.rows("b")),
            6 * (DEADLINE + GOSSIP),
        )
        trial.wait_finished(["a", "b"], 12 * (DEADLINE + GOSSIP))
        events = begins(trial, "b")
        assert [event["resumed"] for event in events] == [False, True]
        assert events[1]["round"] > killed  # it did not repeat the rounds that it has missed
        returned = [row for row in trial.rows("b") if row["round"] > killed]
        assert returned[0]["arrived"], "its worker has found it again"
        assert any("a" in row["column"] for row in returned)
        check(trial, ["a", "b"])


def begins(trial: Deployment, hub: str) -> list[dict]:
    return [entry for entry in trial.entries(hub) if entry.get("event") == "begins"]


@slow
def test_parts_of_hubs_and_everything_at_once(tmp_path: Path) -> None:
    """Each fault finds the network that the one before has left."""
    with network(tmp_path, {"a": 1, "b": 1}, rounds=LONG, gossip_deadline=SHORT) as trial:
        trial.start_all()
        wait_mixed(trial, "b", "a")

        # The ServerApp of hub b alone.
        wait_mixed(trial, "b", "a")
        os.kill(trial.now("b")["pid"], signal.SIGKILL)
        trial.wait_ended("hub-b", 1)
        assert "hub b: its run has died" in trial.output("hub-b")
        comes_back(trial, "b", "a")

        # The SuperLink of hub a alone.
        wait_mixed(trial, "a", "b")
        [superlink] = trial.find("hub-a", "guarded_superlink")
        superlink.kill()
        trial.wait_ended("hub-a", 1)
        assert "SuperLink of hub a has ended (signal 9): the hub is down" in trial.output("hub-a")
        comes_back(trial, "a", "b")

        # Hub a once more, beside itself.
        again = trial.call("hub", str(trial.path), "--id", "a", "--quiet")
        assert again.returncode == 2
        pid = trial.processes["hub-a"].pid
        assert f"hub a runs already on this machine (process {pid})" in again.stdout
        wait_mixed(trial, "a", "b")

        # The whole of hub b is frozen, for longer than its neighbour waits.
        wait_mixed(trial, "b", "a")
        trial.signal("hub-b", signal.SIGSTOP)
        seen = len(trial.rows("a"))
        trial.wait(
            "hub a mixes without hub b",
            lambda: any("b" in row["silent"] for row in trial.rows("a")[seen:]),
            2 * (DEADLINE + GOSSIP),
        )
        trial.signal("hub-b", signal.SIGCONT)
        process, seen = trial.processes["hub-b"], len(trial.rows("a"))
        trial.wait(
            "hub b goes on, or ends",
            lambda: (
                process.poll() is not None
                or any("b" in row["column"] for row in trial.rows("a")[seen:])
            ),
            6 * (DEADLINE + GOSSIP),
        )
        ended = process.poll() is not None
        if ended:
            # Slow cold rounds: it was frozen for so long that Flower has ended its run.
            assert COLD
            trial.wait_ended("hub-b", 1)
            comes_back(trial, "b", "a")
        assert len(begins(trial, "b")) == 2 + ended, "otherwise the same run goes on"

        # Everything at once.
        wait_mixed(trial, "a", "b")
        for name in list(trial.processes):
            trial.signal(name, signal.SIGKILL)
        trial.wait("nothing is left", lambda: not running_in(tmp_path), 60.0)
        trial.start_all()
        wait_mixed(trial, "a", "b")
        for hub, restarts in (("a", 2), ("b", 2 + ended)):
            assert [e["resumed"] for e in begins(trial, hub)] == [False] + [True] * restarts
        stop_and_check(trial, ["a", "b"], frozen=1)


def comes_back(trial: Deployment, hub: str, peer: str) -> None:
    """Start a hub again, as systemd does; nothing of the old one was left."""
    # Of the hub's command and state, not of its worker's.
    assert not [p for p in running_in(trial.state_of(hub)) if p.pid != os.getpid()]
    trial.hub(hub)
    wait_mixed(trial, hub, peer)


@slow
@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_a_hub_whose_run_is_dead_ends(tmp_path: Path, fault: str) -> None:
    """Then systemd starts it again; before, a dead run was taken for one that is slow."""
    with network(tmp_path, {"a": 1}) as trial:
        trial.hub("a")
        trial.wait("the hub's app runs", lambda: "pid" in trial.now("a"))
        if fault == "killed":
            os.kill(trial.now("a")["pid"], signal.SIGKILL)
        else:
            # Flower misses the heartbeats of the run, and ends it.
            trial.signal("hub-a", signal.SIGSTOP)
            time.sleep(150.0)
            trial.signal("hub-a", signal.SIGCONT)
        trial.wait_ended("hub-a", 1, 180.0)
        assert "hub a: " in trial.output("hub-a")
        assert running_in(tmp_path) == []
        # Nobody else on the machine can read what it has left.
        for path in (trial.state, trial.state_of("a")):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        for path in trial.state_of("a").glob("superlink.db*"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("use", ["superlink", "gossip"])
def test_a_port_that_is_taken_ends_the_hub_at_once(tmp_path: Path, use: str) -> None:
    trial = network(tmp_path, {"a": 1})
    place = getattr(trial.network.hub("a"), use)
    with socket.create_server(("127.0.0.1", int(place.rpartition(":")[2]))):
        ended = trial.call("hub", str(trial.path), "--id", "a", "--quiet")
    assert ended.returncode == 1
    assert f"hub a: {place} ({use}) cannot be used (Address already in use)" in ended.stdout
    assert running_in(tmp_path) == []
    assert not (trial.state_of("a") / NOW_FILE).exists()


@slow
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    with network(tmp_path, {"a": 1}, rounds=50) as trial:
        process = trial.up()
        trial.wait_round("a", 1)
        assert len(running_in(tmp_path)) > 4
        process.send_signal(signal.SIGINT)
        trial.wait_ended("up", 0, 60.0)
        assert running_in(tmp_path) == []


@slow
def test_insecure_when_it_is_asked_for(tmp_path: Path) -> None:
    with network(tmp_path, {"a": 1, "b": 1}, rounds=2) as trial:
        shutil.rmtree(trial.network.certs)
        trial.up("--insecure")
        trial.wait_ended("up", 0, 6 * DEADLINE)
        assert "no TLS" in trial.output("up")
        check(trial, ["a", "b"])
