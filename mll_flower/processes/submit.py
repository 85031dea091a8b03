"""Register a hub's workers with its SuperLink and start its run: Flower's commands in one process.

Each ``flwr`` command spends seconds on imports; a hub with dozens of workers would need minutes.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Sequence

import click
import typer


def main(arguments: Sequence[str]) -> int:
    """Run ``flwr supernode register`` for each key, then ``flwr run``.

    Parameters
    ----------
    arguments : Sequence[str]
        Name of the SuperLink connection, the app's folder, the run config, public keys.
    """
    connection, app, config, *keys = arguments
    for key in keys:
        code, text = _flwr("supernode", "register", key, connection)
        if code and "already in use" not in text:
            print(f"the worker with the key {key} cannot be registered:\n{text}")
            return 1
    code, text = _flwr("run", app, connection, "--run-config", config)
    print(text)
    return code


def _flwr(*words: str) -> tuple[int, str]:
    from flwr.cli.app import app

    command = typer.main.get_command(app)
    said = io.StringIO()
    code = 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = command.main(args=list(words), standalone_mode=False) or 0
        except click.ClickException as error:
            error.show(said)
            code = error.exit_code
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    return code, said.getvalue()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
