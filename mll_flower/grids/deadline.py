"""A round with a deadline, on any Flower Grid.

`DeadlineGrid` wraps a grid so that ``send_and_receive`` ends on time: it polls often, pulls
once more at the deadline, never blocks past it, and answers for every message. A node
that did not answer in time is answered for with an error reply that says why, so any
strategy that copes with failed nodes copes with absent ones.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from logging import WARNING

from flwr.app import Error, Message
from flwr.serverapp import Grid
from flwr.supercore import log

from mll_flower.grids.absences import Absence, absent_reply
from mll_flower.grids.wrapper import GridWrapper

# What a last pull at the deadline may take before its reply counts as late.
_LAST_PULL = 0.5
# A reply that is there at the deadline must not expire before it is pulled.
_SLACK = 1.0
# A pull that takes longer than this waits for a node that is uploading.
_UPLOADING = 2.0


@dataclass
class _Sent:
    """A message whose reply is awaited."""

    message: Message
    expires: float
    pulling_since: float | None = None

    @property
    def id(self) -> str:
        return self.message.metadata.message_id

    @property
    def node(self) -> int:
        return self.message.metadata.dst_node_id


class DeadlineGrid(GridWrapper):
    """A grid whose rounds end on time.

    One line gives it to any strategy: ``strategy.start(grid=DeadlineGrid(grid, 30), ...)``.
    A round ends when every node that was asked has answered, or when its time is up.

    Parameters
    ----------
    grid : Grid
        The grid to wrap.
    seconds : float
        The deadline of a round. ``send_and_receive``'s own timeout holds if it is shorter.
    poll : float
        Seconds between two looks for replies.
    """

    def __init__(self, grid: Grid, seconds: float, poll: float = 0.1) -> None:
        if not seconds > 0 or not poll > 0:
            raise ValueError(f"seconds={seconds}, poll={poll}: both must be positive")
        super().__init__(grid)
        self.seconds = seconds
        self.poll = poll
        self.lasted = 0.0
        """Seconds that the last round lasted."""
        self.late = 0.0
        """Seconds after its deadline at which the last round ended; negative if before."""
        self._began = 0.0
        self._owed: dict[str, _Sent] = {}
        self._watched: set[str] = set()
        self._inbox: queue.Queue[tuple[str, Message | None]] = queue.Queue()
        self._look = threading.Condition()
        # Flower's simulation and ours keep their messages here: pulling never blocks.
        self._in_process = type(grid).__name__ in ("InMemoryGrid", "InProcessGrid")

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages and collect replies until the deadline.

        Returns
        -------
        list[Message]
            One reply for each message, in the messages' order: the node's own, or an
            error reply that says why there is none (`absence_of`).
        """
        asked = list(messages)
        self.lasted = self.late = 0.0
        if not asked:
            return []
        limit = self.seconds if timeout is None else min(self.seconds, timeout)
        self._began = time.monotonic()
        end = self._began + limit
        self._collect(set(), until=0.0)  # replies of earlier rounds: freed, never averaged
        self._forget_expired()
        sent = self._send(asked, limit, end)
        replies = self._collect({item.id for item in sent}, until=end)
        if not sent:
            # Nobody was reached: a round still lasts its time, so that rounds keep their pace.
            time.sleep(max(0.0, end - time.monotonic()))
        self.late = time.monotonic() - end
        self.lasted = limit + self.late
        return [self._answer(message, replies, limit) for message in asked]

    def _send(self, messages: list[Message], limit: float, expires: float) -> list[_Sent]:
        for message in messages:
            # What is not begun by the deadline must not be begun: a node that still owes a
            # reply would work through its backlog, and be late again and again.
            message.metadata.ttl = min(message.metadata.ttl, limit + _SLACK)
        accepted = set(self.grid.push_messages(messages))
        sent = [_Sent(m, expires) for m in messages if m.metadata.message_id in accepted]
        for item in sent:
            self._owed[item.id] = item
            if not self._in_process:
                watcher = threading.Thread(target=self._watch, args=(item,), daemon=True)
                self._watched.add(item.id)
                watcher.start()
        return sent

    def _collect(self, wanted: set[str], until: float) -> dict[str, Message]:
        """Take replies until all the wanted ones are there or the time is up."""
        replies: dict[str, Message] = {}
        last = False
        while True:
            for reply in self._arrived(0.0 if last or not wanted else until - time.monotonic()):
                sent_id = reply.metadata.reply_to_message_id
                self._owed.pop(sent_id, None)
                if sent_id in wanted:
                    replies[sent_id] = reply
            if last or len(replies) == len(wanted):
                return replies
            if time.monotonic() >= until:
                last = True
                self._pull_once_more(wanted - set(replies))

    def _arrived(self, wait: float) -> list[Message]:
        """Wait at most ``wait`` and one poll, then take the replies that are there."""
        if self._in_process:
            replies = list(self.grid.pull_messages(list(self._owed))) if self._owed else []
            if not replies and wait > 0:
                # A hundredth of what the round has lasted: neither late nor in the nodes' way.
                waited = time.monotonic() - self._began
                time.sleep(min(self.poll, wait, max(0.004, 0.01 * waited)))
            return replies
        replies = []
        try:
            while True:
                block = wait > 0 and not replies
                _, reply = self._inbox.get(block, timeout=min(wait, 1.0) if block else None)
                if reply is not None:
                    replies.append(reply)
        except queue.Empty:
            return replies

    def _pull_once_more(self, missing: set[str]) -> None:
        """At the deadline, wake the watchers and give their pulls a moment."""
        if self._in_process or not missing:
            return
        with self._look:
            self._look.notify_all()
        end = time.monotonic() + _LAST_PULL
        done: list[tuple[str, Message | None]] = []
        while missing and time.monotonic() < end:
            try:
                done.append(self._inbox.get(timeout=max(0.01, end - time.monotonic())))
            except queue.Empty:
                break
            missing = missing - {done[-1][0]}
        for item in done:
            self._inbox.put(item)

    def _watch(self, sent: _Sent) -> None:
        """Pull one reply in a thread of its own: a pull may block while a node uploads."""
        # Many watchers look less often, so that they do not keep the SuperLink busy.
        poll = max(self.poll, 0.01 * len(self._watched))
        warned = False
        try:
            while True:
                sent.pulling_since = time.monotonic()
                try:
                    replies = list(self.grid.pull_messages([sent.id]))
                except Exception as error:
                    # The SuperLink may be away for a moment; the deadline bounds the wait.
                    replies = []
                    if not warned:
                        log(WARNING, "node %d: its reply cannot be pulled: %s", sent.node, error)
                        warned = True
                sent.pulling_since = None
                if replies:
                    self._inbox.put((sent.id, replies[0]))
                    return
                if time.monotonic() > sent.expires + 5.0:
                    self._inbox.put((sent.id, None))
                    return
                with self._look:
                    self._look.wait(poll)
        finally:
            self._watched.discard(sent.id)

    def _answer(self, message: Message, replies: dict[str, Message], limit: float) -> Message:
        reply = replies.get(message.metadata.message_id)
        if reply is not None:
            if not reply.has_error():
                return reply
            # The SuperLink answers for lost messages itself: name the node that was asked.
            return Message(Error(reply.error.code, reply.error.reason), reply_to=message)
        owed = self._owed.get(message.metadata.message_id)
        if owed is None:
            return absent_reply(message, Absence.NOT_SENT, "the SuperLink did not take the message")
        since = owed.pulling_since
        if since is not None and time.monotonic() - since > _UPLOADING:
            return absent_reply(message, Absence.UPLOADING, f"still uploading after {limit:g} s")
        return absent_reply(message, Absence.LATE, f"no reply within {limit:g} s")

    def _forget_expired(self) -> None:
        """After its expiry a message is not begun any more: its node may be asked again."""
        now = time.monotonic()
        expired = [owed.id for owed in self._owed.values() if now >= owed.expires]
        if expired and self._in_process:
            list(self.grid.pull_messages(expired))  # what is never pulled is never freed
        for sent_id in expired:
            del self._owed[sent_id]
