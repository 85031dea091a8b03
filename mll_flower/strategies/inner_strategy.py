"""A strategy of Flower's that aggregates inside a hub, such as FedAdam: the inner strategy.

Flower's strategies expect to have all nodes to themselves and to keep their own model from
round to round. A hub has only some of the nodes, and mixing changes its model. The functions
here bridge the difference; `mll_flower.strategies.base` and ``hub`` use them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedXgbBagging, FedXgbCyclic, Strategy

from mll_flower.grids.wrapper import GridWrapper
from mll_flower.models.layout import Layout, Vector

InnerStrategy = Strategy | Callable[[int], Strategy]
"""A strategy, of which each hub gets a copy, or a function that makes the one of a hub."""

_MINIMUMS = ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes")
NodeMinimums = list[dict[str, int]]
"""The minimum numbers of nodes of a strategy and of those that it wraps."""


def make_inner_strategies(given: InnerStrategy | None, hubs: int) -> list[Strategy | None]:
    """Return one strategy per hub, each with a state of its own.

    Parameters
    ----------
    given : Strategy, callable or None
        A strategy to copy, or a function that returns the strategy of a hub, given its number.
    hubs : int
        Number of hubs.
    """
    if given is None:
        return [None] * hubs
    if isinstance(given, type) or not callable(given) or isinstance(given, Strategy):
        _check_strategy(given, "inner_strategy")
        return [_copy(given) for _ in range(hubs)]
    made: list[Strategy | None] = []
    for hub in range(hubs):
        strategy = given(hub)
        _check_strategy(strategy, f"what inner_strategy returns for hub {hub}")
        if any(strategy is earlier for earlier in made):
            raise ValueError(
                f"inner_strategy returns the same {type(strategy).__name__} for two hubs, which "
                "would share its state: make a new one in each call"
            )
        made.append(strategy)
    return made


def _copy(strategy: Any) -> Strategy:
    try:
        copied: Strategy = copy.deepcopy(strategy)
    except Exception as error:
        name = type(strategy).__name__
        raise TypeError(
            f"inner_strategy={name}(...) cannot be copied for each hub ({error}): give a function "
            f"that makes one, inner_strategy=lambda hub: {name}(...)"
        ) from error
    return copied


def _check_strategy(value: Any, what: str) -> None:
    """Raise TypeError unless a value is a strategy that can aggregate inside a hub."""
    if isinstance(value, type):
        raise TypeError(
            f"{what} is the class {value.__name__}: give an instance, {value.__name__}(...), or a "
            f"function that makes one per hub, lambda hub: {value.__name__}(...)"
        )
    name = type(value).__name__
    if isinstance(value, (FedXgbBagging, FedXgbCyclic)):
        raise TypeError(f"{what} is {name}: trees are not arrays of one shape and cannot be mixed")
    if isinstance(value, Strategy):
        return
    if any(kind.__module__.startswith("flwr.server.strategy") for kind in type(value).__mro__):
        raise TypeError(
            f"{what} is flwr.server.strategy.{name}, of Flower's legacy API, which is not "
            "supported: take the one in flwr.serverapp.strategy"
        )
    raise TypeError(
        f"{what} is {value!r}: give a strategy of flwr.serverapp.strategy, or a function that "
        "makes one per hub"
    )


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


def node_minimums(strategy: Strategy | None) -> NodeMinimums:
    """Return the minimum numbers of nodes of an inner strategy, as the user set them."""
    return [
        {name: getattr(layer, name) for name in _MINIMUMS if hasattr(layer, name)}
        for layer in _layers(strategy)
    ]


def lower_node_minimums(strategy: Strategy | None, given: NodeMinimums, nodes: int) -> None:
    """Lower an inner strategy's minimum numbers of nodes to the number that its hub has.

    Flower's strategies wait for ever for their minimum, which is 2 unless it is set.

    Parameters
    ----------
    strategy : Strategy or None
        The hub's strategy, which is changed.
    given : NodeMinimums
        The minimums as the user set them, which hold again in a hub that grows.
    nodes : int
        Number of nodes that the hub has.
    """
    for layer, minimums in zip(_layers(strategy), given, strict=True):
        for name, minimum in minimums.items():
            setattr(layer, name, min(minimum, nodes))


def weight_key(strategy: Strategy) -> str | None:
    """Return the metric by which an inner strategy weighs replies; None if it names none."""
    keys = [getattr(layer, "weighted_by_key", None) for layer in _layers(strategy)]
    return next((key for key in keys if isinstance(key, str)), None)


def restore_dtypes(layout: Layout, arrays: ArrayRecord) -> dict[str, Vector]:
    """Return an aggregate in the dtypes of the model; Flower's strategies return floats."""
    restored: dict[str, Vector] = {}
    for name, dtype in zip(layout.names, map(np.dtype, layout.dtypes), strict=True):
        array = arrays[name].numpy()
        if not np.issubdtype(dtype, np.inexact) and array.dtype != dtype:
            array = np.rint(array)
        with np.errstate(over="ignore"):  # an infinity is found by those who use the aggregate
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
