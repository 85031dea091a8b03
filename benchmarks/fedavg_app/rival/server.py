"""The ServerApp of the rival: Flower's FedAvg, and the time at which each of its rounds ended."""

from __future__ import annotations

import json
import time
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from mll_flower.config import RunConfig
from mll_flower.training.run_engine import run_engine

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run FedAvg for slots / tau rounds over all workers."""
    config = RunConfig.read(context.run_config)
    engine = run_engine(config)
    ended: list[float] = []

    def note_time(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        ended.append(time.monotonic())
        return None

    order = ConfigRecord(
        {"rounds": [1], "learning-rates": [config.learning_rate], "weights": [1.0]}
    )
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=engine.workers)
    strategy.start(
        grid,
        engine.layout.record(engine.initial()),
        num_rounds=config.slots // config.tau,
        train_config=order,
        evaluate_fn=note_time,
    )
    Path(config.output).write_text(json.dumps(ended))
