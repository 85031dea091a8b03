"""Register a hub's workers with its SuperLink and start its run, all in one process.

Run as ``python -m mll_flower.processes.submit``. Each ``flwr`` command spends seconds on imports;
with one command per worker, a hub with dozens of workers would need minutes.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Sequence

import click
import typer


def main(arguments: Sequence[str]) -> int:
    """Do what ``flwr supernode register`` does for each key, then what ``flwr run`` does.

    Parameters
    ----------
    arguments : Sequence[str]
        Name of the SuperLink connection, the app's folder, the run config, public keys.
    """
    connection, app, config, *keys = arguments
    for key in keys:
        code, output = _run_flwr("supernode", "register", key, connection)
        # A hub that is started again has registered its workers before.
        if code and "already in use" not in output:
            print(f"the worker with the key {key} cannot be registered:\n{output}")
            return 1
    code, output = _run_flwr("run", app, connection, "--run-config", config)
    print(output)
    return code


def _run_flwr(*arguments: str) -> tuple[int, str]:
    """Run a ``flwr`` command in this process; return its exit code and its output."""
    from flwr.cli.app import app

    command = typer.main.get_command(app)
    output = io.StringIO()
    code = 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            code = command.main(args=list(arguments), standalone_mode=False) or 0
        except click.ClickException as error:
            error.show(output)
            code = error.exit_code
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    return code, output.getvalue()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
