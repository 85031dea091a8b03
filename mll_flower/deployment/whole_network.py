"""Run a whole deployment on this machine, every hub and worker in processes of its own.

``mll-flower up`` uses it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mll_flower.deployment.hub_state import MODEL_FILE, Phase
from mll_flower.deployment.network_entries import NetworkFile
from mll_flower.deployment.run_config import own_node_config
from mll_flower.deployment.sites import HubSite, SiteFailed, WorkerSite
from mll_flower.processes.process_tree import Processes
from mll_flower.processes.warm.settings import WarmSettings

Say = Callable[[str], None]


def run_whole_network(
    network: NetworkFile,
    processes: Processes,
    stop: threading.Event,
    say: Say,
    say_failure: Say,
    state: Path | None = None,
    insecure: bool = False,
    settings: WarmSettings | None = None,
) -> bool:
    """Start all hubs and workers and wait until every hub has ended; return whether all finished.

    Parameters
    ----------
    network : NetworkFile
        The deployment.
    processes : Processes
        Where the processes are kept; its owner ends them.
    stop : threading.Event
        Set when the network shall end before its run is over.
    say, say_failure : callable
        Given lines for the operator; failures of hubs go to ``say_failure``.
    state : Path, optional
        Where state is kept; ``state`` beside the network file if not given.
    insecure : bool
        Without TLS.
    settings : WarmSettings, optional
        How the workers' ClientApps are run.
    """
    hubs = [HubSite(network, entry.id, processes, stop, state, insecure) for entry in network.hubs]
    own = own_node_config(network)
    workers = [
        WorkerSite(
            *(network, entry.id, n, processes, say, state, insecure),
            node_config=own,
            settings=settings,
        )
        for entry in network.hubs
        for n in range(entry.workers)
    ]
    say(f"Starting {len(hubs)} SuperLinks and {len(workers)} SuperNodes")
    running = _start_hubs(hubs, say_failure)
    failed = len(running) < len(hubs)
    for worker in workers:
        if worker.hub in running and not stop.is_set():
            worker.start()
    shown: dict[str, str] = {}
    while running and not stop.wait(0.5):
        ended = {end.name: end for end in processes.ended()}
        for worker in workers:
            if worker.name in ended:
                worker.plan_restart(ended[worker.name])
            if worker.hub in running:
                worker.restart_if_due()
        for id, hub in list(running.items()):
            try:
                if hub.name in ended:
                    raise SiteFailed(f"{ended[hub.name]}: hub {id} is down; the others go on")
                if hub.phase() is Phase.FINISHED:
                    del running[id]
                _show_progress(hub, shown, say)
            except SiteFailed as failure:
                failed = True
                say_failure(str(failure))
                processes.stop(hub.name)
                del running[id]
    say("Stopped" if stop.is_set() else "All hubs have ended")
    return not failed


def _start_hubs(hubs: Sequence[HubSite], say_failure: Say) -> dict[str, HubSite]:
    """Start all hubs at once; return those that have started, by id."""
    with ThreadPoolExecutor(len(hubs)) as pool:
        starting = {hub.entry.id: pool.submit(hub.start) for hub in hubs}
    running: dict[str, HubSite] = {}
    for hub in hubs:
        error = starting[hub.entry.id].exception()
        if error is None:
            running[hub.entry.id] = hub
        elif isinstance(error, SiteFailed):
            say_failure(str(error))
        else:
            raise error
    return running


def _show_progress(hub: HubSite, shown: dict[str, str], say: Say) -> None:
    """Say what a hub is doing, if that has changed since it was last shown."""
    text = progress_line(hub.now(), hub.network.rounds)
    if text.startswith(Phase.FINISHED):
        text += f": {hub.folder / MODEL_FILE}"
    if shown.get(hub.entry.id) != text:
        shown[hub.entry.id] = text
        say(f"hub {hub.entry.id}: {text}")


def progress_line(now: Mapping[str, Any], rounds: int) -> str:
    """Return what a hub is doing, in one line.

    Parameters
    ----------
    now : Mapping
        What the hub last wrote about itself.
    rounds : int
        Rounds of the whole run.
    """
    parts = [str(now.get("phase", Phase.STARTING))]
    if now.get("round"):
        parts.append(f"round {now['round']} of {rounds}")
        if isinstance(now.get("loss"), float):
            parts.append(f"loss {now['loss']:.4f}")
        metric = str(now.get("metric", "accuracy"))
        if metric in now:
            parts.append(f"test {metric} {now[metric]:.4f}")
    return ", ".join(parts)
