"""Start and watch the Flower processes of a site, which is one hub or one worker of a deployment.

A worker's SuperNode that ends is started again. A hub whose SuperLink or run ends before its rounds
are over has failed: `SiteFailed` says why.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mll_flower.config import RunConfig
from mll_flower.deployment.commands import (
    deployment_environment,
    submit_command,
    superlink_command,
    supernode_command,
    worker_node_config,
)
from mll_flower.deployment.credentials import (
    check_credentials,
    hub_credentials,
    hub_worker_keys,
    worker_credentials,
)
from mll_flower.deployment.hub_state import (
    FLOWER_HOME,
    NOW_FILE,
    SUPERLINK_LOG,
    SUPERNODE_LOG,
    Phase,
    hub_directory,
    read_now,
    worker_directory,
)
from mll_flower.deployment.mixing_column import mixing_column
from mll_flower.deployment.network_entries import NetworkFile, Value, host_of, port_of
from mll_flower.deployment.run_config import hub_run_config
from mll_flower.processes.flower_environment import app_directory, free_port
from mll_flower.processes.process_tree import Ended, Processes, is_alive
from mll_flower.processes.superlink import SuperLink, SuperLinkFailed
from mll_flower.processes.warm.parent_death import PARENT
from mll_flower.processes.warm.settings import WarmSettings

START_TIMEOUT = 90.0
"""Seconds that a SuperLink has to answer."""

_ASK_PAUSE = 30.0  # seconds between two questions to Flower why a hub's app does not begin
_RESTART_PAUSE = 3.0  # seconds until a SuperNode that has ended is started again


class SiteFailed(RuntimeError):
    """A site that cannot start, or whose run has failed; the text says why."""


class HubSite:
    """A hub on this machine: its SuperLink, and in it the run of the hub's app.

    Parameters
    ----------
    network : NetworkFile
        The deployment.
    hub : str
        Id of the hub.
    processes : Processes
        Where its processes are kept.
    stop : threading.Event
        Set when the site shall end.
    state : Path, optional
        Where the state of hubs and workers is kept; ``state`` beside the network file if not given.
    insecure : bool
        Without TLS.
    quiet : bool
        Whether the SuperLink writes to a log file instead of to our output.
    """

    def __init__(
        self,
        network: NetworkFile,
        hub: str,
        processes: Processes,
        stop: threading.Event,
        state: Path | None = None,
        insecure: bool = False,
        quiet: bool = True,
    ) -> None:
        self.network, self.entry = network, network.hub(hub)
        self.processes, self.stop = processes, stop
        self.insecure = insecure
        self.folder = hub_directory(network, hub, state)
        self.name = f"SuperLink of hub {hub}"
        self.log = self.folder / SUPERLINK_LOG
        self._quiet = quiet
        self._next_question = 0.0
        check_credentials(network, hub_credentials(network, hub), insecure)
        self.config = hub_run_config(network, hub, self.folder, insecure)
        # An H that fails its checks fails here, before anything is started.
        mixing_column(network, RunConfig.from_run_config(self.config), hub)

    def start(self) -> None:
        """Start the SuperLink, register the workers and start the run."""
        _check_port(self.entry.id, "superlink", self.entry.superlink_listen)
        _check_port(self.entry.id, "gossip", self.entry.gossip_listen)
        (self.folder / NOW_FILE).unlink(missing_ok=True)
        superlink = self._superlink()
        try:
            superlink.start(
                self.processes,
                self.name,
                superlink_command(self.entry, self.folder, self.insecure),
                self.log if self._quiet else None,
                START_TIMEOUT,
                self.stop,
            )
        except SuperLinkFailed as failure:
            raise SiteFailed(f"the {failure}; {self._where()}") from None
        if not self.stop.is_set():
            self._submit(superlink)

    def phase(self) -> Phase:
        """Return what the hub is doing; `SiteFailed` if its run has failed."""
        now = self.now()
        phase = Phase(now.get("phase", Phase.STARTING))
        if phase is Phase.FAILED:
            raise SiteFailed(f"hub {self.entry.id}: {now.get('error')}; {self._where()}")
        if phase is Phase.FINISHED:
            return phase
        if not now:
            self._check_that_run_has_not_ended()
        elif not is_alive(int(now["pid"])):
            raise SiteFailed(f"hub {self.entry.id}: its run has died; {self._where()}")
        return phase

    def now(self) -> dict[str, Any]:
        """Return what the hub last wrote about itself; empty before its app begins."""
        return read_now(self.folder)

    def _superlink(self) -> SuperLink:
        home = self.folder / FLOWER_HOME
        ca = None if self.insecure else self.entry.tls.ca
        return SuperLink(home, self.entry.superlink_local, deployment_environment(home), ca)

    def _submit(self, superlink: SuperLink) -> None:
        keys = [] if self.insecure else hub_worker_keys(self.network, self.entry.id)
        submit = subprocess.run(
            submit_command(app_directory(), self.config, keys),
            env=superlink.env,
            capture_output=True,
            text=True,
            check=False,
        )
        if submit.returncode and not self.stop.is_set():
            output = (submit.stdout + submit.stderr).strip()[-2000:]
            raise SiteFailed(f"hub {self.entry.id}: its run cannot be started: {output}")
        self._next_question = time.monotonic() + _ASK_PAUSE

    def _check_that_run_has_not_ended(self) -> None:
        """Ask Flower, now and then: an app that fails before it begins writes no file."""
        if time.monotonic() < self._next_question:
            return
        self._next_question = time.monotonic() + _ASK_PAUSE
        status = self._superlink().newest_run_status()
        if status is not None and status.startswith("finished"):
            raise SiteFailed(
                f"hub {self.entry.id}: its run ended as {status!r} before it began; {self._where()}"
            )

    def _where(self) -> str:
        return f"see {self.log}" if self._quiet else "see the output above"


class WorkerSite:
    """A worker on this machine: its SuperNode, started again when it ends.

    Parameters
    ----------
    network, hub, processes, state, insecure, quiet
        As in `HubSite`.
    number : int
        Which of the hub's workers, from 0.
    say : callable
        Given lines for the operator.
    node_config : Mapping, optional
        More node config, such as ``dataset`` and ``data-dir`` of the worker's own data.
    settings : WarmSettings, optional
        How its ClientApp is run.
    """

    def __init__(
        self,
        network: NetworkFile,
        hub: str,
        number: int,
        processes: Processes,
        say: Callable[[str], None],
        state: Path | None = None,
        insecure: bool = False,
        quiet: bool = True,
        node_config: Mapping[str, Value] | None = None,
        settings: WarmSettings | None = None,
    ) -> None:
        self.settings = settings or WarmSettings()
        self.node_config = {**worker_node_config(network, hub, number), **(node_config or {})}
        check_credentials(network, worker_credentials(network, hub, number), insecure)
        self.network, self.hub, self.number = network, hub, number
        self.processes, self.say, self.insecure = processes, say, insecure
        self.folder = worker_directory(network, hub, number, state)
        self.name = f"SuperNode {hub}-{number}"
        self._log = self.folder / SUPERNODE_LOG if quiet else None
        self._restart_at: float | None = None

    def start(self) -> None:
        """Start the SuperNode."""
        place = (self.network, self.hub, self.number, free_port())
        command = supernode_command(*place, self.node_config, self.insecure, self.settings)
        # With us it ends, even if we are killed.
        env = {**deployment_environment(self.folder / FLOWER_HOME), PARENT: str(os.getpid())}
        self.processes.start(self.name, command, env, self._log)

    def plan_restart(self, ended: Ended) -> None:
        """Say that the SuperNode has ended; `restart_if_due` will start it again."""
        # It ends by itself when the SuperLink does not know its key yet, or any more.
        self.say(f"{ended}; it is started again in {_RESTART_PAUSE:g} s")
        self._restart_at = time.monotonic() + _RESTART_PAUSE

    def restart_if_due(self) -> None:
        """Start the SuperNode again if that is planned and its time has come."""
        if self._restart_at is not None and time.monotonic() >= self._restart_at:
            self._restart_at = None
            self.start()


def _check_port(hub: str, use: str, address: str) -> None:
    """Raise an error with a remedy if an address that a hub needs cannot be bound."""
    host = host_of(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port_of(address)))
        except OSError as error:
            raise SiteFailed(
                f"hub {hub}: {address} ({use}) cannot be used ({error.strerror}): is the hub "
                "running already? Otherwise give it another port, or `listen`, in the network file"
            ) from None
