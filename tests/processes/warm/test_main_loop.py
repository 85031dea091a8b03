"""Messages that a SuperNode cannot receive, or that nobody worked on, leave no task behind.

The executor takes one task per message: with one too many, it would work on the one before for
ever.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

from mll_flower.processes.warm.executor_link import ExecutorLink
from mll_flower.processes.warm.main_loop import MainLoop
from mll_flower.processes.warm.settings import WarmSettings
from mll_flower.processes.warm.watchdog import Watchdog

RUN = 7


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are made in the name of a run's task."""
    for name, value in (("_task_id", 1), ("_run_id", RUN), ("_node_id", 2)):
        monkeypatch.setattr(TaskIdentity, name, value)


class Node:
    """The state of a SuperNode that knows a run, and the loop that receives its messages."""

    def __init__(self) -> None:
        self.store = InMemoryObjectStore()
        self.state = InMemoryNodeState(self.store)
        self.state.set_node_id(1)
        self.state.store_run(Run.create_empty(RUN))
        self.loop = MainLoop(ExecutorLink(WarmSettings()), Watchdog("127.0.0.1:1"), parallel=2)

    def receive(self, ttl: float, run_has_ended: bool = False) -> int | None:
        """Receive a message of the run; return what Flower's main loop is told."""
        content = RecordDict({"model": ArrayRecord([np.zeros(3)])})
        message = Message(content, 1, MessageType.TRAIN, ttl=ttl)
        message.metadata.__dict__["_message_id"] = message.object_id
        tree = get_object_tree(message)
        parts = {part.object_id: part for part in _all_parts(message)}

        def pull_object(run: int, id: str) -> bytes:
            if run_has_ended:
                raise RunNotRunningException
            return parts[id].deflate()

        return self.loop.pull(
            state=self.state,
            object_store=self.store,
            node_config={},
            receive=lambda: (message, tree),
            get_run=None,
            get_fab=None,
            pull_object=pull_object,
            confirm_message_received=lambda *_: None,
            trusted_entities=None,
        )

    def waiting_tasks(self) -> list[int]:
        return [task.task_id for task in self.state.get_tasks(statuses=["pending"])]


def _all_parts(message: Message) -> list[Any]:
    found, left = [], [message]
    while left:
        part: Any = left.pop()
        found.append(part)
        left.extend((part.children or {}).values())
    return found


def test_a_message_whose_run_ends_while_it_is_received() -> None:
    node = Node()
    assert node.receive(60.0, run_has_ended=True) is None
    assert node.waiting_tasks() == []
    assert not node.state.get_messages_legacy()
    assert not node.store.store
    # The next one is the executor's next.
    assert node.receive(60.0) == RUN
    assert node.waiting_tasks() == [node.loop._created]


@pytest.mark.parametrize("first", [True, False])
def test_a_message_that_nobody_worked_on_in_time(first: bool) -> None:
    node = Node()
    if not first:
        node.receive(60.0, run_has_ended=True)
    assert node.receive(0.5) == RUN
    sent: list[Message] = []
    node.loop.push(
        state=node.state,
        object_store=node.store,
        send=lambda message, *_: sent.append(message) or (set(), ""),
        push_object=lambda *_: None,
    )
    end = time.monotonic() + 20.0
    while not sent and time.monotonic() < end:
        node.loop.sleep(0.1)
    assert sent[0].has_error()
    assert "it was not ready when its message's time was up" in sent[0].error.reason
    assert node.waiting_tasks() == []
    assert not node.state.get_messages_legacy(is_reply=False)
