"""``mll-flower`` commands for a network of real hubs.

``certs`` makes the certificates, ``hub`` and ``worker`` run one hub and one worker, ``up`` runs the
whole network on this machine, ``status`` asks the hubs how they are, and ``example-network`` writes
a network file to begin with.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from mll_flower.cli.announcer import Announcer, LogFormat
from mll_flower.cli.stopping import stop_on_signals
from mll_flower.cli.warm_options import Cold, MaxMemory, Preload, StartMethod

if TYPE_CHECKING:
    from mll_flower.deployment.network_entries import NetworkFile

console = Console(highlight=False)

NetworkPath = Annotated[Path, typer.Argument(metavar="NETWORK", help="The network's TOML file.")]
State = Annotated[
    Path | None,
    typer.Option(help="Folder for checkpoints, records and logs; default: state/ beside the file."),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Without TLS: models travel in the clear, anyone may pose as anyone."
    ),
]
AppFolder = Annotated[
    Path | None,
    typer.Option(
        "--app",
        metavar="PATH",
        help="Folder of a Flower app of your own, in place of the network file's `app`.",
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="Write Flower's output to a file in the state folder.")
]

LogFormats = Annotated[
    LogFormat,
    typer.Option(help="json: one JSON object per line, and Flower's output to a file."),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("example-network")(example_network)
    app.command("certs")(certs)
    app.command("hub")(hub)
    app.command("worker")(worker)
    app.command("up")(up)
    app.command("status")(status)


def example_network(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; default: the screen.")
    ] = None,
    hubs: Annotated[int, typer.Option(help="Number of hubs.")] = 3,
    workers: Annotated[int, typer.Option(help="Workers of each hub.")] = 2,
    base_port: Annotated[int, typer.Option(help="The first of two ports per hub.")] = 9400,
    app: Annotated[
        Path | None,
        typer.Option("--app", metavar="PATH", help="Folder of a Flower app of your own to run."),
    ] = None,
) -> None:
    """Write a network file to begin with: hubs on a path, all on this machine."""
    from mll_flower.deployment.app_config import app_keys
    from mll_flower.deployment.example_network import example_network as example

    if app is None:
        text = example(hubs, workers, base_port)
    else:
        # Relative to the file, so that both can be moved together.
        start = Path.cwd() if output is None else output.absolute().parent
        path = os.path.relpath(app.absolute(), start)
        text = example(hubs, workers, base_port, path, app_keys(app))
    if output is None:
        print(text, end="")
        return
    if output.exists():
        raise FileExistsError(f"{output} exists; nothing was written: choose another name")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text)
    _print(f"{output}: next, make the certificates: mll-flower certs {output}")


def certs(
    network: NetworkPath,
    days: Annotated[int, typer.Option(help="Days for which they are valid.")] = 365,
    extend: Annotated[
        bool, typer.Option("--extend", help="Keep existing files, make those that are missing.")
    ] = False,
    renew: Annotated[
        bool,
        typer.Option("--renew", help="New certificates for hubs and operator; the rest stays."),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace everything, the authority too.")
    ] = False,
) -> None:
    """Make the certificates and keys of a network: an authority, its hubs, its workers.

    NETWORK is the network's TOML file; `mll-flower example-network` writes one to begin with.
    """
    from mll_flower.deployment.certs import make_certs

    deployment = _load(network)
    written = make_certs(deployment, deployment.certs, days, overwrite, extend, renew)
    _print(f"{len(written)} files in {deployment.certs}")
    _print(f"Which machine needs which: {deployment.certs / 'README.txt'}")


def hub(
    network: NetworkPath,
    id: Annotated[str, typer.Option("--id", help="Id of the hub.")],
    app: AppFolder = None,
    state: State = None,
    insecure: Insecure = False,
    quiet: Quiet = False,
    log_format: LogFormats = "text",
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve metrics for Prometheus on this port of 127.0.0.1.")
    ] = None,
) -> None:
    """Run one hub: its SuperLink, and in it the hub's app, until the run is over.

    NETWORK is the network's TOML file; `mll-flower example-network` writes one to begin with.
    """
    from mll_flower.deployment.hub_state import MODEL_FILE, Phase
    from mll_flower.deployment.sites import HubSite, SiteFailed
    from mll_flower.processes.process_tree import Processes

    deployment = _load(network, app)
    told = _announcer(log_format, f"hub-{id}", insecure)
    quiet = quiet or log_format == "json"
    with stop_on_signals() as stop, Processes() as processes, ExitStack() as services:
        site = HubSite(deployment, id, processes, stop, state, insecure, quiet)
        if metrics_port is not None:
            from mll_flower.deployment.hub_metrics import serve_metrics

            port = services.enter_context(serve_metrics(site.folder, id, metrics_port))
            told.say(f"Metrics: http://127.0.0.1:{port}/metrics")
        try:
            site.start()
            told.say(f"Hub {id} is up; its state is in {site.folder}")
            while not stop.wait(0.5):
                for ended in processes.ended():
                    raise SiteFailed(
                        f"{ended}: the hub is down; started again, it goes on from "
                        f"its checkpoint in {site.folder}"
                    )
                if site.phase() is Phase.FINISHED:
                    told.say(f"Hub {id} has finished; its model is {site.folder / MODEL_FILE}")
                    return
        except SiteFailed as failure:
            told.fail(f"Error: {failure}")
            raise typer.Exit(1) from None
    told.say(f"Hub {id} was stopped; started again, it goes on from its checkpoint")


def worker(
    network: NetworkPath,
    hub: Annotated[str, typer.Option(help="Id of its hub.")],
    number: Annotated[int, typer.Option(help="Which of the hub's workers, from 0.")],
    node_config: Annotated[
        str, typer.Option(help='TOML pairs, such as dataset="npz:own.npz" for its own data.')
    ] = "",
    state: State = None,
    insecure: Insecure = False,
    quiet: Quiet = False,
    cold: Cold = False,
    start_method: StartMethod = "fork",
    preload: Preload = "numpy,torch",
    max_memory: MaxMemory = None,
    log_format: LogFormats = "text",
) -> None:
    """Run one worker: its SuperNode, started again whenever it ends, until it is stopped.

    NETWORK is the network's TOML file; `mll-flower example-network` writes one to begin with.
    """
    from mll_flower.deployment.run_config import own_node_config
    from mll_flower.deployment.sites import WorkerSite
    from mll_flower.processes.process_tree import Processes
    from mll_flower.processes.warm.settings import WarmSettings, module_names

    deployment = _load(network)
    told = _announcer(log_format, f"worker-{hub}-{number}", insecure)
    quiet = quiet or log_format == "json"
    own = own_node_config(deployment, node_config)
    settings = WarmSettings(cold, start_method, module_names(preload), max_memory)
    with stop_on_signals() as stop, Processes() as processes:
        place = (deployment, hub, number, processes, told.say, state)
        site = WorkerSite(*place, insecure, quiet, own, settings)
        site.start()
        while not stop.wait(0.5):
            for ended in processes.ended():
                site.plan_restart(ended)
            site.restart_if_due()
    told.say(f"Worker {number} of hub {hub} was stopped")


def up(
    network: NetworkPath,
    app: AppFolder = None,
    state: State = None,
    insecure: Insecure = False,
    cold: Cold = False,
    log_format: LogFormats = "text",
) -> None:
    """Run a whole network on this machine, each hub and worker in real processes.

    NETWORK is the network's TOML file; `mll-flower example-network` writes one to begin with.
    """
    from mll_flower.deployment.whole_network import run_whole_network
    from mll_flower.processes.process_tree import Processes
    from mll_flower.processes.warm.settings import WarmSettings

    deployment = _load(network, app)
    told = _announcer(log_format, deployment.name, insecure)
    with stop_on_signals() as stop, Processes() as processes:
        good = run_whole_network(
            *(deployment, processes, stop, told.say, told.fail, state, insecure),
            WarmSettings(cold),
        )
    if not good:
        raise typer.Exit(1)


def status(
    network: NetworkPath,
    watch: Annotated[bool, typer.Option("--watch", help="Ask again every two seconds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
    insecure: Insecure = False,
) -> None:
    """Ask every hub for its status: phase, round, mixing, workers, loss, neighbours.

    NETWORK is the network's TOML file; `mll-flower example-network` writes one to begin with.
    """
    from rich.live import Live

    from mll_flower.deployment.status import ask_hubs, status_table, status_warnings

    deployment = _load(network)
    answers = ask_hubs(deployment, insecure)
    if as_json:
        print(json.dumps(answers, indent=2))
        return
    for warning in status_warnings(deployment, answers, insecure):
        _print(f"Warning: {warning}", "yellow")
    if not watch:
        console.print(status_table(deployment, answers))
        return
    table = status_table(deployment, answers)
    with stop_on_signals() as stop, Live(table, console=console) as live:
        while not stop.wait(2.0):
            live.update(status_table(deployment, ask_hubs(deployment, insecure)))


def _load(path: Path, app: Path | None = None) -> NetworkFile:
    """Read a network file; an app given on the command line takes the place of the file's."""
    from mll_flower.deployment.network_file import load_network

    network = load_network(path.absolute())
    return network if app is None else replace(network, app=app.absolute())


def _print(text: str, style: str = "") -> None:
    # No markup: paths and messages may hold square brackets.
    console.print(Text(text, style), soft_wrap=True)


def _announcer(format: LogFormat, site: str, insecure: bool) -> Announcer:
    told = Announcer(console, format, site)
    if insecure:
        told.warn("--insecure: no TLS and no authentication; only on your own machine.")
    return told
