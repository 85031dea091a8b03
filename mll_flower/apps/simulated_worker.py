"""What a SuperNode does in a simulation: train the workers that it hosts.

It hosts one worker (``pool = "worker"``), or all workers of a hub (``pool = "hub"``). In the
second case one message covers all rounds up to the next event that the server side must see (a
mixing, an evaluation, the end): the node averages the hub's workers itself and replies with
one model. That is an optimisation and changes no number: the bits are those of one worker per node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from mll_flower.apps.simulated_corrections import correction_of, reply_of
from mll_flower.config import RunConfig
from mll_flower.training.device import has_gpu
from mll_flower.training.process import prepare_process
from mll_flower.training.run_engine import (
    hosted_workers,
    network_of,
    run_engine,
    where_possible,
)


def describe_hosted(context: Context) -> Mapping[str, Any]:
    """Return which workers this node hosts, their examples, and whether it has a GPU."""
    config = RunConfig.from_run_config(context.run_config, check=False)
    node = int(context.node_config["partition-id"])
    if node >= config.nodes:
        return {"workers": [], "examples": []}
    workers = hosted_workers(config, node)
    engine = run_engine(where_possible(config))
    examples = [engine.examples(i) for i in workers]
    return {"workers": workers, "examples": examples, "gpu": has_gpu()}


def train_hosted(message: Message, context: Context) -> Message:
    """Take the steps of all rounds that the message covers; reply with the model after them."""
    prepare_process()
    config = RunConfig.from_run_config(context.run_config, check=False)
    request = message.content.config_records["config"]
    # The run's own choices: on this machine "auto" might mean something else.
    name = str(request.get("engine", config.engine))
    device = str(request.get("device", config.device))
    engine = run_engine(replace(config, engine=name, device=device))
    workers = hosted_workers(config, int(context.node_config["partition-id"]))
    rounds = [int(r) for r in request["rounds"]]  # type: ignore[union-attr]
    # In a round that waits for all, every worker takes its tau steps: the rate is 1.
    rates = [1.0 if config.wait_for_all else float(network_of(config).p[i]) for i in workers]
    arrays = message.content.array_records["arrays"]
    correction = correction_of(config, message, engine.layout, workers)
    result = engine.run_hub(
        engine.layout.flatten(arrays),
        workers,
        [float(w) for w in request["weights"]],  # type: ignore[union-attr]
        rounds,
        config.step_counts(workers, rounds, rates),
        [float(r) for r in request["learning-rates"]],  # type: ignore[union-attr]
        config.absent_rule,
        correction,
    )
    if config.pool == "worker" and result.absent:
        # A single worker that failed has no model to send: an error reply makes it absent.
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
                **reply_of(correction),
            }
        ),
        reply_to=message,
    )


def _metrics(workers: list[int], steps: Any, losses: Any) -> MetricRecord:
    """Return the steps and the mean training loss of each worker, over all rounds together."""
    taken = steps.sum(axis=0)
    total = np.where(steps > 0, losses * steps, 0.0).sum(axis=0)
    means = [float(t / n) if n else math.nan for t, n in zip(total, taken, strict=True)]
    return MetricRecord({"workers": workers, "steps": taken.tolist(), "losses": means})
