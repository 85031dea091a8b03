"""Processes are ended with all that they have started, whatever these do about it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mll_flower.processes import process_tree as module
from mll_flower.processes.process_tree import Processes, _start_time

# A parent with a child in a session of its own, as a SuperLink has; both write their ids.
TREE = """
import os, signal, subprocess, sys, time
folder = sys.argv[1]
if {stubborn}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(
    [sys.executable, "-c", "import os, signal, sys, time\\n"
     "if {stubborn}: signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
     "open(sys.argv[1] + '/child', 'w').write(str(os.getpid()))\\n"
     "time.sleep(600)", folder],
    start_new_session=True,
)
open(folder + "/parent", "w").write(str(os.getpid()))
time.sleep(600)
"""


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    return _start_time(pid) is not None


def start_tree(
    started: Processes, folder: Path, stubborn: bool = False, name: str = "tree"
) -> tuple[int, int]:
    folder.mkdir(exist_ok=True)
    words = [sys.executable, "-c", TREE.format(stubborn=stubborn), str(folder)]
    started.start(name, words, os.environ, folder / "log")
    until(lambda: all((folder / n).exists() and (folder / n).read_text() for n in FILES))
    return int((folder / "parent").read_text()), int((folder / "child").read_text())


FILES = ("parent", "child")


def test_a_child_in_its_own_session_is_ended_too(tmp_path: Path) -> None:
    with Processes() as started:
        parent, child = start_tree(started, tmp_path)
        assert started.is_running("tree")
        assert alive(parent)
        assert alive(child)
    assert not alive(parent)
    assert not alive(child)


def test_processes_end_also_when_something_goes_wrong(tmp_path: Path) -> None:
    pids: list[int] = []

    def fail() -> None:
        with Processes() as started:
            pids.extend(start_tree(started, tmp_path))
            raise RuntimeError("wrong")

    with pytest.raises(RuntimeError, match="wrong"):
        fail()
    assert not any(alive(pid) for pid in pids)


def test_who_ignores_the_request_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 1.0)
    with Processes() as started:
        pids = start_tree(started, tmp_path, stubborn=True)
    assert not any(alive(pid) for pid in pids)


def test_a_frozen_process_is_ended(tmp_path: Path) -> None:
    with Processes() as started:
        pids = start_tree(started, tmp_path)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
    assert not any(alive(pid) for pid in pids)


def test_what_a_dead_process_leaves_behind_is_ended_and_its_death_is_told(tmp_path: Path) -> None:
    with Processes() as started:
        parent, child = start_tree(started, tmp_path)
        assert started.ended() == []  # it has seen the child now
        os.kill(parent, signal.SIGKILL)
        found: list[module.Ended] = []
        until(lambda: bool(found.extend(started.ended()) or found))
        assert [(end.name, end.code) for end in found] == [("tree", -signal.SIGKILL)]
        assert str(found[0]) == "tree has ended (signal 9)"
        assert not alive(child)
        assert not started.is_running("tree")
        assert started.ended() == []


def test_one_of_several_can_be_stopped_and_its_name_used_again(tmp_path: Path) -> None:
    with Processes() as started:
        first = start_tree(started, tmp_path / "1", name="one")
        second = start_tree(started, tmp_path / "2", name="two")
        with pytest.raises(ValueError, match="one runs already"):
            started.start("one", ["true"], os.environ)
        started.stop("one")
        assert not any(alive(pid) for pid in first)
        assert all(alive(pid) for pid in second)
        third = start_tree(started, tmp_path / "3", name="one")
        assert all(alive(pid) for pid in third)
    assert not any(alive(pid) for pid in (*second, *third))


def test_output_is_kept(tmp_path: Path) -> None:
    with Processes() as started:
        started.start("echo", ["echo", "words"], os.environ, tmp_path / "logs" / "echo.log")
        found: list[module.Ended] = []
        until(lambda: bool(found.extend(started.ended()) or found))
    assert str(found[0]) == "echo has ended (exit code 0)"
    assert (tmp_path / "logs" / "echo.log").read_text() == "words\n"


def test_a_command_that_is_not_there_is_an_error() -> None:
    with Processes() as started, pytest.raises(FileNotFoundError):
        started.start("none", ["no-such-command-here"], os.environ)
