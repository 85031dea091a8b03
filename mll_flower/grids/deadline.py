"""Rounds with a deadline, on any Flower grid.

A grid is Flower's link from a server to its nodes; a node is a worker, or in a simulation all
workers of a hub. `DeadlineGrid` wraps a grid so that ``send_and_receive`` ends on time: it polls
often and pulls once more at the deadline. On a remote grid it waits at most half a second for
that last pull. How many seconds a round may take is an argument of `DeadlineGrid`; the
strategies of this project pass their ``deadline``.

It returns one reply per message. For a node that did not answer in time this is an error reply
that says why, so any strategy that copes with failed nodes copes with absent ones.
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

from mll_flower.grids._never_blocking import never_blocks
from mll_flower.grids.absences import Absence, absent_reply
from mll_flower.grids.wrapper import GridWrapper

# Seconds that the pull at the deadline may take; a reply that needs longer is late.
_LAST_PULL = 0.5
# Seconds by which messages outlive the deadline: a reply that arrived in time must not expire
# before it is pulled.
_EXPIRY_MARGIN = 1.0
# A pull that has lasted longer than this many seconds is waiting for a node that is uploading.
_UPLOADING = 2.0


@dataclass
class _Sent:
    """A message whose reply is awaited."""

    message: Message
    deadline: float
    pulling_since: float | None = None

    @property
    def id(self) -> str:
        return self.message.metadata.message_id

    @property
    def node(self) -> int:
        return self.message.metadata.dst_node_id


class DeadlineGrid(GridWrapper):
    """A grid whose rounds end on time.

    Any strategy can use it: ``strategy.start(grid=DeadlineGrid(grid, 30), ...)``. A round ends
    when every node that was asked has answered, or when its time is up.

    Parameters
    ----------
    grid : Grid
        The grid to wrap.
    seconds : float
        Seconds that a round may last; a shorter timeout given to ``send_and_receive`` takes
        precedence.
    poll : float
        Seconds between two polls for replies.
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
        """Seconds from the deadline to the end of the last round; negative if it ended early."""
        self._began = 0.0
        self._owed: dict[str, _Sent] = {}
        self._watched: set[str] = set()
        self._inbox: queue.Queue[tuple[str, Message | None]] = queue.Queue()
        self._poll_now = threading.Condition()
        self._never_blocks = never_blocks(grid)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages and collect replies until the deadline.

        Returns
        -------
        list[Message]
            One reply for each message, in the messages' order: the node's own, or an
            error reply that says why it is missing (see `mll_flower.grids.absences`).
        """
        asked = list(messages)
        self.lasted = self.late = 0.0
        if not asked:
            return []
        limit = self.seconds if timeout is None else min(self.seconds, timeout)
        self._began = time.monotonic()
        end = self._began + limit
        self._collect(set(), until=0.0)  # drops late replies to earlier rounds
        self._forget_overdue()
        sent = self._send(asked, limit, end)
        replies = self._collect({item.id for item in sent}, until=end)
        if not sent:
            # No node was reached: the round still lasts its time, so that rounds keep their pace.
            time.sleep(max(0.0, end - time.monotonic()))
        self.late = time.monotonic() - end
        self.lasted = limit + self.late
        return [self._reply_or_absence(message, replies, limit) for message in asked]

    def _send(self, messages: list[Message], limit: float, deadline: float) -> list[_Sent]:
        for message in messages:
            # A message that its node has not begun by the deadline must expire: otherwise a
            # slow node would work through its backlog, and be late in every round.
            message.metadata.ttl = min(message.metadata.ttl, limit + _EXPIRY_MARGIN)
        accepted = set(self.grid.push_messages(messages))
        sent = [_Sent(m, deadline) for m in messages if m.metadata.message_id in accepted]
        for item in sent:
            self._owed[item.id] = item
            if not self._never_blocks:
                watcher = threading.Thread(target=self._watch, args=(item,), daemon=True)
                self._watched.add(item.id)
                watcher.start()
        return sent

    def _collect(self, wanted: set[str], until: float) -> dict[str, Message]:
        """Return the wanted replies, as far as they arrive in time; drop all others."""
        replies: dict[str, Message] = {}
        last = False
        while True:
            wait = 0.0 if last or not wanted else until - time.monotonic()
            for reply in self._take_arrived(wait):
                sent_id = reply.metadata.reply_to_message_id
                self._owed.pop(sent_id, None)
                if sent_id in wanted:
                    replies[sent_id] = reply
            if last or len(replies) == len(wanted):
                return replies
            if time.monotonic() >= until:
                last = True
                self._pull_once_more(wanted - set(replies))

    def _take_arrived(self, wait: float) -> list[Message]:
        """Return the replies that have arrived; if none has, wait at most ``wait`` seconds."""
        if self._never_blocks:
            replies = list(self.grid.pull_messages(list(self._owed))) if self._owed else []
            if not replies and wait > 0:
                # Poll after a hundredth of the round's time so far: short rounds end without
                # delay, and in long ones the polls do not slow down the nodes.
                lasted = time.monotonic() - self._began
                time.sleep(min(self.poll, wait, max(0.004, 0.01 * lasted)))
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
        """At the deadline, make the watchers pull at once, and give their pulls a moment."""
        if self._never_blocks or not missing:
            return
        with self._poll_now:
            self._poll_now.notify_all()
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
        """Poll for one reply, in a thread of its own: a pull may block while a node uploads."""
        # The more watchers, the less often each polls, so that the SuperLink is not kept busy.
        poll = max(self.poll, 0.01 * len(self._watched))
        warned = False
        try:
            while True:
                sent.pulling_since = time.monotonic()
                try:
                    replies = list(self.grid.pull_messages([sent.id]))
                except Exception as error:
                    # The SuperLink may be unreachable for a moment; the deadline bounds the wait.
                    replies = []
                    if not warned:
                        log(WARNING, "node %d: its reply cannot be pulled: %s", sent.node, error)
                        warned = True
                sent.pulling_since = None
                if replies:
                    self._inbox.put((sent.id, replies[0]))
                    return
                if time.monotonic() > sent.deadline + 5.0:
                    self._inbox.put((sent.id, None))
                    return
                with self._poll_now:
                    self._poll_now.wait(poll)
        finally:
            self._watched.discard(sent.id)

    def _reply_or_absence(
        self, message: Message, replies: dict[str, Message], limit: float
    ) -> Message:
        """Return the node's reply, or an error reply that says why it is missing."""
        reply = replies.get(message.metadata.message_id)
        if reply is not None:
            if not reply.has_error():
                return reply
            # The SuperLink itself answers for a lost message: name the node that was asked.
            return Message(Error(reply.error.code, reply.error.reason), reply_to=message)
        owed = self._owed.get(message.metadata.message_id)
        if owed is None:
            return absent_reply(
                message, Absence.NOT_SENT, "the SuperLink did not accept the message"
            )
        since = owed.pulling_since
        if since is not None and time.monotonic() - since > _UPLOADING:
            return absent_reply(message, Absence.UPLOADING, f"still uploading after {limit:g} s")
        return absent_reply(message, Absence.LATE, f"no reply within {limit:g} s")

    def _forget_overdue(self) -> None:
        """Forget the messages of earlier rounds: their replies are no longer wanted."""
        now = time.monotonic()
        overdue = [owed.id for owed in self._owed.values() if now >= owed.deadline]
        if overdue and self._never_blocks:
            list(self.grid.pull_messages(overdue))  # a reply that is never pulled is never freed
        for sent_id in overdue:
            del self._owed[sent_id]
