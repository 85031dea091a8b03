"""A worker of a deployment: trains by the clock, on its own data (rule 5)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from flwr.app import Context, Message, MetricRecord, RecordDict

from mll_flower.config import RunConfig
from mll_flower.slots import TimeBudget
from mll_flower.tasks.engine import Engine, get_engine, prepare_process

T = TypeVar("T")

UPLOAD = 3.0
"""Seconds before the hub's deadline at which a worker stops, so that its reply is in time."""

UPLOAD_SHARE = 0.1
"""The same as a share of the hub's deadline; the longer of the two counts."""


@dataclass
class DeadlineBudget(TimeBudget):
    """A time budget that ends, at the latest, at some moment.

    Parameters
    ----------
    until : float
        On ``clock``: no step that would end after it is begun.
    """

    until: float = math.inf

    def pace(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield a batch a slot, until the budget is spent or the end is near."""
        longest = 0.0
        for batch in super().pace(batches):
            begin = self.clock()
            if begin + longest > self.until:
                return
            yield batch
            longest = max(longest, self.clock() - begin)


def worker_engine(context: Context) -> tuple[Engine, int]:
    """Return the training engine and this worker's number in it.

    A worker with data of its own names them in its node config (``dataset``, ``data-dir``);
    otherwise it holds part ``partition-id`` of the network's data set.
    """
    config = RunConfig.from_run_config(context.run_config, check=False)
    node = context.node_config
    own = "dataset" in node
    number = 0 if own else int(node.get("partition-id", 0))
    hub_of = (0,) if own else tuple(config.network().hub_of.tolist())
    engine = get_engine(
        dataset=str(node.get("dataset", config.dataset)),
        data_dir=str(node.get("data-dir", config.data_dir)) or None,
        model=config.model,
        partition_spec="iid" if own else config.partition,
        hub_of=hub_of,
        batch_size=config.batch_size,
        seed=config.seed,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )
    return engine, number


def train_deployed(message: Message, context: Context) -> Message:
    """Train until the budget is spent; reply with the model, the steps and the measured rate."""
    order = message.content.config_records["config"]
    prepare_process()
    config = RunConfig.from_run_config(context.run_config, check=False)
    engine, place = worker_engine(context)
    flat = engine.layout.flatten(message.content.array_records["arrays"])
    round = int(order["round"])  # type: ignore[arg-type]
    slot = float(order["slot-seconds"])  # type: ignore[arg-type]
    budget = DeadlineBudget(config.tau, slot, until=time.monotonic() + _left(message))
    rate = config.learning_rate_at((round - 1) * config.tau)
    loss = engine.train_paced(flat, place, round, budget, config.tau, rate)
    number = int(context.node_config.get("partition-id", 0))
    metrics = MetricRecord(
        {
            "num-examples": engine.examples(place),
            "weight": _weight(config, number, engine.examples(place)),
            "worker": number,
            "steps": budget.taken,
            "rate": budget.rate,
            "loss": loss if math.isfinite(loss) else 0.0,
        }
    )
    content = RecordDict({"arrays": engine.layout.record(flat), "metrics": metrics})
    return Message(content, reply_to=message)


def _left(message: Message) -> float:
    """Seconds until training must stop, as far as the two machines' clocks agree.

    The message was made by the hub's clock. Where that gives no possible age, the clocks
    differ, and the budget alone says when to stop.
    """
    sent = message.metadata
    age = time.time() - sent.created_at
    upload = max(UPLOAD, UPLOAD_SHARE * sent.ttl)
    return sent.ttl - age - upload if 0 <= age < sent.ttl else math.inf


def _weight(config: RunConfig, number: int, examples: int) -> float:
    """w(i): 1, the number of examples, or the number that the run config gives it."""
    if config.weights == "examples":
        return float(examples)
    weights = config.network().w
    return float(weights[number]) if number < len(weights) else 1.0
