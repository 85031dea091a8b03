"""Who was asked in a round, for grids that return no reply for a node that does not answer.

A `DeadlineGrid` returns a reply for every message. A wrapper around a strategy of this project, or
a subclass with a ``start`` of its own, uses the grid of Flower, which returns fewer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from mll_flower.grids.absences import Absence, absence_of
from mll_flower.grids.deadline import DeadlineGrid
from mll_flower.strategies.reports import Absent

# Seconds by which messages outlive the deadline. Flower's grid looks for replies every three
# seconds, and a reply that has come in time must not expire before that.
_EXPIRY_MARGIN = 5.0


class AskedNodes:
    """The nodes that a strategy wants to ask in a round.

    Parameters
    ----------
    messages : Sequence[Message]
        The messages to them. Their metadata is kept, and not the models in them.
    """

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self._metadata = [message.metadata for message in messages]

    def without_reply(self, replies: Iterable[Message]) -> dict[int, Absent]:
        """Return those that were asked and have sent nothing, by node id, and why."""
        # A grid numbers the messages that it sends. A subclass may have sent only some of them.
        sent = [metadata for metadata in self._metadata if metadata.message_id] or self._metadata
        node_of = {metadata.message_id: metadata.dst_node_id for metadata in sent}
        silent = {
            metadata.dst_node_id: Absent(metadata.dst_node_id, Absence.LATE, "no reply")
            for metadata in sent
        }
        for reply in replies:
            silent.pop(reply.metadata.src_node_id, None)
            # For a message that is lost the SuperLink answers, in its own name.
            node = node_of.get(reply.metadata.reply_to_message_id)
            if node in silent and reply.has_error():
                silent[node] = Absent(node, *absence_of(reply))
        return silent


def expire_late(messages: list[Message], deadline: float | None, grid: Grid) -> list[Message]:
    """Let messages expire after the deadline if the grid does not end rounds there itself.

    The SuperLink then answers for those that are late, and Flower's own loop does not wait on.
    """
    if deadline is not None and not isinstance(grid, DeadlineGrid):
        for message in messages:
            message.metadata.ttl = min(message.metadata.ttl, deadline + _EXPIRY_MARGIN)
    return messages
