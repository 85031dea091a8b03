"""The ServerApp: the same lines for a simulation and for a hub."""

import json
import os
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from mll_flower import multi_level

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, then write what the app knows in a file of its own, after the strategy's block."""
    with multi_level(context, hubs=3, graph="path", q=1, fraction_evaluate=0.0) as strategy:
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord([np.zeros(3)]),
            num_rounds=context.run_config["num-server-rounds"],
            evaluate_fn=evaluate,
        )
    (x,) = result.arrays.to_numpy_ndarrays()
    known = {"x": x.tolist(), "title": context.run_config["title"]}
    Path(os.environ["FLWR_HOME"], "result.json").write_text(json.dumps(known))


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return something that tells the models apart."""
    (x,) = arrays.to_numpy_ndarrays()
    return MetricRecord({"accuracy": float(x[0]), "loss": float(x[1]), "third": float(x[2])})
