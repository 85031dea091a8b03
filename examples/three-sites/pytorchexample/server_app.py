"""The ServerApp: runs the strategy and writes the accuracy after each round."""

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from mll_flower import multi_level

from pytorchexample.task import Net, load_centralized_dataset, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run federated learning."""
    torch.manual_seed(0)
    arrays = ArrayRecord(Net().state_dict())

    with multi_level(context, hubs=3, graph="path", q=2, fraction_evaluate=0.0) as strategy:
        result = strategy.start(
            grid=grid,
            initial_arrays=arrays,
            train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
            num_rounds=context.run_config["num-server-rounds"],
            evaluate_fn=global_evaluate,
        )

    if context.run_config["results"]:
        accuracy = {k: m["accuracy"] for k, m in result.evaluate_metrics_serverapp.items()}
        Path(context.run_config["results"]).write_text(json.dumps(accuracy))


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the global model on central data."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(model, load_centralized_dataset())
    return MetricRecord({"accuracy": accuracy, "loss": loss})
