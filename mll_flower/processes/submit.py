"""Register a hub's workers with its SuperLink and start its run, all in one process.

Run as ``python -m mll_flower.processes.submit``. Each ``flwr`` command spends seconds on imports;
with one command per worker, a hub with dozens of workers would need minutes.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import typer


def main(arguments: Sequence[str]) -> int:
    """Do what ``flwr supernode register`` does for each key, then what ``flwr run`` does.

    Workers that were registered before and whose keys are not given any more are unregistered.

    Parameters
    ----------
    arguments : Sequence[str]
        Name of the SuperLink connection, the app's folder, the run config, public keys.
    """
    connection, app, config, *keys = arguments
    try:
        barred = _revoke_others(connection, keys) if keys else []
    except click.ClickException as error:
        print(error.format_message())
        return 1
    if barred:
        print(
            f"the key {barred[0]} was registered with this SuperLink once and then removed: it "
            "stays barred. Remove the key pair, make a new one with `mll-flower certs --extend`, "
            "and give it to the hub and the worker"
        )
        return 1
    for key in keys:
        code, output = _run_flwr("supernode", "register", key, connection)
        # A hub that is started again has registered its workers before.
        if code and "already in use" not in output:
            print(f"the worker with the key {key} cannot be registered:\n{output}")
            return 1
    code, output = _run_flwr("run", app, connection, "--run-config", config)
    print(output)
    return code


def _revoke_others(connection: str, keys: Sequence[str]) -> list[str]:
    """Unregister the workers with other keys than these; return those that are barred already."""
    from flwr.cli.flower_config import read_superlink_connection
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.cli.utils import init_http_client_from_connection
    from flwr.proto.control_pb2 import ListNodesRequest, UnregisterNodeRequest
    from flwr.supercore.constant import NodeStatus

    given = {try_load_public_key(Path(key)): key for key in keys}
    barred: list[str] = []
    client = init_http_client_from_connection(read_superlink_connection(connection))
    try:
        for node in client.ListNodes(ListNodesRequest()).nodes_info:
            if node.status == NodeStatus.UNREGISTERED:
                barred += [given[node.public_key]] if node.public_key in given else []
            elif node.public_key not in given:
                client.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
    finally:
        client.close()
    return barred


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
