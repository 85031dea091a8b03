"""A strategy of Flower's that aggregates inside a hub, such as FedAdam: the inner strategy.

Flower's strategies expect to have all nodes to themselves and to keep their own model from
round to round. A hub has only some of the nodes, and mixing changes its model. The functions
here bridge the difference; `mll_flower.strategies.base` and ``hub`` use them.
"""

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


def inner_train_messages(
    strategy: Strategy,
    round: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    grid: Grid,
    nodes: list[int],
) -> list[Message]:
    """Return the messages with which an inner strategy starts a round with its hub's workers.

    A model that the strategy remembers is deleted first, so that the round starts from
    ``arrays``: FedAvgM would step from the model that it returned last, which is no longer the
    hub's once the hub has mixed. (Flower's other strategies that remember a model replace it
    with the given one anyway.)
    """
    for layer in _layers(strategy):
        if hasattr(layer, "current_arrays"):
            layer.current_arrays = None
    return list(strategy.configure_train(round, arrays, config, _HubGrid(grid, nodes)))


def lower_node_minimums(strategy: Strategy | None, given: Strategy | None, nodes: int) -> None:
    """Lower an inner strategy's minimum numbers of nodes to the number that its hub has.

    Flower's strategies wait for ever for their minimum, which is 2 unless it is set.

    Parameters
    ----------
    strategy : Strategy or None
        The hub's copy, which is changed.
    given : Strategy or None
        The strategy that the user gave, whose minimums hold again in a hub that grows.
    nodes : int
        Number of nodes that the hub has.
    """
    for own, original in zip(_layers(strategy), _layers(given), strict=True):
        for name in ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"):
            if hasattr(own, name):
                setattr(own, name, min(getattr(original, name), nodes))


def restore_dtypes(layout: Layout, arrays: ArrayRecord) -> dict[str, Vector]:
    """Return an aggregate in the dtypes of the model; Flower's strategies return floats."""
    restored: dict[str, Vector] = {}
    for name, dtype in zip(layout.names, map(np.dtype, layout.dtypes), strict=True):
        array = arrays[name].numpy()
        if not np.issubdtype(dtype, np.inexact):
            array = np.rint(array)
        restored[name] = array.astype(dtype)
    return restored


def _layers(strategy: Any) -> Iterator[Any]:
    """Yield a strategy, and those that it wraps, as the ones for differential privacy do."""
    while strategy is not None:
        yield strategy
        strategy = getattr(strategy, "strategy", None)


class _HubGrid(GridWrapper):
    """The part of a grid that one hub sees: its own workers."""

    def __init__(self, grid: Grid, nodes: list[int]) -> None:
        super().__init__(grid)
        self.nodes = nodes

    def get_node_ids(self) -> Iterable[int]:
        return self.nodes

    def get_nodes(self) -> Iterable[NodeInfo]:
        own = set(self.nodes)
        return [info for info in self.grid.get_nodes() if info.node_id in own]
