"""A grid without Flower's runtime: the nodes' ClientApp runs in the process of the server side.

For experiments and tests with many short runs. The server's loop, the strategy and the ClientApp
are those of ``flwr run``; only Ray and its start-up are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


class InProcessGrid(Grid):
    """A grid whose nodes run in this process, one after another.

    Parameters
    ----------
    app : ClientApp
        The nodes' app.
    nodes : int
        Number of nodes. The node config of each has ``partition-id`` and ``num-partitions``.
    run_config : Mapping
        The run config that the app sees.
    """

    def __init__(self, app: ClientApp, nodes: int, run_config: Mapping[str, object]) -> None:
        self.app = app
        # Every new message reads these, which Flower's runtime would set.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID
        config: UserConfig = dict(run_config)  # type: ignore[arg-type]
        self._contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={"partition-id": node - 1, "num-partitions": nodes},
                state=RecordDict(),
                run_config=config,
            )
            for node in range(1, nodes + 1)
        }
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        """Do nothing: this grid has only one run."""

    @property
    def run(self) -> Run:
        """The only run."""
        return Run.create_empty(run_id=1)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids: 1, 2, ..."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Sequence[str]:
        """Run the app on each message and keep its reply."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            context = self._contexts[message.metadata.dst_node_id]
            try:
                reply = self.app(message, context)
            except Exception as error:
                # As in Flower's runtime: a ClientApp that raises gives an error reply.
                reason = f"{type(error).__name__}: {error}"
                cause = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
                reply = Message(cause, reply_to=message)
            self._replies[message.metadata.message_id] = reply
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to these messages; each can be pulled once."""
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Run the app on each message and return the replies."""
        return self.pull_messages(self.push_messages(messages))
