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

import time
from collections.abc import Iterable
from dataclasses import dataclass
from logging import WARNING

from flwr.app import Error, Message
from flwr.serverapp import Grid
from flwr.supercore import log

from mll_flower.grids._never_blocking import never_blocks
from mll_flower.grids._prompt_messages import deliver_promptly
from mll_flower.grids._watchers import Watchers
from mll_flower.grids.absences import Absence, absent_reply
from mll_flower.grids.wrapper import GridWrapper

# Seconds that the pull at the deadline may take; a reply that needs longer is late.
_LAST_PULL = 0.5
# Seconds by which messages outlive the deadline: a reply that arrived in time must not expire
# before it is pulled.
_EXPIRY_MARGIN = 1.0


@dataclass
class _Sent:
    """A message whose reply is awaited."""

    message: Message
    deadline: float

    @property
    def id(self) -> str:
        return self.message.metadata.message_id


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
        self.arrivals: dict[int, float] = {}
        """Seconds from the beginning of the last round to each node's reply."""
        self.failures: dict[int, float] = {}
        """The same for replies with an error."""
        self._began = 0.0
        self._owed: dict[str, _Sent] = {}
        self._watchers = None if never_blocks(grid) else Watchers(grid, poll)

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
        self.arrivals, self.failures = {}, {}
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
        if self._watchers is None:
            deliver_promptly(self.grid)
        for message in messages:
            # A message that its node has not begun by the deadline must expire: otherwise a
            # slow node would work through its backlog, and be late in every round.
            message.metadata.ttl = min(message.metadata.ttl, limit + _EXPIRY_MARGIN)
        try:
            accepted = set(self.grid.push_messages(messages))
        except Exception as error:
            # Whoever was frozen on the way to the SuperLink comes with messages that have expired,
            # which it refuses with an error. The next round has new ones.
            if any(time.time() < m.metadata.created_at + m.metadata.ttl for m in messages):
                raise
            log(WARNING, "No message was sent in its time: %s", error)
            accepted = set()
        sent = [_Sent(m, deadline) for m in messages if m.metadata.message_id in accepted]
        self._owed.update({item.id: item for item in sent})
        if self._watchers is not None:
            self._watchers.watch([item.id for item in sent], deadline)
        return sent

    def _collect(self, wanted: set[str], until: float) -> dict[str, Message]:
        """Return the wanted replies, as far as they arrive in time; drop all others."""
        replies: dict[str, Message] = {}
        last = False
        while True:
            now = time.monotonic()
            if now >= until and not last:
                last = True  # pull once more, for which a remote grid gets a moment
                if self._watchers is not None and wanted:
                    until = now + _LAST_PULL
                    self._watchers.pull_now()
            wait = until - now if wanted else 0.0
            for reply in self._take_arrived(wait):
                sent_id = reply.metadata.reply_to_message_id
                owed = self._owed.pop(sent_id, None)
                if sent_id in wanted and sent_id not in replies:
                    replies[sent_id] = reply
                    self._note_time(owed, reply)
            if len(replies) == len(wanted) or (last and time.monotonic() >= until):
                return replies
            if self._watchers is None:
                # Poll after a hundredth of the round's time so far: short rounds end without
                # delay, and in long ones the polls do not slow down the nodes. With many nodes
                # a poll takes long itself: pause for several times as long.
                polled = time.monotonic()
                pause = max(0.004, 0.01 * (polled - self._began), 4 * (polled - now))
                time.sleep(min(self.poll, max(0.0, wait), pause))

    def _note_time(self, owed: _Sent | None, reply: Message) -> None:
        if owed is not None:
            times = self.failures if reply.has_error() else self.arrivals
            times[owed.message.metadata.dst_node_id] = time.monotonic() - self._began

    def _take_arrived(self, wait: float) -> list[Message]:
        """Return the replies that have arrived; a remote grid may wait for the first of them."""
        if self._watchers is not None:
            return self._watchers.take(wait)
        return list(self.grid.pull_messages(list(self._owed))) if self._owed else []

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
        if self._watchers is not None and self._watchers.is_blocked(owed.id):
            return absent_reply(message, Absence.UPLOADING, f"still uploading after {limit:g} s")
        return absent_reply(message, Absence.LATE, f"no reply within {limit:g} s")

    def _forget_overdue(self) -> None:
        """Forget the messages of earlier rounds: their replies are no longer wanted."""
        now = time.monotonic()
        overdue = [owed.id for owed in self._owed.values() if now >= owed.deadline]
        if overdue and self._watchers is None:
            list(self.grid.pull_messages(overdue))  # a reply that is never pulled is never freed
        for sent_id in overdue:
            del self._owed[sent_id]
