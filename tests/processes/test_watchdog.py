"""Whatever kills a process, nothing that it has started and no temporary folder outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from mll_flower.processes import watchdog as module
from mll_flower.processes.process_tree import Processes, is_alive
from mll_flower.processes.watchdog import Watchdog, end_marked, sweep

# A program that starts a process which has a child in a session of its own and ends: the child is
# an orphan. It prints its own id, the ids of what it has started, and its temporary folder.
PROGRAM = """
import json, os, pathlib, subprocess, sys, time
from mll_flower.processes.process_tree import Processes
child = ("import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', "
         "'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'], "
         "start_new_session=True); print(p.pid, flush=True)")
with Processes() as processes:
    folder = processes.temporary_folder()
    processes.start("sleep", ["sleep", "600"], os.environ)
    processes.start("parent", [sys.executable, "-c", child], os.environ, folder / "log")
    while not (folder / "log").exists() or not (folder / "log").read_text().endswith("\\n"):
        time.sleep(0.01)
    time.sleep(0.3)
    sleep = processes._trees["sleep"].root.pid
    watchdog = processes._watchdog._process.pid
    pids = [sleep, int((folder / "log").read_text())]
    print(json.dumps([pids, watchdog, str(folder)]), flush=True)
    time.sleep(600)
"""


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.02)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of temporary folders, for this process and for those that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def program(temporary: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[int], int, Path]]:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE)
    assert process.stdout is not None
    pids, watchdog, folder = json.loads(process.stdout.readline())
    try:
        assert all(is_alive(pid) for pid in [*pids, watchdog])
        assert Path(folder).parent == temporary
        yield process, pids, watchdog, Path(folder)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        for pid in [*pids, watchdog]:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


def test_nothing_is_left_of_a_process_that_is_killed(program) -> None:
    process, pids, watchdog, folder = program
    # Whoever ends a whole service sends such signals to all of its processes.
    for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(watchdog, kind)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    wait_until(lambda: not any(is_alive(pid) for pid in [*pids, watchdog]))
    assert not folder.exists()


def test_what_a_dead_watchdog_has_not_done_is_done_at_the_next_start(program) -> None:
    process, pids, watchdog, folder = program
    sweep()
    assert all(is_alive(pid) for pid in pids)  # its owner lives
    os.kill(watchdog, signal.SIGKILL)
    process.kill()
    process.wait()
    assert all(is_alive(pid) for pid in pids)
    sweep()
    assert not any(is_alive(pid) for pid in pids)
    assert not folder.exists()


def test_a_sweep_touches_nothing_else(temporary: Path) -> None:
    (temporary / "mll-flower-without-owner").mkdir()
    (temporary / "mll-flower-bad").mkdir()
    (temporary / "mll-flower-bad" / "owner.json").write_text("[1]")
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "owner.json").write_text('{"pid": 1, "started": 0, "mark": "none"}')
    (temporary / "mll-flower-link").symlink_to(elsewhere)
    sweep()
    assert len(list(temporary.iterdir())) == 4
    assert (elsewhere / "owner.json").is_file()


def test_an_orderly_end_leaves_no_watchdog_and_no_folder(temporary: Path) -> None:
    with Processes() as processes:
        folder = processes.temporary_folder()
        pid = processes.start("sleep", ["sleep", "600"], os.environ)
        assert processes._watchdog is not None
        watchdog = processes._watchdog._process.pid
        assert is_alive(watchdog)
    assert not any(is_alive(p) for p in (pid, watchdog))
    assert list(temporary.iterdir()) == []
    assert not folder.exists()


def test_a_killed_watchdog_does_no_harm(temporary: Path) -> None:
    with Processes() as processes:
        processes.start("sleep", ["sleep", "600"], os.environ)
        assert processes._watchdog is not None
        processes._watchdog._process.kill()
        processes._watchdog._process.wait()
        processes.temporary_folder()
    assert list(temporary.iterdir()) == []


def test_descendants_without_the_mark_are_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some programs overwrite their environment; their parents have the mark."""
    shell = "env -i sleep 600 & echo $!; wait"
    watchdog = Watchdog()
    parent = subprocess.Popen(
        ["sh", "-c", shell], env=watchdog.marked(os.environ), stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.stdout.close()
    wait_until(lambda: watchdog.mark not in psutil.Process(child).environ())
    monkeypatch.setattr(module, "_PATIENCE", 0.5)
    end_marked(watchdog.mark)
    parent.wait()
    assert not is_alive(child)
    assert is_alive(os.getpid())
    watchdog.dismiss()
