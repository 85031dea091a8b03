"""The ClientApp: the same as for FedAdam without hubs."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedadamexample.task import CLASSES, classifier, load_data

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model in one pass over the local data."""
    lr = context.run_config["learning-rate"]
    model = classifier(msg.content["arrays"].to_numpy_ndarrays(), lr)
    images, labels = load_data(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    model.partial_fit(images, labels, classes=CLASSES)
    metrics = {"train_accuracy": model.score(images, labels), "num-examples": len(labels)}
    content = RecordDict(
        {
            "arrays": ArrayRecord([model.coef_, model.intercept_]),
            "metrics": MetricRecord(metrics),
        }
    )
    return Message(content, reply_to=msg)
