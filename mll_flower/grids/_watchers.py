"""Pulling replies from a grid whose pulls may block, in a few threads.

A pull from a remote grid blocks for as long as a node uploads its reply, which may be for ever if
the node dies meanwhile. One thread per message would keep such nodes apart, but a thousand threads
that ask in turn are slow, and they keep the SuperLink busy. So there are at most `MOST` threads.
Up to that number of messages each has its own; beyond it a thread pulls a group of messages at
once. If one of a group blocks, the others are pulled by threads of their own from then on. Only
replies that came in the same moment as the blocking one wait with it.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Sequence
from logging import WARNING

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore import log

from mll_flower.grids.absences import Absence, absence_of

MOST = 32
"""Threads for the messages of one round, those beside a blocked group not counted."""
BLOCKED = 2.0
"""A pull that has lasted longer than this many seconds waits for a node that is uploading."""
# Seconds after the deadline for which a thread goes on, so that a late reply is pulled and freed.
_AFTERWARDS = 5.0


class Watchers:
    """The threads that pull replies from one grid.

    Parameters
    ----------
    grid : Grid
        The grid.
    poll : float
        Seconds between two pulls of a thread; longer if there are many threads.
    """

    def __init__(self, grid: Grid, poll: float) -> None:
        self.grid = grid
        self.poll = poll
        self.inbox: queue.Queue[Message] = queue.Queue()
        self._poll_now = threading.Condition()
        self._groups: list[_Group] = []

    def watch(self, ids: Sequence[str], deadline: float) -> None:
        """Begin to pull the replies to these messages, until a while after the deadline."""
        size = max(1, math.ceil(len(ids) / MOST))
        self._groups = [g for g in self._groups if not g.over]
        for low in range(0, len(ids), size):
            self._start(_Group(list(ids[low : low + size]), deadline))

    def take(self, wait: float) -> list[Message]:
        """Return the replies that have arrived; if none has, wait at most ``wait`` seconds."""
        self._separate_blocked()
        replies: list[Message] = []
        try:
            while True:
                block = wait > 0 and not replies
                replies.append(self.inbox.get(block, timeout=min(wait, 1.0) if block else None))
        except queue.Empty:
            return replies

    def pull_now(self) -> None:
        """Make all threads pull at once."""
        with self._poll_now:
            self._poll_now.notify_all()

    def is_blocked(self, sent_id: str) -> bool:
        """Return whether the pull of a reply waits for a node that is uploading."""
        return any(sent_id in group.ids and group.blocked for group in self._groups)

    def _start(self, group: _Group) -> None:
        self._groups.append(group)
        threading.Thread(target=self._pull, args=(group,), daemon=True).start()

    def _separate_blocked(self) -> None:
        """Give each message of a blocked group a thread of its own."""
        for group in self._groups:
            if group.blocked and len(group.ids) > 1 and not group.separated:
                group.separated = True
                for sent_id in list(group.ids):
                    self._start(_Group([sent_id], group.deadline, group))

    def _pull(self, group: _Group) -> None:
        """Pull until all replies of a group are here, or it is too late for them."""
        # The more threads, the less often each pulls, so that the SuperLink is not kept busy.
        poll = max(self.poll, 0.01 * len(self._groups))
        warned = False
        while group.ids and time.monotonic() <= group.deadline + _AFTERWARDS:
            group.pulling_since = time.monotonic()
            try:
                replies = list(self.grid.pull_messages(list(group.ids)))
            except Exception as error:
                # The SuperLink may be unreachable for a moment; the deadline bounds the wait.
                replies = []
                if not warned:
                    log(WARNING, "%d replies cannot be pulled: %s", len(group.ids), error)
                    warned = True
            group.pulling_since = None
            for reply in replies:
                if not group.may_be_elsewhere(reply):
                    group.ids.discard(reply.metadata.reply_to_message_id)
                    self.inbox.put(reply)
            if group.separated:
                break
            if group.ids:
                with self._poll_now:
                    self._poll_now.wait(poll)
        group.over = True


class _Group:
    """Messages whose replies one thread pulls."""

    def __init__(self, ids: list[str], deadline: float, came_from: _Group | None = None) -> None:
        self.ids = set(ids)
        self.deadline = deadline
        self.came_from = came_from
        self.pulling_since: float | None = None
        self.separated = False
        self.over = False

    @property
    def blocked(self) -> bool:
        since = self.pulling_since
        return since is not None and time.monotonic() - since > BLOCKED

    def may_be_elsewhere(self, reply: Message) -> bool:
        """Whether a reply that the SuperLink no longer has may be in the blocked pull."""
        blocked = self.came_from is not None and self.came_from.blocked
        return blocked and reply.has_error() and absence_of(reply)[0] is Absence.EXPIRED
