"""Processes are ended with everything that they have started, even if that resists."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mll_flower.processes import process_tree as module
from mll_flower.processes.process_tree import Processes, ProcessTree, is_alive

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
FILES = ("parent", "child")


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.02)


def start_tree(
    started: Processes, folder: Path, stubborn: bool = False, name: str = "tree"
) -> tuple[int, int]:
    """Start a parent with a child; return their ids."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", TREE.format(stubborn=stubborn), str(folder)]
    started.start(name, command, os.environ, folder / "log")
    wait_until(lambda: all((folder / n).exists() and (folder / n).read_text() for n in FILES))
    return int((folder / "parent").read_text()), int((folder / "child").read_text())


def wait_for_end(started: Processes) -> list[module.Ended]:
    """Call `ended` until it returns something; return that."""
    found: list[module.Ended] = []
    wait_until(lambda: bool(found.extend(started.ended()) or found))
    return found


def test_a_child_in_its_own_session_is_ended_too(tmp_path: Path) -> None:
    with Processes() as started:
        parent, child = start_tree(started, tmp_path)
        assert started.is_running("tree")
        assert is_alive(parent)
        assert is_alive(child)
    assert not is_alive(parent)
    assert not is_alive(child)


def test_processes_end_also_when_something_goes_wrong(tmp_path: Path) -> None:
    pids: list[int] = []

    def fail() -> None:
        with Processes() as started:
            pids.extend(start_tree(started, tmp_path))
            raise RuntimeError("wrong")

    with pytest.raises(RuntimeError, match="wrong"):
        fail()
    assert not any(is_alive(pid) for pid in pids)


def test_processes_that_ignore_the_request_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 1.0)
    with Processes() as started:
        pids = start_tree(started, tmp_path, stubborn=True)
    assert not any(is_alive(pid) for pid in pids)


def test_frozen_processes_are_ended(tmp_path: Path) -> None:
    with Processes() as started:
        pids = start_tree(started, tmp_path)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
    assert not any(is_alive(pid) for pid in pids)


def test_what_a_dead_process_leaves_behind_is_ended_and_its_death_reported(tmp_path: Path) -> None:
    with Processes() as started:
        parent, child = start_tree(started, tmp_path)
        assert started.ended() == []  # from now on it knows the child
        os.kill(parent, signal.SIGKILL)
        found = wait_for_end(started)
        assert [(end.name, end.code) for end in found] == [("tree", -signal.SIGKILL)]
        assert str(found[0]) == "tree has ended (signal 9)"
        assert not is_alive(child)
        assert not started.is_running("tree")
        assert started.ended() == []


def test_one_of_several_can_be_stopped_and_its_name_used_again(tmp_path: Path) -> None:
    with Processes() as started:
        first = start_tree(started, tmp_path / "1", name="one")
        second = start_tree(started, tmp_path / "2", name="two")
        with pytest.raises(ValueError, match="one runs already"):
            started.start("one", ["true"], os.environ)
        started.stop("one")
        assert not any(is_alive(pid) for pid in first)
        assert all(is_alive(pid) for pid in second)
        third = start_tree(started, tmp_path / "3", name="one")
        assert all(is_alive(pid) for pid in third)
    assert not any(is_alive(pid) for pid in (*second, *third))


def test_output_is_kept(tmp_path: Path) -> None:
    with Processes() as started:
        started.start("echo", ["echo", "hello"], os.environ, tmp_path / "logs" / "echo.log")
        found = wait_for_end(started)
    assert str(found[0]) == "echo has ended (exit code 0)"
    assert (tmp_path / "logs" / "echo.log").read_text() == "hello\n"


def test_a_command_that_does_not_exist_is_an_error() -> None:
    with Processes() as started, pytest.raises(FileNotFoundError):
        started.start("none", ["no-such-command-here"], os.environ)


# Trees of one process that prints "ready", as `run_app` starts them.

CHILD = "import subprocess; child = subprocess.Popen({command}, start_new_session={session}); "
READY = "print('ready', child.pid, flush=True)"
SLEEP = "['sleep', '600']"


