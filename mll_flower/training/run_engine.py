"""Build the training engine that a run config asks for, once per process, and keep it.

Also says which workers each simulated SuperNode hosts. The apps (`mll_flower.apps`) use both.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from mll_flower.algorithm.network import HubNetwork
from mll_flower.config import RunConfig
from mll_flower.tasks.own_code import forget_changed_files
from mll_flower.tasks.partitions import partition
from mll_flower.tasks.task import Task
from mll_flower.tasks.task_check import check_task
from mll_flower.training.device import resolve_device
from mll_flower.training.engine import Engine
from mll_flower.training.gradient_engine import resolve_engine
from mll_flower.training.own_work import ALONE

__all__ = [
    "ALONE",
    "check_own_work",
    "forget_engines",
    "hosted_workers",
    "network_of",
    "run_engine",
    "where_possible",
]

_TaskValues = tuple[str, str, str, str, str, str, str, int]


# Cached, because every message needs it, and to look at the hub of each of 10,000 workers takes a
# millisecond. (Runs that differ in other values share the engine that `_engine` keeps.)
@lru_cache(maxsize=4)
def run_engine(config: RunConfig, hub_of: tuple[int, ...] | None = None) -> Engine:
    """Return this process's engine for a run.

    Parameters
    ----------
    config : RunConfig
        Data set, partition, model, loss and optimiser; its other values do not matter here.
    hub_of : tuple of int, optional
        The hub of each worker; taken from the config's network by default.
    """
    task_values = (
        config.dataset,
        config.data_dir,
        config.model,
        config.loss,
        config.metric,
        config.augment,
        config.code_dir,
        config.classes,
    )
    return _engine(
        task_values,
        config.partition,
        _hub_of(config) if hub_of is None else hub_of,
        config.batch_size,
        config.seed,
        config.momentum,
        config.weight_decay,
        config.optimiser,
        *_engine_and_device(config, task_values),
    )


def where_possible(config: RunConfig) -> RunConfig:
    """Return a config for a process that need not train: on the run's device if it has one."""
    return config if config.device == "cpu" else replace(config, device="auto")


def check_own_work(config: RunConfig, hub_of: tuple[int, ...] | None = None) -> None:
    """Try everything of the user's own that a run config names, if anything; see `check_task`.

    Files of the user's that have changed since this process executed them are executed again.

    Parameters
    ----------
    config, hub_of
        As in `run_engine`.
    """
    if not config.own_work:
        return
    if forget_changed_files():
        forget_engines()
    engine = run_engine(where_possible(config), hub_of)
    check_task(engine.task, config.batch_size, engine.device)


def forget_engines() -> None:
    """Free the engines and data sets that this process keeps."""
    run_engine.cache_clear()
    _engine.cache_clear()
    _gradient_engine.cache_clear()
    _task.cache_clear()


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
    task_values: _TaskValues,
    partition_name: str,
    hub_of: tuple[int, ...],
    batch_size: int,
    seed: int,
    momentum: float,
    weight_decay: float,
    optimiser: str,
    engine: str,
    device: str,
) -> Engine:
    task = replace(_task(*task_values), seed=seed)
    shards = partition(partition_name, task.data.y_train, np.asarray(hub_of), seed, task.code_dir)
    return Engine(
        task,
        shards,
        batch_size=batch_size,
        seed=seed,
        momentum=momentum,
        weight_decay=weight_decay,
        optimiser=optimiser,
        engine=engine,
        device=device,
    )


def _engine_and_device(config: RunConfig, task_values: _TaskValues) -> tuple[str, str]:
    """Return what computes gradients, and where.

    Resolved first, so that "auto" and what it stands for share one engine.
    """
    device = resolve_device(config.device, config.engine, config.model)
    return _gradient_engine(config.engine if device == "cpu" else "autograd", task_values), device


@lru_cache(maxsize=4)
def _gradient_engine(choice: str, task_values: _TaskValues) -> str:
    return resolve_engine(choice, _task(*task_values))


@lru_cache(maxsize=2)
def _task(
    dataset: str,
    data_dir: str,
    model: str,
    loss: str,
    metric: str,
    augment: str,
    code_dir: str,
    classes: int,
) -> Task:
    # Without the seed, so that runs with different seeds share the data.
    return Task.load(
        dataset=dataset,
        data_dir=data_dir or None,
        model=model,
        loss=loss,
        metric=metric,
        augment=augment,
        code_dir=code_dir,
        classes=classes,
    )
