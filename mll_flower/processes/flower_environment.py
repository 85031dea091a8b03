"""What Flower's commands need before they start.

The folder of this project's app, their environment variables, and a free port.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path


def app_directory() -> Path:
    """Find the Flower app: the project's folder, with pyproject.toml and the app's packages."""
    for folder in (Path(__file__).resolve().parents[2], Path.cwd()):
        if (folder / "pyproject.toml").is_file() and (folder / "server_app").is_dir():
            return folder
    raise ValueError(
        "the Flower app cannot be found: run in a checkout of mll-flower, or install it from one "
        "with pip install -e ."
    )


def free_port() -> int:
    """Return a port of the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def flower_environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's commands: a home of their own, quiet, no installations."""
    tools = str(Path(sys.executable).parent)  # also when the environment is not activated
    # Absolute, because Flower's processes work in other folders.
    path = [
        str(Path(p).absolute()) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p
    ]
    return {
        **os.environ,
        **({"PYTHONPATH": os.pathsep.join(path)} if path else {}),
        "PATH": tools + os.pathsep + os.environ.get("PATH", ""),
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Ray keeps 4 KB for each of the last 100,000 messages, for a dashboard nobody opens.
        "RAY_task_events_report_interval_ms": "0",
        "PYTHONUNBUFFERED": "1",
    }
