"""One hub of a deployment: the part of the ServerApp that ``role = "hub"`` names."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid

from mll_flower.apps.hub_run import run_hub


def run(grid: Grid, context: Context) -> None:
    """Run the hub that the run config names, until its rounds are over."""
    run_hub(grid, context.run_config)
