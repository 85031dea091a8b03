"""The ServerApp: FedAdam in each of two hubs, which mix after every round."""

import json
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam
from mll_flower import MultiLevelStrategy

from fedadamexample.task import classifier, initial_model, load_test_data

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run multi-level learning."""
    adam = FedAdam(eta=context.run_config["server-learning-rate"])
    strategy = MultiLevelStrategy(hubs=2, inner_strategy=adam, fraction_evaluate=0.0)
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
    model = classifier(arrays.to_numpy_ndarrays())
    return MetricRecord({"accuracy": model.score(*load_test_data())})
