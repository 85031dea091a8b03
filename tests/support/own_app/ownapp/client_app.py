"""The ClientApp: goes some of the way to a target of its own."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train without data; the reply is what any Flower app sends, and who sent it."""
    (x,) = msg.content["arrays"].to_numpy_ndarrays()
    part = context.node_config["partition-id"]
    target = np.array([1.0, 10.0, 100.0]) * (part + 1)
    moved = x + context.run_config["step-size"] * (target - x)
    metrics = MetricRecord(
        {
            "num-examples": part + 1,
            "train_loss": float(abs(target - x).max()),
            "worker": part,
            "tau": msg.content["config"].get("tau", 0),
        }
    )
    return Message(RecordDict({"arrays": ArrayRecord([moved]), "metrics": metrics}), reply_to=msg)
