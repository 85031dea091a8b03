"""What Flower's SuperNode does between two calls to the SuperLink, without its long waits.

Flower's main loop looks for a message every 3 s, and for the reply to it every 0.5 s. Here it looks
often after a message and ever more rarely without one, and learns of a reply at once. It also
answers for a ClientApp that cannot: whose process has died, or has not ended in the message's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import flwr.supernode.start_client_internal as _start_client_internal
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus

from mll_flower.processes.warm.executor_link import (
    DONE,
    FAILED,
    GONE,
    KILL,
    STARTED,
    TASK,
    ExecutorLink,
)
from mll_flower.processes.warm.watchdog import Watchdog

flower: Any = _start_client_internal  # whose private names are used and replaced

_SOON = 0.1  # seconds until the next look for a message, at first
_SHARE = 0.1  # later: this share of the time since the last message
_LISTEN = 0.1  # seconds between looks for a reply of which nobody has told
_MARGIN = 1.0  # seconds before the end of its message's time at which a ClientApp is late
_ENDING = 10.0  # seconds that its process may take for the rest after the reply
_KEPT = 100  # finished tasks that Flower may remember


@dataclass
class _Work:
    """A message that a ClientApp works on."""

    message: Message
    until: float
    task: int | None  # none if Flower has answered the message itself
    started: bool = False
    replied: bool = False
    done: bool = False


@dataclass
class _Outbox:
    """The arguments that Flower's main loop sends replies with."""

    state: Any
    object_store: Any
    send: Any
    push_object: Any
    replies: list[Message] = field(default_factory=list)


