"""A worker of a deployment: it trains in real time, at most one step per slot, on its own data.

This is what the project's ClientApp does when the run config says ``role = "hub"``: the run is then
that of one hub, and its nodes are the hub's workers.
"""

from __future__ import annotations

import math
import time

from flwr.app import Context, Message, MetricRecord, RecordDict

from mll_flower.config import RunConfig
from mll_flower.training.budgets import DeadlineBudget
from mll_flower.training.engine import Engine
from mll_flower.training.process import prepare_process
from mll_flower.training.run_engine import ALONE, run_engine
from mll_flower.training.worker_correction import worker_correction

UPLOAD = 3.0
"""Seconds before the hub's deadline at which a worker stops, so that its reply is in time."""

UPLOAD_SHARE = 0.1
"""The same, as a share of the time that the hub gives a round; the longer of the two counts."""


def worker_engine(context: Context) -> tuple[Engine, int]:
    """Return the training engine, and the number of this worker in it.

    A worker with data of its own names them in its node config (``dataset``, ``data-dir``);
    otherwise it holds part ``partition-id`` of the network's data set. ``code-dir`` says where
    the functions of the run config are on the worker's machine.
    """
    config = RunConfig.from_run_config(context.run_config, check=False)
    node = context.node_config
    config = config.at_node(node)
    if "dataset" not in node:
        return run_engine(config), int(node.get("partition-id", 0))
    return run_engine(config, ALONE), 0


def train_deployed(message: Message, context: Context) -> Message:
    """Train until the budget is spent; reply with the model, the steps and the measured rate."""
    order = message.content.config_records["config"]
    prepare_process()
    config = RunConfig.from_run_config(context.run_config, check=False)
    engine, place = worker_engine(context)
    flat = engine.layout.flatten(message.content.array_records["arrays"])
    round = int(order["round"])  # type: ignore[arg-type]
    slot = float(order["slot-seconds"])  # type: ignore[arg-type]
    budget = DeadlineBudget(config.tau, slot, until=time.monotonic() + seconds_left(message))
    rate = config.learning_rate_at((round - 1) * config.tau)
    correction = worker_correction(message)
    loss = engine.train_paced(flat, place, round, budget, config.tau, rate, correction.flat())
    number = int(context.node_config.get("partition-id", 0))
    metrics = MetricRecord(
        {
            "num-examples": engine.examples(place),
            "weight": _weight(config, number, engine.examples(place)),
            "worker": number,
            "steps": budget.taken,
            "rate": budget.rate,
            # Without steps there is no loss, but Flower asks all replies for the same metrics.
            "loss": loss if budget.taken else 0.0,
            **correction.metrics,
        }
    )
    content = RecordDict({"arrays": engine.layout.record(flat), "metrics": metrics})
    return Message(content, reply_to=message)


def seconds_left(message: Message) -> float:
    """Return the seconds until training must stop, as far as the two machines' clocks agree.

    The hub's clock has dated the message. If its age by the worker's clock is impossible, the
    clocks differ, and the budget of slots alone says when to stop.
    """
    sent = message.metadata
    age = time.time() - sent.created_at
    upload = max(UPLOAD, UPLOAD_SHARE * sent.ttl)
    return sent.ttl - age - upload if 0 <= age < sent.ttl else math.inf


def _weight(config: RunConfig, number: int, examples: int) -> float:
    """Return w(i): 1, the number of examples, or the number that the run config gives it."""
    if config.weights == "examples":
        return float(examples)
    weights = config.network().w
    return float(weights[number]) if number < len(weights) else 1.0
