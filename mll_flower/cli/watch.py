"""``mll-flower watch``: a live page that follows a run, a sweep or a deployment."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from mll_flower.cli.stopping import stop_on_signals

console = Console(highlight=False)


def watch(
    what: Annotated[
        Path,
        typer.Argument(
            metavar="WHAT",
            help="Output folder of a run or of a sweep, or the TOML file of a deployment.",
            show_default=False,
        ),
    ],
    port: Annotated[
        int, typer.Option(help="Port of the page; 0: one that is free.", min=0, max=65535)
    ] = 8765,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine can reach 0.0.0.0.")
    ] = "127.0.0.1",
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for a run whose folder does not exist yet.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Ask the hubs of a deployment without TLS.")
    ] = False,
) -> None:
    """Show a live page of a run, a sweep or a deployment, until Ctrl-C.

    WHAT is the output folder of a run or of a sweep, or a network's TOML file: its hubs are then
    asked for their status, with the operator's certificate.
    """
    from mll_flower.watching.opening import open_source
    from mll_flower.watching.server import LOOPBACK, serve

    source = open_source(what, wait, insecure)
    with (
        stop_on_signals() as stop,
        serve(source, host, port, what.absolute().stem) as server,
    ):
        console.print(Text(f"Watching {what}: {server.url} (Ctrl-C ends it)"), soft_wrap=True)
        if host not in (LOOPBACK, "localhost", "::1"):
            warning = f"Whoever can reach {host}:{server.server_address[1]} can read this page."
            console.print(Text(warning, "yellow"), soft_wrap=True)
        if open_browser:
            webbrowser.open(server.url)
        stop.wait()
