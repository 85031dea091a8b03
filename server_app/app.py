"""ServerApp: runs the whole network (``role = "network"``) or one hub (``role = "hub"``)."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the role that the run config names."""
    role = context.run_config.get("role", "network")
    if role == "network":
        from mll_flower.apps.network_run import run_network
        from mll_flower.config import RunConfig

        RunConfig.check_given(context.run_config, with_defaults=True)
        run_network(grid, context.run_config)
    elif role == "hub":
        from hub_app.app import run

        run(grid, context)
    else:
        raise ValueError(f"role={role!r} is not known: use 'network' or 'hub'")
