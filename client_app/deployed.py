"""A worker of a deployment: trains by the clock, on its own data (rule 5)."""

from __future__ import annotations

import math

from flwr.app import Context, Message, MetricRecord, RecordDict

from mll_flower.config import RunConfig
from mll_flower.slots import TimeBudget, budget
from mll_flower.tasks.engine import Engine, get_engine, prepare_process


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
    """Train until the budget is spent; reply with the model and the measured rate."""
    order = message.content.config_records["config"]
    time_budget = budget(order)
    prepare_process()
    engine, worker = worker_engine(context)
    config = RunConfig.from_run_config(context.run_config, check=False)
    flat = engine.layout.flatten(message.content.array_records["arrays"])
    round = int(order["round"])  # type: ignore[arg-type]
    slot = (round - 1) * config.tau
    rate = config.learning_rate_at(slot)
    loss = engine.train_paced(flat, worker, round, time_budget, config.tau, rate)
    metrics: dict[str, int | float] = {
        "num-examples": engine.examples(worker),
        "worker": worker,
        "steps": time_budget.taken,
        "loss": loss if math.isfinite(loss) else 0.0,
    }
    if isinstance(time_budget, TimeBudget):
        metrics["rate"] = time_budget.rate
    content = RecordDict(
        {"arrays": engine.layout.record(flat), "metrics": MetricRecord({**metrics})}
    )
    return Message(content, reply_to=message)
