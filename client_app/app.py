"""ClientApp: a worker, or in a simulation a whole sub-network of them (rule 10)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from client_app.deployed import train_deployed
from mll_flower.config import RunConfig
from mll_flower.identity import answer_identity
from mll_flower.network import HubNetwork
from mll_flower.slots import step_counts
from mll_flower.tasks.engine import Engine, get_engine, prepare_process

app = ClientApp()


def engine_of(config: RunConfig) -> Engine:
    """Return this process's training engine for a run."""
    return get_engine(
        dataset=config.dataset,
        data_dir=config.data_dir or None,
        model=config.model,
        partition_spec=config.partition,
        hub_of=_hub_of(config),
        batch_size=config.batch_size,
        seed=config.seed,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )


def hosted(config: RunConfig, node: int) -> list[int]:
    """Return the workers that a node hosts."""
    if config.pool == "worker":
        return [node]
    return [int(i) for i in _network(config).members(node)]


# A message of a small model takes a millisecond or two; to build the network takes a third of one.
@lru_cache(maxsize=4)
def _network(config: RunConfig) -> HubNetwork:
    return config.network()


@lru_cache(maxsize=4)
def _hub_of(config: RunConfig) -> tuple[int, ...]:
    return tuple(_network(config).hub_of.tolist())


def identity(context: Context) -> Mapping[str, Any]:
    """Tell which workers this node hosts and how many examples each of them holds."""
    if context.run_config.get("role") == "hub":
        return {}
    config = RunConfig.from_run_config(context.run_config, check=False)
    node = int(context.node_config["partition-id"])
    places = config.hubs if config.pool == "hub" else _network(config).workers
    if node >= places:
        return {"workers": [], "examples": []}
    workers = hosted(config, node)
    engine = engine_of(config)
    return {"workers": workers, "examples": [engine.examples(i) for i in workers]}


answer_identity(app, identity)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take the steps that the message asks for, and reply with the model."""
    if context.run_config.get("role") == "hub":
        return train_deployed(message, context)
    prepare_process()
    config = RunConfig.from_run_config(context.run_config, check=False)
    engine = engine_of(config)
    order = message.content.config_records["config"]
    workers = hosted(config, int(context.node_config["partition-id"]))
    rounds = [int(r) for r in order["rounds"]]  # type: ignore[union-attr]
    rates = [1.0 if config.wait_for_all else float(_network(config).p[i]) for i in workers]
    arrays = message.content.array_records["arrays"]
    result = engine.run_hub(
        engine.layout.flatten(arrays),
        workers,
        [float(w) for w in order["weights"]],  # type: ignore[union-attr]
        rounds,
        step_counts(config.seed, workers, rounds, config.tau, rates),
        [float(r) for r in order["learning-rates"]],  # type: ignore[union-attr]
        config.absent_rule,
    )
    if config.pool == "worker" and result.absent:
        # A lone worker that failed has nothing to send: the hub counts it absent.
        raise RuntimeError(result.absent[0][2])
    return Message(
        RecordDict(
            {
                "arrays": engine.layout.record(result.flat),
                "metrics": _metrics(workers, result.steps, result.losses),
                "absent": ConfigRecord(
                    {
                        "workers": [worker for worker, _, _ in result.absent],
                        "rounds": [round for _, round, _ in result.absent],
                        "reasons": [reason for _, _, reason in result.absent],
                    }
                ),
            }
        ),
        reply_to=message,
    )


def _metrics(workers: list[int], steps: Any, losses: Any) -> MetricRecord:
    """Steps and mean training loss of each worker over the message's rounds."""
    taken = steps.sum(axis=0)
    total = np.where(steps > 0, np.nan_to_num(losses) * steps, 0.0).sum(axis=0)
    means = [float(t / n) if n else math.nan for t, n in zip(total, taken, strict=True)]
    return MetricRecord({"workers": workers, "steps": taken.tolist(), "losses": means})
