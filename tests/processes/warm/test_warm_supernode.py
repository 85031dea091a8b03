"""A SuperNode with warm workers: real processes, and ClientApps that do their worst."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from mll_flower.processes.process_tree import is_alive
from tests.support.superlink import APP, InProcessSuperLink, Run
from tests.support.supernode import QUICK, SuperNode, wait_for

pytestmark = pytest.mark.timeout(180)

SOON = 20.0  # seconds: a loaded machine has time, and Flower alone would take 60
MEMORY = 0.7  # gigabytes; a process without torch has about 0.15


@pytest.fixture(scope="module")
def superlink() -> Iterator[InProcessSuperLink]:
    with InProcessSuperLink() as superlink:
        yield superlink


@pytest.fixture(scope="module")
def supernode(
    superlink: InProcessSuperLink, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SuperNode]:
    settings = (*QUICK, "--parallel", "2", "--max-memory", str(MEMORY))
    with SuperNode(tmp_path_factory.mktemp("warm"), superlink, settings) as supernode:
        yield supernode


@pytest.fixture(scope="module")
def node(superlink: InProcessSuperLink, supernode: SuperNode) -> int:
    [node] = superlink.wait_for_nodes(1)
    return node


@pytest.fixture
def run(superlink: InProcessSuperLink) -> Run:
    return superlink.run()


def test_one_process_answers_message_after_message(
    run: Run, node: int, supernode: SuperNode
) -> None:
    replies = [run.ask(node) for _ in range(3)]
    assert len({reply["pid"] for reply in replies}) == 1
    assert [reply["count"] for reply in replies] == [1, 2, 3]  # context.state stays
    assert "mailbox" in replies[0]["modules"]  # preloaded
    assert "torch" not in replies[0]["modules"]
    assert "no_such_module is not preloaded" in supernode.output()
    # What the app prints is where the SuperNode's output is.
    wait_for(lambda: supernode.output().count(f"order  in {replies[0]['pid']}") == 3)


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ("raise", "as it was told"),
        ("exit", "it ended with SystemExit(3)"),
        pytest.param("_exit", "its process has ended with code 4", marks=pytest.mark.slow),
        ("segfault", "its process has ended by signal 11"),
        ("kill", "its process has ended by signal 9"),
    ],
)
def test_a_fault_gives_an_error_at_once_and_a_fresh_process(
    run: Run, node: int, do: str, reason: str
) -> None:
    before = run.ask(node)
    assert reason in run.error(node, do, SOON)
    after = run.ask(node)
    assert after["pid"] != before["pid"]
    assert not is_alive(before["pid"])
    # As with Flower alone, an error that was raised leaves what the app had put into its state.
    assert after["count"] == (3 if do == "raise" else 2)


@pytest.mark.parametrize("do", [pytest.param("sleep", marks=pytest.mark.slow), "hold"])
def test_a_process_that_hangs_past_its_message_s_time(run: Run, node: int, do: str) -> None:
    before = run.ask(node)
    run.error(node, do, SOON, ttl=3.0, seconds=600)
    after = run.ask(node)
    assert after["pid"] != before["pid"]
    wait_for(lambda: not is_alive(before["pid"]))


def test_a_process_that_uses_too_much_memory(run: Run, node: int) -> None:
    before = run.ask(node)
    reason = run.error(node, "leak", SOON, megabytes=1000 * MEMORY, seconds=600.0)
    assert f"more than {MEMORY:g} GB" in reason
    assert run.ask(node)["pid"] != before["pid"]


def test_another_run_and_another_app_have_another_process(
    superlink: InProcessSuperLink, run: Run, node: int
) -> None:
    first = run.ask(node)
    same_app = superlink.run()
    new_app = superlink.run(APP.replace("VERSION = 1", "VERSION = 2"))
    second, third = same_app.ask(node), new_app.ask(node)
    assert len({first["pid"], second["pid"], third["pid"]}) == 3
    assert (first["version"], second["version"], third["version"]) == (1, 1, 2)
    assert (first["count"], second["count"], third["count"]) == (1, 1, 1)
    assert run.ask(node)["version"] == 1


def test_what_an_app_brings_along_is_taken_from_the_app(
    superlink: InProcessSuperLink, node: int, supernode: SuperNode
) -> None:
    app = "import mll_flower.mine\nimport mailbox\n" + APP
    files = {
        "mll_flower/__init__.py": "",
        "mll_flower/mine.py": "",
        "mailbox.py": "raise ImportError('a standard module is not the app’s')",
    }
    for _ in range(2):
        assert str(supernode.folder) in superlink.run(app, files).ask(node)["mll"]


def test_messages_of_two_runs_are_worked_on_at_the_same_time(
    superlink: InProcessSuperLink, run: Run, node: int
) -> None:
    other = superlink.run()
    slow = run.send(node, "sleep", seconds=5.0)
    quick = other.ask(node)
    assert not list(run.grid.pull_messages([slow]))  # not ready yet
    reply = run.reply(slow).content["about"]
    assert reply["pid"] != quick["pid"]
    assert reply["begun"] > quick["begun"]


def test_messages_of_one_run_are_worked_on_one_after_another(run: Run, node: int) -> None:
    sent = [run.send(node, "sleep", seconds=0.3) for _ in range(3)]
    replies = [run.reply(message).content["about"] for message in sent]
    assert len({reply["pid"] for reply in replies}) == 1
    assert sorted(reply["count"] for reply in replies) == [1, 2, 3]


@pytest.mark.parametrize(
    "what", ["warm.superexec", pytest.param("forkserver", marks=pytest.mark.slow)]
)
def test_the_death_of_a_process_in_between(
    run: Run, node: int, supernode: SuperNode, what: str
) -> None:
    before = run.ask(node)
    message = run.send(node, "hold", seconds=600)
    wait_for(lambda: f"order hold in {before['pid']}" in supernode.output())
    for process in supernode.find(what):
        process.send_signal(signal.SIGKILL)
    reply = run.reply(message, SOON)
    assert reply.has_error()
    assert "The ClientApp gave no reply" in reply.error.reason
    wait_for(lambda: not is_alive(before["pid"]))  # although nothing in it could run
    assert run.ask(node)["pid"] != before["pid"]


def test_a_process_that_dies_while_it_is_idle(run: Run, node: int) -> None:
    before = run.ask(node)
    psutil.Process(before["pid"]).kill()
    time.sleep(0.5)
    after = run.ask(node)
    assert after["pid"] != before["pid"]
    assert after["count"] == 2
