"""The ClientApp of the rival: the training of ours, with the weight that FedAvg requires."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from mll_flower.apps.simulated_worker import train_hosted

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take tau steps of this node's worker."""
    reply = train_hosted(message, context)
    reply.content.metric_records["metrics"]["num-examples"] = 1
    return reply
