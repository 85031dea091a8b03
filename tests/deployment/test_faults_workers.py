"""Workers that freeze, die, are killed in part, or run twice: their hubs go on, and they return.

Each test ends with a replay: the reported steps, the absences and the mixing weights that the hubs
have recorded must lead to the same models, to the bit.
"""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from mll_flower.processes.process_tree import is_alive
from tests.support.deployment import COLD, Deployment
from tests.support.faults import (
    DEADLINE,
    GOSSIP,
    LONG,
    check,
    network,
    stop_and_check,
    wait_arrived,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def test_workers_that_freeze_come_back_and_die(tmp_path: Path) -> None:
    with network(tmp_path, {"a": 2, "b": 1}, rounds=9) as trial:
        trial.start_all()
        trial.wait_round("a", 1)
        trial.signal("worker-a-1", signal.SIGSTOP)
        frozen = len(trial.rows("a"))
        trial.wait(
            "a round without worker 1",
            lambda: any(row["absent"] for row in trial.rows("a")),
            4 * DEADLINE,
        )
        trial.signal("worker-a-1", signal.SIGCONT)
        back = len(trial.rows("a"))
        wait_arrived(trial, "a", 1, back)
        trial.signal("worker-b-0", signal.SIGKILL)
        dead = len(trial.rows("b"))
        trial.wait_finished(["a", "b"], 12 * (DEADLINE + GOSSIP))
        a, b = trial.rows("a"), trial.rows("b")
        causes = {absent["cause"] for row in a[frozen:back] for absent in row["absent"]}
        assert causes <= {"late", "expired", "uploading", "gone"}
        assert causes
        assert all(absent["worker"] == 1 for row in a for absent in row["absent"])
        # A hub whose only worker is dead goes on: it keeps its model and mixes it.
        assert all(not row["arrived"] for row in b[dead + 1 :])
        assert [row["round"] for row in b] == list(range(1, 10))
        assert all(not row["silent"] for row in (*a, *b))
        check(trial, ["a", "b"])


def test_parts_of_a_worker_are_killed(tmp_path: Path) -> None:
    """First the ClientApp alone, then the SuperNode alone, which leaves no ClientApp behind."""
    with network(tmp_path, {"a": 2}, rounds=LONG, slot=0.1) as trial:
        trial.start_all()
        for worker in (0, 1):
            wait_arrived(trial, "a", worker, 0)
        seen, [supernode] = len(trial.rows("a")), trial.find("worker-a-0", "warm.supernode")
        # Flower's own SuperNode learns it only when the token of the message's task has expired.
        died = {"late", "expired", "died"} if COLD else {"died"}
        trial.wait(
            "a round in which the ClientApp of worker 0 has died",
            lambda: (
                kill_clientapp(trial)
                or any(a["worker"] == 0 and a["cause"] in died for a in absences(trial, seen))
            ),
            12 * DEADLINE,
        )
        wait_arrived(trial, "a", 0)
        assert is_alive(supernode)

        [supernode] = trial.find("worker-a-1", "warm.supernode")
        started = supernode.children(recursive=True)
        supernode.kill()
        trial.wait("nothing of it is left", lambda: not any(map(is_alive, started)), 60.0)
        trial.wait(
            "the SuperNode is started again",
            lambda: bool(trial.find("worker-a-1", "warm.supernode")),
        )
        wait_arrived(trial, "a", 1)
        assert "has ended (signal 9); it is started again in 3 s" in trial.output("worker-a-1")
        stop_and_check(trial, ["a"])


def kill_clientapp(trial: Deployment) -> None:
    """Kill the processes in which a ClientApp of worker 0 runs now, or waits for a message."""
    text = "flwr-clientapp" if COLD else "multiprocessing.forkserver"
    found = trial.find("worker-a-0", text)
    for process in found:
        # The fork server itself stays.
        if COLD or any(process.ppid() == other.pid for other in found):
            process.kill()


def absences(trial: Deployment, after: int) -> list[dict]:
    return [absent for row in trial.rows("a")[after:] for absent in row["absent"]]


def test_a_worker_that_is_started_twice(tmp_path: Path) -> None:
    with network(tmp_path, {"a": 1}, rounds=LONG) as trial:
        trial.start_all()
        trial.wait_round("a", 1)
        first = psutil.Process(trial.processes["worker-a-0"].pid)
        second = trial.call("worker", str(trial.path), "--hub", "a", "--number", "0", "--quiet")
        assert second.returncode == 2
        text = f"worker 0 of hub a runs already on this machine (process {first.pid})"
        assert text in second.stdout
        assert is_alive(first)
        wait_arrived(trial, "a", 0)
        assert not absences(trial, 0)
        stop_and_check(trial, ["a"])
