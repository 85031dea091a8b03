"""What Flower's commands need before they start."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from mll_flower.processes import flower_environment as module
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


def test_the_app_is_the_checkout() -> None:
    folder = app_directory()
    assert (folder / "server_app" / "app.py").is_file()
    assert folder / "mll_flower" / "processes" / "flower_environment.py" == Path(module.__file__)


def test_no_app_is_an_error_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "__file__", str(tmp_path / "a" / "b" / "module.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"run in a checkout of mll-flower, or .* pip install"):
        app_directory()
