"""The ClientApp: takes steps for as long as its budget lasts."""

import mll_flower
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from numpyexample.task import batches, load_data, step

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    config = msg.content["config"]
    model = msg.content["arrays"].to_numpy_ndarrays()
    partition = context.node_config["partition-id"]
    images, labels = load_data(partition, context.node_config["num-partitions"])
    loader = batches(images, labels, context.run_config["batch-size"], seed=config["round"])

    losses = []
    budget = mll_flower.budget(config)
    for x, y in budget.pace(loader):
        losses.append(step(model, x, y, context.run_config["learning-rate"]))

    metrics = {
        "loss": sum(losses) / max(1, len(losses)),
        "steps": budget.taken,
        "num-examples": len(labels),
    }
    content = RecordDict({"arrays": ArrayRecord(model), "metrics": MetricRecord(metrics)})
    return Message(content, reply_to=msg)
