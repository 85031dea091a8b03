"""Commands for a network of real hubs: certs, hub, worker, up, status, example-network."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from mll_flower.deployment.network_entries import NetworkFile
    from mll_flower.deployment.sites import HubSite, WorkerSite

console = Console(highlight=False)

NetworkPath = Annotated[Path, typer.Argument(metavar="NETWORK", help="The network's TOML file.")]
State = Annotated[
    Path | None, typer.Option(help="Where state is kept; default: state/ beside the file.")
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Without TLS: models travel in the clear, anyone may pose as anyone."
    ),
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
    base_port: Annotated[int, typer.Option(help="First of two ports a hub.")] = 9400,
) -> None:
    """Write a network file to begin with: hubs on a path, all on this machine."""
    from mll_flower.deployment.example_network import example_network as example

    text = example(hubs, workers, base_port)
    if output is None:
        print(text, end="")
        return
    if output.exists():
        raise FileExistsError(f"{output} exists; nothing was written: choose another name")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text)
    console.print(f"{output}: next, make the certificates: mll-flower certs {output}")


def certs(
    network: NetworkPath,
    days: Annotated[int, typer.Option(help="How long they are valid.")] = 365,
    extend: Annotated[
        bool, typer.Option("--extend", help="Keep what is there, make what is missing.")
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
    written = make_certs(deployment, deployment.certs, days, overwrite, extend)
    console.print(f"{len(written)} files in {deployment.certs}", soft_wrap=True)
    console.print(f"Who needs which: {deployment.certs / 'README.txt'}", soft_wrap=True)


def hub(
    network: NetworkPath,
    id: Annotated[str, typer.Option("--id", help="Which hub.")],
    state: State = None,
    insecure: Insecure = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Flower's output to a file in the state.")
    ] = False,
) -> None:
    """Run one hub: its SuperLink, and in it the hub's app, until the run is over.

    NETWORK is the network's TOML file; `mll-flower example-network` writes one to begin with.
    """
    from mll_flower.deployment.sites import HubSite, SiteFailed
    from mll_flower.processes.process_tree import Processes

    deployment = _load(network)
    _warn(insecure)
    with _signals() as stop, Processes() as processes:
        site = HubSite(deployment, id, processes, stop, _say, state, insecure, quiet)
        try:
            site.start()
            _say(f"Hub {id} is up; its state is in {site.folder}")
            while not stop.wait(0.5):
                for ended in processes.ended():
                    raise SiteFailed(
                        f"{ended}: the hub is down; started again, it goes on from "
                        f"its checkpoint in {site.folder}"
                    )
                if site.look() == "finished":
                    _say(f"Hub {id} has finished; its model is {site.folder / 'model.safetensors'}")
                    return
        except SiteFailed as failure:
            _fail(failure)
    _say(f"Hub {id} was stopped; started again, it goes on from its checkpoint")


def worker(
    network: NetworkPath,
    hub: Annotated[str, typer.Option(help="Its hub.")],
    number: Annotated[int, typer.Option(help="Which of the hub's workers, from 0.")],
    node_config: Annotated[
        str, typer.Option(help='TOML pairs, such as dataset="npz:own.npz" for its own data.')
    ] = "",
    state: State = None,
    insecure: Insecure = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Flower's output to a file in the state.")
    ] = False,
) -> None:
    """Run one worker: its SuperNode, started again whenever it ends, until it is stopped.

    NETWORK is the network's TOML file; `mll-flower example-network` writes one to begin with.
    """
    from mll_flower.deployment.run_config import own_node_config
    from mll_flower.deployment.sites import WorkerSite
    from mll_flower.processes.process_tree import Processes

    deployment = _load(network)
    _warn(insecure)
    own = own_node_config(deployment, node_config)
    with _signals() as stop, Processes() as processes:
        site = WorkerSite(deployment, hub, number, processes, _say, state, insecure, quiet, own)
        site.start()
        while not stop.wait(0.5):
            for ended in processes.ended():
                site.handle(ended)
            site.look()
    _say(f"Worker {number} of hub {hub} was stopped")


def up(network: NetworkPath, state: State = None, insecure: Insecure = False) -> None:
    """Run a whole network on this machine, each hub and worker in real processes.

    NETWORK is the network's TOML file; `mll-flower example-network` writes one to begin with.
    """
    from mll_flower.deployment.run_config import own_node_config
    from mll_flower.deployment.sites import HubSite, WorkerSite
    from mll_flower.processes.process_tree import Processes

    deployment = _load(network)
    _warn(insecure)
    with _signals() as stop, Processes() as processes:
        hubs = [
            HubSite(deployment, entry.id, processes, stop, _say, state, insecure)
            for entry in deployment.hubs
        ]
        workers = [
            WorkerSite(
                deployment,
                entry.id,
                number,
                processes,
                _say,
                state,
                insecure,
                node_config=own_node_config(deployment),
            )
            for entry in deployment.hubs
            for number in range(entry.workers)
        ]
        failed = _run_all(processes, hubs, workers, stop)
    if failed:
        raise typer.Exit(1)


def _run_all(
    processes: Any, hubs: list[HubSite], workers: list[WorkerSite], stop: threading.Event
) -> bool:
    """Start everything, say what happens, and return whether a hub has failed."""
    from mll_flower.deployment.sites import SiteFailed

    failed = False
    _say(f"Starting {len(hubs)} SuperLinks and {len(workers)} SuperNodes")
    with ThreadPoolExecutor(len(hubs)) as pool:
        starting = {site.entry.id: pool.submit(site.start) for site in hubs}
    running: dict[str, HubSite] = {}
    for site in hubs:
        error = starting[site.entry.id].exception()
        if error is None:
            running[site.entry.id] = site
        elif isinstance(error, SiteFailed):
            failed = True
            _say(f"[red]{error}[/red]")
        else:
            raise error
    for member in workers:
        if member.hub in running and not stop.is_set():
            member.start()
    shown: dict[str, str] = {}
    while running and not stop.wait(0.5):
        gone = {ended.name: ended for ended in processes.ended()}
        for member in workers:
            if member.name in gone:
                member.handle(gone[member.name])
            if member.hub in running:
                member.look()
        for id, site in list(running.items()):
            try:
                if site.name in gone:
                    raise SiteFailed(f"{gone[site.name]}: hub {id} is down; the others go on")
                if site.look() == "finished":
                    del running[id]
                _show(site, shown)
            except SiteFailed as failure:
                failed = True
                _say(f"[red]{failure}[/red]")
                processes.stop(site.name)
                del running[id]
    _say("Stopped" if stop.is_set() else "All hubs have ended")
    return failed


def _show(site: HubSite, shown: dict[str, str]) -> None:
    now = site.now()
    words = str(now.get("phase", "starting"))
    if now.get("round"):
        loss = now.get("loss")
        words += f", round {now['round']} of {site.network.rounds}"
        words += f", loss {loss:.4f}" if isinstance(loss, float) else ""
        words += f", test accuracy {now['accuracy']:.4f}" if "accuracy" in now else ""
    if words.startswith("finished"):
        words += f": {site.folder / 'model.safetensors'}"
    if shown.get(site.entry.id) != words:
        shown[site.entry.id] = words
        _say(f"hub {site.entry.id}: {words}")


def status(
    network: NetworkPath,
    watch: Annotated[bool, typer.Option("--watch", help="Again every two seconds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
    insecure: Insecure = False,
) -> None:
    """Ask every hub how it is: round, mixing, workers, loss, neighbours.

    NETWORK is the network's TOML file; `mll-flower example-network` writes one to begin with.
    """
    from rich.live import Live

    from mll_flower.deployment.status import survey, table

    deployment = _load(network)
    if as_json:
        print(json.dumps(survey(deployment, insecure), indent=2))
        return
    found = survey(deployment, insecure)
    if not watch:
        console.print(table(deployment, found))
        return
    with _signals() as stop, Live(table(deployment, found), console=console) as live:
        while not stop.wait(2.0):
            live.update(table(deployment, survey(deployment, insecure)))


def _load(path: Path) -> NetworkFile:
    from mll_flower.deployment.network_file import load_network

    return load_network(path.absolute())


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """Turn Ctrl-C and requests to end into an event, so that the end is always orderly."""
    stop = threading.Event()

    def handler(number: int, frame: object) -> None:
        stop.set()

    words = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before: dict[signal.Signals, Any] = {word: signal.signal(word, handler) for word in words}
    try:
        yield stop
    finally:
        for word, old in before.items():
            signal.signal(word, old)


def _say(words: str) -> None:
    console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim] {words}", soft_wrap=True)


def _fail(failure: Exception) -> None:
    console.print(f"Error: {failure}", style="bold red", markup=False, soft_wrap=True)
    raise typer.Exit(1)


def _warn(insecure: bool) -> None:
    if insecure:
        console.print(
            "--insecure: no TLS and no authentication; for a machine of your own only.",
            style="bold yellow",
        )
