"""Run one hub of a deployment inside the ServerApp.

`server_app.app` calls it when the run config says ``role = "hub"``; the work is done in
`mll_flower.apps.hub_run`.
"""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid

from mll_flower.apps.hub_run import run_hub


def run(grid: Grid, context: Context) -> None:
    """Run the hub that the run config names, until its rounds are over."""
    run_hub(grid, context)
