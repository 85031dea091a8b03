"""Failures of a simulation's SuperLink and run; whole runs are in tests/apps."""

from __future__ import annotations

import socket
from contextlib import nullcontext
from pathlib import Path

import pytest

from mll_flower.processes import simulation as module
from mll_flower.processes.flower_environment import flower_environment, free_port
from mll_flower.processes.simulation import RunFailed, SuperLink, run_app, simulation_superlink


def test_a_superlink_that_cannot_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(module, "own_port", lambda: nullcontext(taken.getsockname()[1]))
        with (
            pytest.raises(RunFailed, match="flower-superlink ended at once") as error,
            simulation_superlink(tmp_path / "home"),
        ):
            pytest.fail("a SuperLink on a port that is taken")
    assert len(str(error.value).splitlines()) > 1  # the end of its log
    assert (tmp_path / "home" / "superlink.log").is_file()


def test_a_run_that_flower_does_not_take_is_a_failure(tmp_path: Path) -> None:
    nowhere = SuperLink(tmp_path, f"127.0.0.1:{free_port()}", flower_environment(tmp_path))
    nowhere.write_config()
    lines: list[str] = []
    with pytest.raises(RunFailed, match="'not started'") as error:
        run_app(nowhere, tmp_path / "no app", {}, {}, lines.append)
    assert lines
    assert lines[-1] in str(error.value)
