"""A Flower strategy that aggregates inside a hub: what it must be told, and what it returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from mll_flower.grids.wrapper import GridWrapper
from mll_flower.models.layout import Layout, Vector


def ask_through(
    strategy: Strategy,
    round: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    grid: Grid,
    nodes: list[int],
) -> list[Message]:
    """Return the messages with which a hub's strategy begins a round with its own workers.

    FedAvgM steps from what it returned last, which is not the hub's model any more once the
    hub has mixed: a model that a strategy remembers is forgotten, so that it takes the
    given one. (The other strategies of Flower's that remember a model do so anyway.)
    """
    for part in _wrapped(strategy):
        if hasattr(part, "current_arrays"):
            part.current_arrays = None
    return list(strategy.configure_train(round, arrays, config, _HubView(grid, nodes)))


def fit(strategy: Strategy | None, original: Strategy | None, nodes: int) -> None:
    """Lower a hub strategy's minimum numbers of nodes to what the hub has.

    Flower's strategies wait without end for their minimum, which is 2 unless it is set.
    """
    for part, model in zip(_wrapped(strategy), _wrapped(original), strict=True):
        for name in ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"):
            if hasattr(part, name):
                setattr(part, name, min(getattr(model, name), nodes))


def in_dtypes_of(layout: Layout, arrays: ArrayRecord) -> dict[str, Vector]:
    """Arrays of a Flower strategy, which turns integers into floats, in the layout's dtypes."""
    rounded: dict[str, Vector] = {}
    for name, dtype in zip(layout.names, layout.dtypes, strict=True):
        array = arrays[name].numpy()
        kind = np.dtype(dtype)
        rounded[name] = (array if np.issubdtype(kind, np.inexact) else np.rint(array)).astype(kind)
    return rounded


def _wrapped(strategy: Any) -> Iterator[Any]:
    """Walk through a strategy and those that it wraps (as differential privacy does)."""
    while strategy is not None:
        yield strategy
        strategy = getattr(strategy, "strategy", None)


class _HubView(GridWrapper):
    """The part of a grid that one hub sees: its own workers."""

    def __init__(self, grid: Grid, nodes: list[int]) -> None:
        super().__init__(grid)
        self.nodes = nodes

    def get_node_ids(self) -> Iterable[int]:
        return self.nodes

    def get_nodes(self) -> Iterable[NodeInfo]:
        own = set(self.nodes)
        return [info for info in self.grid.get_nodes() if info.node_id in own]
