"""What Flower's commands need before they start.

The folder of the built-in app, their environment variables, and a free port.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

from mll_flower.extras import require
from mll_flower.processes.flower_app import write_app

APP_FOLDER = "built-in-app"
"""Name of the built-in app's folder in a Flower home."""


def app_directory(home: Path | None = None) -> Path:
    """Write the built-in Flower app, as it is installed now; return its folder.

    The folder that someone works in has no say in this: it may hold an app of its own.

    Parameters
    ----------
    home : Path, optional
        The Flower home in which the app's folder is made; what an earlier call has written there
        is replaced. Without it, a temporary folder that goes when this process ends.
    """
    require("the built-in app", "torch")
    if home is None:
        temporary = tempfile.TemporaryDirectory(prefix="mll-flower-app-")
        atexit.register(temporary.cleanup)
        home = Path(temporary.name)
    folder = home / APP_FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    write_app(folder)
    return folder


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