def start(code: str) -> tuple[subprocess.Popen[bytes], ProcessTree, int]:
    """Start Python code in a session of its own; return it and the id that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE
    )
    tree = ProcessTree(process)
    assert process.stdout is not None
    word, pid = process.stdout.readline().split()
    assert word == b"ready"
    process.stdout.close()
    return process, tree, int(pid)


def child_code(command: str = SLEEP, session: bool = False) -> str:
    return CHILD.format(command=command, session=session) + READY


def test_children_end_with_the_root() -> None:
    process, tree, child = start(f"{child_code()}; import time; time.sleep(600)")
    tree.end()
    assert process.returncode == -signal.SIGTERM
    assert not is_alive(child)


def test_grandchildren_in_sessions_of_their_own_end() -> None:
    shell = "['sh', '-c', 'sleep 600 & wait']"
    _, tree, child = start(f"{child_code(shell, session=True)}; import time; time.sleep(600)")
    wait_until(lambda: bool(psutil.Process(child).children()))
    grandchild = psutil.Process(child).children()[0]
    tree.end()
    assert not is_alive(child)
    assert not is_alive(grandchild)


def test_children_of_a_root_that_has_ended() -> None:
    process, tree, child = start(child_code())
    process.wait()
    assert is_alive(child)
    tree.end()
    assert not is_alive(child)
    assert process.returncode == 0


def test_orphans_in_the_session_of_a_descendant_that_has_ended() -> None:
    # The shell ends at once; its `sleep` stays behind, in the shell's session.
    shell = "['sh', '-c', 'sleep 600 & sleep 0.5']"
    _, tree, child = start(
        f"{child_code(shell, session=True)}; child.wait(); import time; time.sleep(600)"
    )
    wait_until(lambda: len(psutil.Process(child).children()) == 2)
    (orphan,) = [p for p in psutil.Process(child).children() if "600" in p.cmdline()]
    module._watch([tree])  # sees the shell
    wait_until(lambda: not is_alive(child))
    assert is_alive(orphan)
    tree.end()
    assert not is_alive(orphan)


def test_what_starts_while_the_tree_is_ended() -> None:
    """A process that starts another one when it is asked to end."""
    process, tree, _ = start(
        "import os, signal, subprocess, sys, time\n"
        "def again(number, frame):\n"
        "    subprocess.Popen(['sleep', '601'], start_new_session=True)\n"
        "    time.sleep(0.3)\n"
        "    sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, again)\n"
        "print('ready', os.getpid(), flush=True)\n"
        "time.sleep(600)"
    )
    tree.end()
    assert process.returncode == 3
    assert not [p for p in psutil.process_iter() if _is_sleep_601(p)]


def _is_sleep_601(process: psutil.Process) -> bool:
    try:
        return process.cmdline() == ["sleep", "601"] and is_alive(process)
    except psutil.Error:
        return False


def test_a_root_that_ignores_the_request_is_killed() -> None:
    process, tree, _ = start(
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('ready', os.getpid(), flush=True); time.sleep(600)"
    )
    tree.end(patience=0.3)
    assert process.returncode == -signal.SIGKILL


def test_a_root_that_has_ended_and_left_nothing() -> None:
    process, tree, _ = start("import os; print('ready', os.getpid(), flush=True)")
    process.wait()
    tree.end()
    assert process.returncode == 0


def test_a_process_with_the_id_of_a_member_that_has_ended_is_left_alone() -> None:
    process, tree, _ = start("import os; print('ready', os.getpid(), flush=True)")
    process.wait()
    ours = psutil.Process()
    # As if the system had given the id of the ended root to us, and we had a child.
    tree.adopt([(_with_id(ours, process.pid), 1, process.pid), (ours, process.pid, process.pid)])
    assert tree.alive() == []


def _with_id(process: psutil.Process, pid: int) -> psutil.Process:
    """Return a process that claims another id; it differs from all others."""
    other = psutil.Process(process.pid)
    other._pid, other._ident, other._hash = pid, (pid, -1.0), None
    return other


def test_ended_members_are_forgotten() -> None:
    """A worker's SuperNode starts a process per message: a long run must not pile them up."""
    process, tree, child = start(f"{child_code()}; child.wait(); import time; time.sleep(600)")
    try:
        module._watch([tree])
        assert [p.pid for p in tree.alive()] == [process.pid, child]
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: not psutil.pid_exists(child))
        module._watch([tree])
        assert len(tree._members) == 2  # it may just have started something
        module._watch([tree])
        assert [p.pid for p in tree._members] == [process.pid]
    finally:
        tree.end()


def test_a_zombie_is_not_alive() -> None:
    process = subprocess.Popen(["true"])
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    assert not is_alive(process.pid)
    process.wait()
    assert not is_alive(process.pid)
    assert is_alive(os.getpid())
