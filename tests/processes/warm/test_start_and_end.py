"""How a SuperNode with warm workers starts, ends, and is started again: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mll_flower.processes.warm.executor import GROWTH
from mll_flower.processes.warm.parent_death import PARENT
from mll_flower.processes.warm.settings import WarmSettings
from mll_flower.processes.warm.supernode import supernode_words
from tests.support.superlink import InProcessSuperLink
from tests.support.supernode import QUICK, SuperNode, wait_for

pytestmark = pytest.mark.timeout(240)

# The SuperNode's module, with a Flower that has something otherwise than expected.
ANOTHER_FLOWER = """
import sys
from mll_flower.processes.warm import flower_internals, supernode
flower_internals.TOUCHED += (flower_internals.Touched("flwr.supernode", "new_name"),)
supernode.main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def superlink() -> Iterator[InProcessSuperLink]:
    with InProcessSuperLink() as superlink:
        yield superlink


@pytest.mark.parametrize(
    "kind", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_nothing_is_left_behind(
    superlink: InProcessSuperLink, tmp_path: Path, kind: signal.Signals
) -> None:
    with SuperNode(tmp_path, superlink) as supernode:
        [node] = superlink.wait_for_nodes(1)
        run = superlink.run()
        pid = run.ask(node)["pid"]
        run.send(node, "hold", seconds=600)
        wait_for(lambda: f"order hold in {pid}" in supernode.output())
        supernode.process.send_signal(kind)
        assert supernode.process.wait(30) == (0 if kind == signal.SIGINT else -kind)
        supernode.wait_until_nothing_is_left()
    superlink.forget(node)


@pytest.mark.slow
def test_processes_that_begin_from_nothing(superlink: InProcessSuperLink, tmp_path: Path) -> None:
    with SuperNode(tmp_path, superlink, (*QUICK, "--start-method", "spawn")) as supernode:
        [node] = superlink.wait_for_nodes(1)
        run = superlink.run()
        replies = [run.ask(node) for _ in range(2)]
        assert replies[0]["pid"] == replies[1]["pid"]
        assert "mailbox" in replies[0]["modules"]
        assert not supernode.find("forkserver")
        assert "SystemExit" in run.error(node, "exit")
        assert run.ask(node)["count"] == 3
        supernode.process.send_signal(signal.SIGKILL)
        supernode.process.wait()
        supernode.wait_until_nothing_is_left()
    superlink.forget(node)


@pytest.mark.slow
def test_a_process_that_has_grown_is_replaced(
    superlink: InProcessSuperLink, tmp_path: Path
) -> None:
    with SuperNode(tmp_path, superlink):
        [node] = superlink.wait_for_nodes(1)
        run = superlink.run()
        first = run.ask(node)
        leaking = run.ask(node, "leak", megabytes=1000 * GROWTH + 100, seconds=0.0)
        assert leaking["pid"] == first["pid"]  # it has replied; there is no limit
        after = run.ask(node)
        assert after["pid"] != first["pid"]
        assert after["count"] == 3
    superlink.forget(node)


@pytest.mark.slow
def test_another_flower_runs_as_it_is(superlink: InProcessSuperLink, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ANOTHER_FLOWER]
    with SuperNode(tmp_path, superlink, QUICK, command) as supernode:
        [node] = superlink.wait_for_nodes(1)
        run = superlink.run()
        replies = [run.ask(node) for _ in range(2)]
        assert replies[0]["pid"] != replies[1]["pid"]
        assert "flwr.supernode.new_name" in supernode.output()
        assert "in a new process per message" in supernode.output()
        assert supernode.find("flower-superexec")
    superlink.forget(node)


@pytest.mark.slow
def test_cold_is_flower_s_own_way(superlink: InProcessSuperLink, tmp_path: Path) -> None:
    with SuperNode(tmp_path, superlink, ["--cold"]) as supernode:
        [node] = superlink.wait_for_nodes(1)
        run = superlink.run()
        replies = [run.ask(node) for _ in range(3)]
        assert len({reply["pid"] for reply in replies}) == 3
        assert [reply["count"] for reply in replies] == [1, 2, 3]
        assert "torch" not in replies[0]["modules"]
        assert supernode.find("flower-superexec")
        assert "Warning" not in supernode.output()
    superlink.forget(node)


@pytest.mark.parametrize(
    ("path", "settings"),
    [
        ("send-node-heartbeat", QUICK),
        pytest.param("pull-messages", QUICK, marks=pytest.mark.slow),
        pytest.param("send-node-heartbeat", ["--cold"], marks=pytest.mark.slow),
        pytest.param("pull-messages", ["--cold"], marks=pytest.mark.slow),
    ],
)
def test_a_supernode_that_no_longer_works_is_started_again(
    superlink: InProcessSuperLink, tmp_path: Path, path: str, settings: list[str]
) -> None:
    superlink.broken = path
    try:
        with SuperNode(tmp_path, superlink, settings) as supernode:
            wait_for(lambda: "no longer works and ends" in supernode.output(), 60.0)
            superlink.broken = "nothing"
            wait_for(lambda: "it is started again in 3 s" in supernode.output())
            before = set(superlink.online())
            wait_for(lambda: bool(set(superlink.online()) - before))
            [node] = set(superlink.online()) - before
            assert superlink.run().ask(node)["count"] == 1
            for old in (node, *before):
                superlink.forget(old)
    finally:
        superlink.broken = "nothing"


def test_a_worker_s_supernode_ends_with_its_parent_even_at_the_start(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    env = {**os.environ, PARENT: str(gone.pid), "FLWR_HOME": str(tmp_path)}
    command = supernode_words(WarmSettings(), ["--insecure", "--superlink", "127.0.0.1:1"])
    process = subprocess.Popen(command, env=env)
    assert process.wait(60) == 1
