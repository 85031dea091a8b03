"""Flower's own in-memory grid and link state, with nodes that run a real ClientApp in threads.

Also small apps and models, and a function that runs a strategy on such a grid.
"""

from __future__ import annotations

import secrets
import threading
import traceback
from collections.abc import Callable, Mapping
from uuid import uuid4

import numpy as np
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.linkstate import InMemoryLinkState, LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

from mll_flower.grids.wrapper import GridWrapper
from mll_flower.strategies.base import HubRoundsStrategy
from tests.support.arrays import record

Arrays = Mapping[str, np.ndarray]
Train = Callable[[int, dict[str, np.ndarray], ConfigRecord], tuple[Arrays, Mapping]]


class Nodes:
    """The nodes of one run; a context manager, which ends their threads.

    Parameters
    ----------
    app : ClientApp
        The nodes' app.
    count : int
        Number of nodes. ``self.ids[k]`` is the node with partition-id k; ids ascend.
    node_config : callable, optional
        Further node config of a partition.
    """

    def __init__(
        self, app: ClientApp, count: int, node_config: Callable[[int], dict] | None = None
    ) -> None:
        self.app = app
        factory = LinkStateFactory(
            FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
        )
        state = factory.state()
        assert isinstance(state, InMemoryLinkState)
        self.state = state
        run = Run.create_empty(run_id=1)
        run.primary_task_id, run.federation_id = 1, NOOP_FEDERATION_ID
        state.run_ids[1] = RunRecord(run=run)
        state.task_store[1] = Task(task_id=1, run_id=1)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID
        self.grid: Grid = InMemoryGrid(factory, pull_interval=0.005)
        self.grid.set_run(run)
        self.node_config = node_config or (lambda partition: {})
        self.asked: list[tuple[int, str]] = []
        self._dead: set[int] = set()
        self._end = threading.Event()
        self._threads: list[threading.Thread] = []
        self.ids = sorted(self._register() for _ in range(count))
        for partition in range(count):
            self._serve(partition)

    def _register(self) -> int:
        key = secrets.token_bytes(32)
        node = self.state.create_node("test", "test", key, heartbeat_interval=1e6)
        assert self.state.acknowledge_node_heartbeat(node, heartbeat_interval=1e6)
        return node

    def _serve(self, partition: int) -> None:
        thread = threading.Thread(target=self._answer, args=(partition,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def add(self) -> int:
        """Connect one more node; its partition-id is the next one."""
        self.ids.append(self._register())
        self._serve(len(self.ids) - 1)
        return self.ids[-1]

    def leave(self, partition: int) -> None:
        """Disconnect a node."""
        assert self.state.deactivate_node(self.ids[partition])

    def stop(self, partition: int) -> None:
        """Kill a node: it disconnects and answers no more messages."""
        self._dead.add(self.ids[partition])
        self.leave(partition)

    def come_back(self, partition: int) -> None:
        """Connect a node again, under the same id."""
        assert self.state.activate_node(self.ids[partition], heartbeat_interval=1e6)

    def _answer(self, partition: int) -> None:
        node = self.ids[partition]
        config = {"partition-id": partition, **self.node_config(partition)}
        context = Context(1, node, config, RecordDict(), {})
        while not self._end.wait(0.003) and node not in self._dead:
            for asked in self.state.get_message_ins(node, limit=1):
                # A copy, as over a network: changes that a node makes stay with the node.
                message = message_from_proto(message_to_proto(asked))
                self.asked.append((node, message.metadata.message_type))
                try:
                    reply = self.app(message, context)
                except Exception as error:
                    text = f"{error!r}\n{traceback.format_exc()}"
                    cause = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, text)
                    reply = Message(cause, reply_to=message)
                reply.metadata.__dict__["_message_id"] = str(uuid4())
                self.state.store_message_res(message_from_proto(message_to_proto(reply)))

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(timeout=10)
            assert not thread.is_alive()


class OrderedGrid(GridWrapper):
    """Returns replies in the order of node ids, because Flower samples nodes in random order."""

    def send_and_receive(self, messages, *, timeout=None):
        replies = self.grid.send_and_receive(list(messages), timeout=timeout)
        return sorted(replies, key=lambda reply: reply.metadata.src_node_id)


def unpack(arrays: ArrayRecord) -> dict[str, np.ndarray]:
    """Return the arrays of a Flower record."""
    return {name: array.numpy() for name, array in arrays.items()}


def client_app(train: Train, evaluate: Train | None = None, mods: list | None = None) -> ClientApp:
    """Make an unmodified Flower app: one ArrayRecord and one MetricRecord in its reply.

    ``train(partition, arrays, config)`` returns the new arrays and metrics.
    """
    app = ClientApp(mods=mods)

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        arrays, metrics = train(
            int(context.node_config["partition-id"]),
            unpack(message.content["arrays"]),
            message.content["config"],
        )
        content = {"arrays": record(arrays), "metrics": MetricRecord(dict(metrics))}
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def _evaluate(message: Message, context: Context) -> Message:
        assert evaluate is not None
        _, metrics = evaluate(
            int(context.node_config["partition-id"]),
            unpack(message.content["arrays"]),
            message.content["config"],
        )
        content = {"metrics": MetricRecord(dict(metrics))}
        return Message(RecordDict(content), reply_to=message)

    return app


def drift(partition: int, arrays: Arrays, config: ConfigRecord) -> tuple[Arrays, Mapping]:
    """Train without data: shrink each array and add numbers seeded by partition and round."""
    rng = np.random.default_rng([partition, int(config["server-round"])])
    moved = {}
    for name, array in arrays.items():
        noise = rng.normal(size=array.shape)
        if np.issubdtype(array.dtype, np.inexact):
            moved[name] = (array * 0.9 + noise).astype(array.dtype)
        else:
            moved[name] = array + rng.integers(0, 50, size=array.shape).astype(array.dtype)
    loss = float(rng.uniform(0.5, 2.0))
    metrics = {"num-examples": int(rng.integers(5, 200)), "train_loss": loss, "list": [loss, 1.5]}
    return moved, metrics


EXAMPLES = [40, 7, 90, 13, 55, 28, 61, 33]


def fixed_weights(partition: int, arrays: Arrays, config: ConfigRecord) -> tuple[Arrays, Mapping]:
    """`drift` with the same number of examples in every round."""
    moved, _ = drift(partition, arrays, config)
    return moved, {"num-examples": EXAMPLES[partition], "loss": float(partition)}


def evaluate(partition: int, arrays: Arrays, config: ConfigRecord) -> tuple[Arrays, Mapping]:
    """Return metrics that identify the model evaluated (its total) and the node."""
    total = float(sum(array.sum() for array in arrays.values()))
    return {}, {"num-examples": EXAMPLES[partition], "total": total, "who": float(partition)}


def model(dtype: str) -> dict[str, np.ndarray]:
    """Return a model of three arrays, one of them a scalar."""
    rng = np.random.default_rng(0)
    return {
        "w": rng.normal(scale=3, size=(5, 4)).astype(dtype),
        "b": rng.normal(scale=3, size=7).astype(dtype),
        "scalar": np.array(rng.normal(), dtype=dtype),
    }


def run(strategy: Strategy, nodes: Nodes, start: Arrays, rounds: int = 2, **more):
    """Run ``strategy.start`` on Flower's grid; return its Result."""
    # This project's strategies sum in the order of nodes; Flower's in the order of replies.
    grid = nodes.grid if isinstance(strategy, HubRoundsStrategy) else OrderedGrid(nodes.grid)
    return strategy.start(grid, record(start), num_rounds=rounds, **more)
