"""Checkpoints that are damaged or not the hub's own, a full disk, a disk that is read-only.

Tests end with a replay, see `tests.support.faults`.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from mll_flower.deployment.hub_state import HUB_LOG, ROUNDS_FILE
from mll_flower.models.checkpoint import FILE, load_checkpoint, save_checkpoint
from tests.support.deployment import Deployment, running_in
from tests.support.faults import (
    DEADLINE,
    LONG,
    SHORT,
    network,
    stop_and_check,
    wait_arrived,
    wait_mixed,
)
from tests.support.small_disk import SmallDisk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def take_model_of_others(path: Path) -> None:
    save_file(load_file(path), path)  # without what a checkpoint says of itself


def take_neighbours(path: Path) -> None:
    shutil.copy(path.parents[1] / "hub-a" / FILE, path)


def date_in_two_days(path: Path) -> None:
    found = load_checkpoint(path)
    row: dict[str, Any] = found.extra["row"]
    extra = {**found.extra, "row": {**row, "time": row["time"] + 48 * 3600}}
    save_checkpoint(path, found.round, found.layout, found.models, extra)


BAD: list[tuple[Callable[[Path], None], str]] = [
    (truncate, "not a checkpoint"),
    (flip, "do not match their checksum"),
    (empty, "not a checkpoint"),
    (take_model_of_others, "not a checkpoint"),
    (take_neighbours, "it belongs to hub 'a', not 'b'"),
    (date_in_two_days, "it is from the future, by 48 hours"),
]


def test_a_hub_goes_on_from_its_neighbours_if_its_checkpoint_is_bad(tmp_path: Path) -> None:
    with network(tmp_path, {"a": 1, "b": 1}, rounds=LONG, gossip_deadline=SHORT) as trial:
        trial.start_all()
        folder = trial.state_of("b")
        for count, (damage, found) in enumerate(BAD, start=1):
            wait_mixed(trial, "b", "a")
            trial.signal("hub-b", signal.SIGKILL)
            killed = trial.rows("b")[-1]["round"]
            damage(folder / FILE)
            with (folder / ROUNDS_FILE).open("ab") as rounds:
                rounds.write(b'\xff\xfe{"round": 1\n{"round"')
            trial.hub("b")
            wait_mixed(trial, "b", "a")
            joined = [e for e in trial.entries("b") if e.get("event") == "joined"]
            assert len(joined) == count
            assert joined[-1]["round"] > killed
            said = [line for line in log_of(trial).splitlines() if "is not used" in line]
            assert len(said) == count, "said once, and never met again"
            assert found in said[-1]
            assert f"kept as {FILE}.bad-" in said[-1]
            assert len(list(folder.glob(f"{FILE}.bad-*"))) == count
        stop_and_check(trial, ["a", "b"])


def log_of(trial: Deployment) -> str:
    return (trial.state_of("b") / HUB_LOG).read_text()


def test_a_disk_that_is_full_and_then_read_only(tmp_path: Path) -> None:
    """The hub ends and says why, and goes on from its checkpoint; the worker stays."""
    trial = network(tmp_path, {"a": 1}, rounds=LONG)
    hub = ("hub", str(trial.path), "--id", "a", "--quiet")
    worker = ("worker", str(trial.path), "--hub", "a", "--number", "0", "--quiet")
    with SmallDisk(trial.state) as disk, trial:
        trial.start_all()
        trial.wait_round("a", 2)
        disk.fill()
        trial.wait_ended("hub-a", 1, 6 * DEADLINE)
        assert "No space left on device" in trial.output("hub-a")
        saved = load_checkpoint(trial.state_of("a") / FILE)  # the last one is whole
        again = trial.call(*hub)
        assert again.returncode == 2
        assert "cannot be written (No space left on device)" in again.stdout
        disk.free()
        trial.hub("a")
        wait_arrived(trial, "a", 0)
        begun = [entry for entry in trial.entries("a") if entry.get("event") == "begins"]
        assert [(e["resumed"], e["round"]) for e in begun[1:]] == [(True, saved.round)]

        for name in ("hub-a", "worker-a-0"):
            trial.processes[name].send_signal(signal.SIGTERM)
            trial.wait_ended(name, 0)
        assert running_in(tmp_path) == []
        disk.set_read_only(True)
        for command in (hub, worker):
            ended = trial.call(*command)
            assert ended.returncode == 2
            assert "cannot be written (Read-only file system)" in ended.stdout
        disk.set_read_only(False)
        trial.start_all()
        wait_arrived(trial, "a", 0)
        stop_and_check(trial, ["a"])
