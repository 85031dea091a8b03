"""What Flower's commands need before they start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mll_flower.processes.flower_environment import app_directory, flower_environment, free_port


def test_flower_has_a_home_of_its_own_and_installs_nothing(tmp_path: Path) -> None:
    env = flower_environment(tmp_path)
    assert env["FLWR_HOME"] == str(tmp_path)
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["RAY_task_events_report_interval_ms"] == "0"
    assert env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    # The commands of this very environment come first, activated or not.
    assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_the_users_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["own", "/elsewhere", ""]))
    path = flower_environment(tmp_path)["PYTHONPATH"].split(os.pathsep)
    assert path == [str(tmp_path / "own"), "/elsewhere"]


def test_a_free_port_can_be_used() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))


def test_the_app_is_written_into_the_home_and_replaced(tmp_path: Path) -> None:
    folder = app_directory(tmp_path)
    assert folder.parent == tmp_path
    (folder / "mll_flower" / "left_over.py").touch()
    assert app_directory(tmp_path) == folder
    assert (folder / "mll_flower" / "config.py").is_file()
    assert not (folder / "mll_flower" / "left_over.py").exists()


def test_without_a_home_the_app_is_temporary() -> None:
    code = (
        "from mll_flower.processes.flower_environment import app_directory\n"
        "folder = app_directory()\n"
        "assert (folder / 'server_app' / 'app.py').is_file()\n"
        "print(folder)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not Path(run.stdout.strip()).parent.exists()
