"""Run one hub of a deployment with this project's own models and data.

This is what the project's ServerApp does when the run config says ``role = "hub"``: it uses
`mll_flower.multi_level` as any other Flower project may.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid

from mll_flower.apps.multi_level import multi_level
from mll_flower.config import RunConfig
from mll_flower.strategies.reports import RoundReport
from mll_flower.training.run_engine import ALONE, run_engine, where_possible


def run_hub(grid: Grid, context: Context) -> None:
    """Run the hub that a run config names, until its rounds are over.

    Parameters
    ----------
    grid : Grid
        The grid of the hub's workers.
    context : Context
        That of the ServerApp, with the run config.
    """
    config = RunConfig.from_run_config(context.run_config, check=False)

    def more_of_row(report: RoundReport) -> Any:
        name = engine.task.metric_name
        metric = {} if name == "accuracy" else {"metric": name}
        return {
            "learning_rate": config.learning_rate_at((report.number - 1) * config.tau),
            **metric,
        }

    with multi_level(
        context,
        hubs=config.hubs,
        q=config.q,
        tau=config.tau,
        absent=config.absent_rule,
        node_timeout=config.node_timeout,
        weighted_by_key="weight",
        on_round=more_of_row,
        step_size=lambda round: config.learning_rate_at((round - 1) * config.tau),
        fraction_evaluate=0.0,
    ) as strategy:
        # It makes the initial model and evaluates; it trains no worker.
        engine = run_engine(where_possible(replace(config, partition="iid")), ALONE)

        def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord | None:
            """Evaluate the hub's model, at those mixings at which that is due."""
            if round == 0 or round % config.q or round % config.evaluate_rounds():
                return None
            model = engine.layout.flatten(arrays)
            limit = config.evaluate_limit or None
            loss, metric = engine.evaluate(model, "test", limit=limit)
            return MetricRecord({"loss": loss, engine.task.metric_name: metric})

        strategy.start(
            grid,
            engine.layout.record(engine.initial()),
            num_rounds=config.slots // config.tau,
            evaluate_fn=evaluate,
        )
