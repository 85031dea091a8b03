"""The ServerApp: four hubs in a ring, whose workers run at different speeds."""

import json
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from mll_flower import MultiLevelStrategy

from numpyexample.task import accuracy, initial_model, load_test_data

app = ServerApp()


def speed(worker: int, round: int) -> dict[str, float]:
    """Return the speed: every second worker takes a step in only three of ten slots."""
    return {"seed": 0, "worker": worker, "rate": 0.3 if worker % 2 else 1.0}


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run multi-level learning."""
    strategy = MultiLevelStrategy(
        hubs=4,
        graph="ring",
        tau=context.run_config["tau"],
        q=2,
        worker_config=speed,
        fraction_evaluate=0.0,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(initial_model()),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
    if context.run_config["results"]:
        reached = {k: m["accuracy"] for k, m in result.evaluate_metrics_serverapp.items()}
        Path(context.run_config["results"]).write_text(json.dumps(reached))


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the averaged model on the test digits."""
    reached = accuracy(arrays.to_numpy_ndarrays(), *load_test_data())
    return MetricRecord({"accuracy": reached})
