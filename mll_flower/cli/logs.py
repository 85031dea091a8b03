"""``mll-flower logs``: what the hubs and workers on this machine write."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from mll_flower.deployment.site_logs import LogLine

console = Console(highlight=False)

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
_PAUSE = 0.5  # seconds between two looks for new lines


def logs(
    network: Annotated[Path, typer.Argument(metavar="NETWORK", help="The network's TOML file.")],
    site: Annotated[
        str | None, typer.Option(help="Only this site: hub-lyon, worker-lyon-0, or a part of it.")
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Last lines per site.")] = 10,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    state: Annotated[
        Path | None, typer.Option(help="The state folder; default: state/ beside the file.")
    ] = None,
) -> None:
    """Show the logs of the hubs and workers that run on this machine.

    NETWORK is the network's TOML file; `mll-flower example-network` writes one to begin with.
    """
    from mll_flower.deployment.hub_state import state_directory
    from mll_flower.deployment.network_file import load_network
    from mll_flower.deployment.site_logs import site_logs

    deployment = load_network(network.absolute())
    chosen = site_logs(state_directory(deployment, state), site)
    colours = {log.site: _COLOURS[i % len(_COLOURS)] for i, log in enumerate(chosen)}
    for log in chosen:
        for line in log.last(lines):
            _show(line, colours[line.site], as_json)
    while follow:
        try:
            time.sleep(_PAUSE)
        except KeyboardInterrupt:
            return
        for log in chosen:
            for line in log.new():
                _show(line, colours[line.site], as_json)


def _show(line: LogLine, colour: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"site": line.site, "text": Text.from_ansi(line.text).plain}), flush=True)
        return
    # From ANSI codes, not from markup: a line may hold square brackets.
    text = Text.assemble((f"{line.site} ", colour), Text.from_ansi(line.text))
    console.print(text, soft_wrap=True)
