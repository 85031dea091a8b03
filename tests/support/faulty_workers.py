"""Faults in the replies of simulated workers: the real ClientApp, spoiled in one way at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message

from client_app.app import app as client_app
from mll_flower.grids.in_process import InProcessGrid


class Fault(StrEnum):
    """What is wrong with a worker's reply."""

    RAISES = "raises"
    NO_MODEL = "no model"
    OTHER_KEYS = "other keys"
    WRONG_SHAPE = "wrong shape"
    WRONG_DTYPE = "wrong dtype"
    NAN = "NaN"
    INFINITY = "infinity"
    SILENT = "silent"
    LATE = "late"


CAUSES = {
    Fault.RAISES: "raised",
    Fault.NO_MODEL: "no-model",
    Fault.OTHER_KEYS: "wrong-shape",
    Fault.WRONG_SHAPE: "wrong-shape",
    Fault.WRONG_DTYPE: "wrong-shape",
    Fault.NAN: "not-finite",
    Fault.INFINITY: "not-finite",
    Fault.SILENT: "late",
    Fault.LATE: "late",
}
"""The cause that a run reports for each fault."""

When = Callable[[int, int], bool]
"""``when(node, round)``: whether the fault occurs. A node is a worker, or with pools a hub."""


class FaultyApp:
    """The ClientApp, with a fault in the replies of some nodes to some rounds."""

    def __init__(self, fault: Fault, when: When) -> None:
        self.fault, self.when = fault, when

    def is_hit(self, message: Message, context: Context) -> bool:
        """Whether the fault occurs in the reply to this message."""
        if message.metadata.message_type != "train":
            return False
        node = int(context.node_config["partition-id"])
        rounds: Any = message.content.config_records["config"]["rounds"]
        return any(self.when(node, int(r)) for r in rounds)

    def __call__(self, message: Message, context: Context) -> Message:
        reply = client_app(message, context)
        if not self.is_hit(message, context):
            return reply
        content = reply.content
        if self.fault is Fault.RAISES:
            raise ZeroDivisionError("the worker's battery is flat")
        if self.fault is Fault.NO_MODEL:
            del content["arrays"]
            return reply
        arrays = {k: v.numpy() for k, v in content.array_records["arrays"].items()}
        weight = arrays["linear.weight"]
        if self.fault is Fault.OTHER_KEYS:
            arrays["linear.other"] = arrays.pop("linear.weight")
        elif self.fault is Fault.WRONG_SHAPE:
            arrays["linear.weight"] = weight.T
        elif self.fault is Fault.WRONG_DTYPE:
            arrays["linear.weight"] = weight.astype(np.int64)
        elif self.fault is Fault.NAN:
            weight[0, 3] = np.nan
        elif self.fault is Fault.INFINITY:
            weight[0, 63] = -np.inf
        content["arrays"] = ArrayRecord({k: Array(v) for k, v in arrays.items()})
        return reply


class LossyGrid(InProcessGrid):
    """Loses the replies that the fault hits, or with LATE delivers them one message later."""

    def push_messages(self, messages: Iterable[Message]) -> Sequence[str]:
        sent = list(messages)
        self._replies.update(getattr(self, "held", {}))
        self.held: dict[str, Message] = {}
        ids = super().push_messages(sent)
        app = self.app
        assert isinstance(app, FaultyApp)
        for message, sent_id in zip(sent, ids, strict=True):
            if app.is_hit(message, self._contexts[message.metadata.dst_node_id]):
                reply = self._replies.pop(sent_id)
                if app.fault is Fault.LATE:
                    self.held[sent_id] = reply
        return ids


def faulty(fault: Fault, when: When) -> dict[str, Any]:
    """Return arguments for `tests.support.simulated.play` that make a run faulty."""
    lost = fault in (Fault.SILENT, Fault.LATE)
    grid = {"grid": LossyGrid, "reply_timeout": 0.5} if lost else {}
    return {"app": FaultyApp(fault, when), **grid}