class MainLoop:
    """Takes the place of the waits in Flower's main loop.

    Parameters
    ----------
    executor : ExecutorLink
        Runs the ClientApps.
    watchdog : Watchdog
        Told of every exchange with the SuperLink.
    parallel : int
        Messages of different runs that are worked on at the same time.
    """

    def __init__(self, executor: ExecutorLink, watchdog: Watchdog, parallel: int) -> None:
        self.executor, self.watchdog, self.parallel = executor, watchdog, parallel
        self._working: dict[int, _Work] = {}  # by run
        self._outbox: _Outbox | None = None
        self._pulled: Message | None = None
        self._created: int | None = None  # the task for it
        self._active = time.monotonic()  # when something was last pulled or sent
        self._pull_and_store_message = flower._pull_and_store_message
        self._push_messages = flower._push_messages

    def install(self) -> None:
        """Replace the names in Flower's module."""
        flower._pull_and_store_message = self.pull
        flower._push_messages = self.push
        flower.time = _Instead(time, sleep=self.sleep)
        flower.subprocess = _Instead(flower.subprocess, Popen=self.executor.start)
        # A message that is found while its arrays are still being sent: not 1 s until the next try.
        flower.pull_objects = partial(flower.pull_objects, initial_backoff=0.05, backoff_cap=1.0)

    def pull(
        self,
        *,
        state: Any,
        object_store: Any,
        receive: Callable[[], Any],
        pull_object: Callable[..., Any],
        **rest: Any,
    ) -> int | None:
        """Do what Flower does, and remember the message: it may have to be answered for.

        If the message cannot be received as a whole, because its run has ended meanwhile, Flower
        leaves its task behind. The executor, which takes one task per message, would then always
        be one task behind; so it is removed.
        """

        def remembering() -> Any:
            received = receive()
            self._pulled = received[0] if received else None
            return received

        def creating(**given: Any) -> Any:
            self._created = state.create_task(**given)
            return self._created

        self._pulled = self._created = None
        with self.watchdog.exchange():
            run: int | None = self._pull_and_store_message(
                state=_Instead(state, create_task=creating),
                object_store=object_store,
                receive=remembering,
                pull_object=self.watchdog.part(pull_object),
                **rest,
            )
        if run is None and self._pulled is not None:
            _drop(state, object_store, self._pulled.metadata.message_id)
            if self._created is not None:
                state.finish_task(self._created, SubStatus.FAILED, "its message was not received")
        return run

    def push(self, *, state: Any, object_store: Any, send: Any, push_object: Any) -> None:
        """Have the message worked on; return when another one can be pulled."""
        if self._outbox is None:
            self._outbox = _Outbox(state, object_store, send, push_object)
        message, self._active = self._pulled, time.monotonic()
        assert message is not None
        run = message.metadata.run_id
        # One after another within a run: each message finds the context that the last one left.
        while run in self._working:
            self._attend(_LISTEN)
        until = time.monotonic() + _seconds_given(message)
        self._working[run] = _Work(message, until, self._created)
        self.executor.tell(TASK)
        while sum(not work.replied for work in self._working.values()) >= self.parallel:
            self._attend(_LISTEN)
        _forget_finished_tasks(state)

    def sleep(self, seconds: float) -> None:
        """Wait until it is time to look for another message."""
        wait = min(seconds, max(_SOON, _SHARE * (time.monotonic() - self._active)))
        end = time.monotonic() + wait
        while (left := end - time.monotonic()) > 0:
            self._attend(left)

    def _attend(self, seconds: float) -> None:
        """Send replies and hear the executor; if there is nothing, wait for it some seconds."""
        ended = [run for run, work in self._working.items() if work.done]
        # Replies first: when one is here, the executor has said that its task was started.
        self._collect_replies()
        heard = self.executor.hear()
        for said in heard:
            self._hear(*said)
        sent = self._send_replies()
        for run in ended:
            if run in self._working:
                self._fail(run, "its process has ended the task without a reply")
        if not (heard or sent or ended or self._end_overdue()):
            self.executor.wait(min(seconds, _LISTEN) if self._working else seconds)

    def _hear(self, word: str, run: int = 0, task: int = 0, why: str = "") -> None:
        if word == GONE:
            for lost in [run for run, work in self._working.items() if work.started]:
                self._fail(lost, "the executor has ended, and its process with it")
            return
        work = self._working.get(run)
        if work is None or work.task != task:
            return  # of a task that was answered for
        if word == STARTED:
            work.started = True
        elif word == FAILED:
            self._fail(run, why)
        elif work.replied:
            del self._working[run]
        else:
            work.done = word == DONE

    def _collect_replies(self) -> None:
        if self._outbox is not None:
            new = self._outbox.state.get_messages_legacy(is_reply=True)
            self._outbox.replies.extend(new)

    def _send_replies(self) -> bool:
        """Send the replies that are complete; return whether there were any."""
        box = self._outbox
        if box is None:
            return False
        complete: list[Message] = []
        incomplete: list[Message] = []
        for reply in box.replies:
            (complete if _is_complete(reply, box.object_store) else incomplete).append(reply)
        box.replies = incomplete
        if not complete:
            return False
        with self.watchdog.exchange():
            self._push_messages(
                state=_Instead(box.state, get_messages_legacy=lambda **_: complete),
                object_store=box.object_store,
                send=box.send,
                push_object=self.watchdog.part(box.push_object),
            )
        self._active = time.monotonic()
        for reply in complete:
            self._note_reply(reply)
        return True

    def _note_reply(self, reply: Message) -> None:
        work = self._working.get(reply.metadata.run_id)
        if work is None or work.message.metadata.message_id != reply.metadata.reply_to_message_id:
            return
        if not work.started or work.done:
            del self._working[reply.metadata.run_id]
        else:
            work.replied, work.until = True, time.monotonic() + _ENDING

    def _end_overdue(self) -> bool:
        """End the processes that are not ready in time; return whether there were any."""
        now = time.monotonic()
        late = [run for run, work in self._working.items() if now > work.until]
        for run in late:
            self.executor.tell(KILL, run)
            self._fail(run, "it was not ready when its message's time was up")
        return bool(late)

    def _fail(self, run: int, why: str) -> None:
        """Reply with an error in the place of a ClientApp, unless it has replied."""
        work, box = self._working.pop(run), self._outbox
        assert box is not None
        if work.task is not None:
            box.state.finish_task(work.task, SubStatus.FAILED, why)
        if work.replied:
            return
        print(f"The ClientApp of run {run} gave no reply: {why}", flush=True)
        original = work.message.metadata.message_id
        parts = [r for r in box.replies if r.metadata.reply_to_message_id == original]
        box.replies = [r for r in box.replies if r.metadata.reply_to_message_id != original]
        for reply in parts:  # sent in part when the process ended
            _drop(box.state, box.object_store, reply.metadata.message_id)
        _drop(box.state, box.object_store, original)
        box.state.record_message_processing_end(original)
        error = Error(ErrorCode.CLIENT_APP_CRASHED, f"The ClientApp gave no reply: {why}")
        flower._insert_message(Message(error, reply_to=work.message), box.state, box.object_store)


class _Instead:
    """An object with some attributes of its own, and otherwise those of another."""

    def __init__(self, other: Any, **own: Any) -> None:
        self.__dict__.update(own, _other=other)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)


def _drop(state: Any, store: Any, message: str) -> None:
    """Remove a message that nobody shall work on, or send, any more."""
    state.delete_messages(message_ids=[message])
    store.delete(message)


def _is_complete(reply: Message, store: Any) -> bool:
    """Return whether all of a reply's arrays have arrived.

    Flower would begin to send it, and wait for the rest for ever if the process died meanwhile.
    """
    tree = store.get_object_tree(reply.metadata.message_id)
    return all(store.get(part.object_id) for part in flower.iterate_object_tree(tree))


def _seconds_given(message: Message) -> float:
    """Return how long a ClientApp may work on a message that has just come.

    By our clock alone: the sender's may differ. A little less than the message is valid, as later
    not even an error reply is passed on.
    """
    ttl = message.metadata.ttl
    return ttl - min(_MARGIN, 0.1 * ttl)


def _forget_finished_tasks(state: Any) -> None:
    """Forget old tasks: Flower keeps them all, and looks at all of them for each new one."""
    with state.lock_task_store:
        if len(state.task_store) > 2 * _KEPT:
            old = [k for k, task in state.task_store.items() if task.status.status == "finished"]
            for task_id in old[:-_KEPT]:
                del state.task_store[task_id]
