"""One hub of a deployment: what the ServerApp runs when the run config says ``role = "hub"``."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid

from mll_flower.apps.hub_run import run_hub


def run(grid: Grid, context: Context) -> None:
    """Run the hub that the run config names, until its rounds are over."""
    run_hub(grid, context.run_config)
