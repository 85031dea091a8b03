"""Messages of a simulation reach their nodes at once.

In Flower 1.41's simulation one thread looks for each node's messages every 0.1 s, and goes through
all messages to find those of one node. A mixing needs one message per hub, so a run of small
models spends most of its time waiting, and with a thousand hubs the search itself takes seconds
per round. Here another thread takes its place, which is told of each message when it is stored.

The simulation runs in the process of the ServerApp, where the thread and what it was started with
can be found. If a release of Flower does this in another way, nothing is found and nothing is
changed: the results are the same, and only take longer.
"""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from queue import Empty, Queue, SimpleQueue
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

_MODULE, _FUNCTION = "flwr.server.superlink.fleet.vce.vce_api", "add_messages_to_queue"
_ARGUMENTS = ["state", "queue", "nodes_mapping", "f_stop"]
_LOOK_FOR_END = 0.5  # seconds between two looks whether the run has ended
_UNDER_WAY = 0.1  # seconds after which Flower's thread has delivered what it had found


def deliver_promptly(grid: Grid) -> None:
    """Take over the delivery of messages if this is the grid of a running simulation.

    Parameters
    ----------
    grid : Grid
        A grid that is about to send messages.
    """
    state: Any = getattr(grid, "state", None)
    if state is None or "get_message_ins" in vars(state):  # not a simulation's, or taken over
        return
    function = getattr(sys.modules.get(_MODULE), _FUNCTION, None)
    if function is None or list(inspect.signature(function).parameters) != _ARGUMENTS:
        return
    for thread in threading.enumerate():
        arguments: tuple[Any, ...] = getattr(thread, "_args", ())
        if getattr(thread, "_target", None) is function and arguments[0] is state:
            _take_over(thread, *arguments)


def _take_over(
    flowers: threading.Thread,
    state: Any,
    queue: Queue[Message],
    nodes: Iterable[int],
    stop: threading.Event,
) -> None:
    """Start the thread that delivers from now on; Flower's finds nothing any more.

    Parameters
    ----------
    flowers : Thread
        Flower's thread.
    state : LinkState
        Where the server side stores its messages.
    queue : Queue
        Where messages wait for a process that works on them.
    nodes : iterable of int
        The nodes.
    stop : Event
        Set when the run ends.
    """
    find, store = state.get_message_ins, state.store_message_ins
    stored: SimpleQueue[Message] = SimpleQueue()

    def find_for_others(*args: Any, **kwargs: Any) -> list[Message]:
        found: list[Message] = []
        if threading.current_thread() is not flowers:
            found = find(*args, **kwargs)
        return found

    def store_and_tell(message: Message) -> str | None:
        message_id: str | None = store(message)
        if message_id is not None:
            stored.put(message)
        return message_id

    def deliver() -> None:
        time.sleep(_UNDER_WAY)
        for node in nodes:  # what was stored before
            for message in find(node_id=node, limit=None):
                queue.put(message)
        while not stop.is_set():
            try:
                message = stored.get(timeout=_LOOK_FOR_END)
            except Empty:
                continue
            if not message.metadata.delivered_at:
                message.metadata.delivered_at = datetime.now(UTC).isoformat()
                queue.put(message)

    state.get_message_ins, state.store_message_ins = find_for_others, store_and_tell
    threading.Thread(target=deliver, name="deliver-promptly", daemon=True).start()
