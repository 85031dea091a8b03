"""The ClientApp of this project: the workers of a simulation, or one worker of a deployment.

`client_app.app` makes it for Flower; in-process runs make it for a grid of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from mll_flower.grids.node_identity import answer_identity


def worker_app() -> ClientApp:
    """Make the ClientApp; the run config's ``role`` decides which kind of worker it is.

    Each kind is imported when it is first needed, so that a node loads only its own.
    """
    app = ClientApp()

    def identity(context: Context) -> Mapping[str, Any]:
        if _is_deployed(context):
            return {}
        from mll_flower.apps.simulated_worker import describe_hosted

        return describe_hosted(context)

    answer_identity(app, identity)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if _is_deployed(context):
            from mll_flower.apps.deployed_worker import train_deployed

            return train_deployed(message, context)
        from mll_flower.apps.simulated_worker import train_hosted

        return train_hosted(message, context)

    return app


def _is_deployed(context: Context) -> bool:
    return context.run_config.get("role") == "hub"
