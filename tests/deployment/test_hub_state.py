"""The folders and files of hubs and workers."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from mll_flower.deployment.hub_state import (
    NOW_FILE,
    Phase,
    hub_directory,
    make_private,
    read_now,
    worker_directory,
    write_now,
)
from mll_flower.deployment.network_file import NetworkFileError
from tests.support.deployment import example_with


def test_folders_are_beside_the_network_file_unless_given(tmp_path: Path) -> None:
    network = example_with(tmp_path)
    assert hub_directory(network, "a") == tmp_path / "state" / "hub-a"
    assert worker_directory(network, "b", 1) == tmp_path / "state" / "worker-b-1"
    assert hub_directory(network, "a", Path("/srv")) == Path("/srv/hub-a")
    assert worker_directory(network, "c", 0, Path("/srv")) == Path("/srv/worker-c-0")
    with pytest.raises(NetworkFileError, match="hub 'x' does not exist"):
        hub_directory(network, "x")


def test_what_a_hub_writes_about_itself_is_read_back(tmp_path: Path) -> None:
    assert read_now(tmp_path) == {}
    write_now(tmp_path, {"phase": Phase.WAITING_FOR_WORKERS, "round": 3})
    assert read_now(tmp_path) == {"phase": "waiting for workers", "round": 3}
    assert json.loads((tmp_path / NOW_FILE).read_text())["phase"] == Phase.WAITING_FOR_WORKERS
    assert [path.name for path in tmp_path.iterdir()] == [NOW_FILE]


def test_a_file_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    (tmp_path / NOW_FILE).write_text('{"phase": "trai')
    assert read_now(tmp_path) == {}


def test_the_state_is_closed_to_other_users(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "hub-a"
    make_private(folder)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)] == [0o700] * 2
    # Of an earlier version, which left it open; a folder that is not ours alone stays as it is.
    folder.parent.chmod(0o755)
    folder.chmod(0o755)
    (folder / "superlink.db").touch(0o644)
    (folder / "flwr").mkdir(0o755)
    make_private(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "superlink.db").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o755
