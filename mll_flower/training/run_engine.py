"""Build the training engine that a run config asks for, once per process, and keep it.

Also says which workers each simulated SuperNode hosts. The apps (`mll_flower.apps`) use both.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from mll_flower.algorithm.network import HubNetwork
from mll_flower.config import RunConfig
from mll_flower.tasks.partitions import partition
from mll_flower.tasks.task import Task
from mll_flower.training.engine import Engine
from mll_flower.training.gradient_engine import resolve_engine

ALONE = (0,)
"""``hub_of`` of an engine with one worker, which holds all rows: for a deployed worker that has
its own data, or where models are only evaluated."""


def run_engine(config: RunConfig, hub_of: tuple[int, ...] | None = None) -> Engine:
    """Return this process's engine for a run.

    Parameters
    ----------
    config : RunConfig
        Data set, partition, model and SGD; its other values do not matter here.
    hub_of : tuple of int, optional
        The hub of each worker; taken from the config's network by default.
    """
    return _engine(
        config.dataset,
        config.data_dir,
        config.model,
        config.partition,
        _hub_of(config) if hub_of is None else hub_of,
        config.batch_size,
        config.seed,
        config.momentum,
        config.weight_decay,
        _gradient_engine(config.engine, config.dataset, config.data_dir, config.model),
    )


def hosted_workers(config: RunConfig, node: int) -> list[int]:
    """Return the workers that a SuperNode hosts in a simulation.

    It hosts one worker (``pool = "worker"``) or all workers of a hub (``pool = "hub"``). The
    latter is an optimisation with the same bits: the node averages its workers itself, so that
    one message may cover several rounds. In a deployment a SuperNode is always one worker.

    Parameters
    ----------
    config : RunConfig
        The pool and the network.
    node : int
        The SuperNode's partition id: the number of its worker or of its hub.
    """
    if config.pool == "worker":
        return [node]
    return [int(i) for i in network_of(config).members(node)]


# Cached, because every message needs it: a message with a small model takes a millisecond or two,
# and building the network takes a third of one.
@lru_cache(maxsize=4)
def network_of(config: RunConfig) -> HubNetwork:
    """Return the network of a config; with ``weights = examples`` its weights are equal."""
    return config.network()


@lru_cache(maxsize=4)
def _hub_of(config: RunConfig) -> tuple[int, ...]:
    return tuple(network_of(config).hub_of.tolist())


@lru_cache(maxsize=4)
def _engine(
    dataset: str,
    data_dir: str,
    model: str,
    partition_name: str,
    hub_of: tuple[int, ...],
    batch_size: int,
    seed: int,
    momentum: float,
    weight_decay: float,
    engine: str,
) -> Engine:
    task = replace(_task(dataset, data_dir, model), seed=seed)
    shards = partition(partition_name, task.data.y_train, np.asarray(hub_of), seed)
    return Engine(
        task,
        shards,
        batch_size=batch_size,
        seed=seed,
        momentum=momentum,
        weight_decay=weight_decay,
        engine=engine,
    )


@lru_cache(maxsize=4)
def _gradient_engine(choice: str, dataset: str, data_dir: str, model: str) -> str:
    # Resolved first, so that "auto" and what it stands for share one engine.
    return resolve_engine(choice, _task(dataset, data_dir, model))


@lru_cache(maxsize=2)
def _task(dataset: str, data_dir: str, model: str) -> Task:
    # Without the seed, so that runs with different seeds share the data.
    return Task.load(dataset=dataset, data_dir=data_dir or None, model=model)
