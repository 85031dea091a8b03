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
from typing import IO, Any

from mll_flower.config import RunConfig
from mll_flower.deployment.app_config import app_run_config, check_state_outside
from mll_flower.deployment.clock import why_turned_away
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
from mll_flower.deployment.hub_place import HubPlace
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
from mll_flower.deployment.run_config import has_own_app, hub_run_config
from mll_flower.deployment.silence import Silence, longest_silence
from mll_flower.deployment.site_lock import NO_SPACE, is_full, lock_site
from mll_flower.extras import require
from mll_flower.processes.flower_environment import app_directory, free_port
from mll_flower.processes.private_certificate import CERTIFICATE, make_private_certificate
from mll_flower.processes.process_tree import Ended, Processes, is_alive
from mll_flower.processes.superlink import SuperLink, SuperLinkFailed
from mll_flower.processes.warm.parent_death import PARENT
from mll_flower.processes.warm.settings import WarmSettings
from mll_flower.training.own_work import try_own_work

START_TIMEOUT = 90.0
"""Seconds that a SuperLink has to answer."""

APP_END = 60.0
"""Seconds that an app of the user's own has, after its run as a hub, to end by itself."""

_ASK_PAUSE = 30.0  # seconds between two questions to Flower whether a silent run has ended
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
        if network.app is None:
            require("a hub of the built-in app", "torch")
        self.network, self.entry = network, network.hub(hub)
        self.processes, self.stop = processes, stop
        self.insecure = insecure
        self.folder = hub_directory(network, hub, state)
        self.name = f"SuperLink of hub {hub}"
        self.log = self.folder / SUPERLINK_LOG
        self.private = ""  # host:port on loopback, chosen at the start
        self._quiet = quiet
        self._next_question = 0.0
        self._silence = Silence()
        check_credentials(network, hub_credentials(network, hub), insecure)
        # What fails its checks fails here, before anything is started: own work, and an H.
        if network.app is None:
            self.config = hub_run_config(network, hub, self.folder, insecure)
            try_own_work(RunConfig.from_run_config(self.config))
        else:
            check_state_outside(network.app, self.folder)
            self.config = app_run_config(network, network.app)
        self._node_timeout = float(network.run_config.get("node-timeout", RunConfig.node_timeout))
        mixing_column(network, hub)

    def start(self) -> None:
        """Start the SuperLink, register the workers and start the run."""
        self._lock = lock_site(self.folder, f"hub {self.entry.id}")
        _check_port(self.entry.id, "superlink", self.entry.superlink_listen)
        _check_port(self.entry.id, "gossip", self.entry.gossip_listen)
        (self.folder / NOW_FILE).unlink(missing_ok=True)
        self.private = f"127.0.0.1:{_private_port(self.network)}"
        superlink = self._superlink()
        make_private_certificate(self.folder)
        try:
            superlink.start(
                self.processes,
                self.name,
                superlink_command(
                    self.entry, self.folder, self.private, self._worker_keys(), self.insecure
                ),
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
            # What the app does after its last round is given time to end.
            over = time.time() > float(now.get("time", 0.0)) + APP_END
            busy = self.network.app is not None and not over and is_alive(int(now["pid"]))
            return Phase.FINISHING if busy else phase
        silent = self._silence.after(now)
        if not now:
            self._check_that_run_has_not_ended()
        elif not is_alive(int(now["pid"])):
            raise SiteFailed(f"hub {self.entry.id}: its run has died; {self._where()}")
        else:
            self._check_that_run_goes_on(phase, silent)
        return phase

    def now(self) -> dict[str, Any]:
        """Return what the hub last wrote about itself; empty before its app begins."""
        return read_now(self.folder)

    def _superlink(self) -> SuperLink:
        home = self.folder / FLOWER_HOME
        ca = None if self.insecure else self.folder / CERTIFICATE
        env = {**deployment_environment(home), **self._place()}
        return SuperLink(home, self.private, env, ca)

    def _place(self) -> dict[str, str]:
        """Return the variable that tells an app of the user's own which hub it is."""
        if self.network.app is None:  # this project's app finds it in its run config
            return {}
        network, folder = str(self.network.path.absolute()), str(self.folder.absolute())
        name = self.network.name
        return HubPlace(network, self.entry.id, folder, name, self.insecure).environment()

    def _worker_keys(self) -> list[Path]:
        return [] if self.insecure else hub_worker_keys(self.network, self.entry.id)

    def _submit(self, superlink: SuperLink) -> None:
        submit = subprocess.run(
            submit_command(
                self.network.app or app_directory(superlink.home), self.config, self._worker_keys()
            ),
            env=superlink.env,
            capture_output=True,
            text=True,
            check=False,
        )
        if submit.returncode and not self.stop.is_set():
            output = (submit.stdout + submit.stderr).strip()[-2000:]
            raise SiteFailed(f"hub {self.entry.id}: its run cannot be started: {output}")
        self._next_question = time.monotonic() + _ASK_PAUSE

    def _check_that_run_goes_on(self, phase: Phase, silent: float) -> None:
        """Raise an error if the run has written nothing for longer than anything may last."""
        allowed = longest_silence(self.network, phase, self._node_timeout)
        if silent > allowed:
            self._check_that_run_has_not_ended()
        if silent > 3 * allowed:
            raise SiteFailed(
                f"hub {self.entry.id}: its run is stuck, {phase} without a word for {silent:.0f} "
                f"s; {self._where()}"
            )

    def _check_that_run_has_not_ended(self) -> None:
        """Ask Flower, now and then: a run that ends by itself may not write so."""
        if time.monotonic() < self._next_question:
            return
        self._next_question = time.monotonic() + _ASK_PAUSE
        superlink = self._superlink()
        status = superlink.newest_run_status()
        if status == "finished:completed":
            raise SiteFailed(
                f"hub {self.entry.id}: its app ended without being a hub: its ServerApp must use "
                f"`with mll_flower.multi_level(context, ...) as strategy`; {self._where()}"
            )
        if status is not None and status.startswith("finished"):
            began = "" if self.now() else " before it began"
            raise SiteFailed(
                f"hub {self.entry.id}: its run ended as {status!r}{began}; "
                f"{self._where()}; the end of its log:\n{superlink.newest_run_log()[-2000:]}"
            )

    def _where(self) -> str:
        where = f"see {self.log}" if self._quiet else "see the output above"
        # Then nothing could be written there either.
        return f"{self.folder}: {NO_SPACE}; {where}" if is_full(self.folder) else where


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
        if not has_own_app(network):
            require("a worker of the built-in app", "torch")
        self.node_config = {**worker_node_config(network, hub, number), **(node_config or {})}
        check_credentials(network, worker_credentials(network, hub, number), insecure)
        self.network, self.hub, self.number = network, hub, number
        self.processes, self.say, self.insecure = processes, say, insecure
        self.folder = worker_directory(network, hub, number, state)
        self.name = f"SuperNode {hub}-{number}"
        self._log = self.folder / SUPERNODE_LOG if quiet else None
        self._restart_at: float | None = None
        self._lock: IO[str] | None = None

    def start(self) -> None:
        """Start the SuperNode; say so if its hub will not have it as it is."""
        if self._lock is None:
            self._lock = lock_site(self.folder, f"worker {self.number} of hub {self.hub}")
        # The SuperNode itself does not say so of clocks that differ.
        entry = self.network.hub(self.hub)
        why = why_turned_away(entry.superlink, None if self.insecure else entry.tls.ca)
        if why:
            self.say(f"{self.name}: {why}")
        place = (self.network, self.hub, self.number, free_port())
        command = supernode_command(*place, self.node_config, self.insecure, self.settings)
        # With us it ends, even if we are killed.
        env = {**deployment_environment(self.folder / FLOWER_HOME), PARENT: str(os.getpid())}
        self.processes.start(self.name, command, env, self._log)

    def plan_restart(self, ended: Ended) -> None:
        """Say that the SuperNode has ended; `restart_if_due` will start it again."""
        # It ends by itself when the SuperLink does not know its key yet, or any more.
        where = f" (see {self._log})" if self._log else ""
        self.say(f"{ended}; it is started again in {_RESTART_PAUSE:g} s{where}")
        self._restart_at = time.monotonic() + _RESTART_PAUSE

    def restart_if_due(self) -> None:
        """Start the SuperNode again if that is planned and its time has come."""
        if self._restart_at is not None and time.monotonic() >= self._restart_at:
            self._restart_at = None
            self.start()


def _private_port(network: NetworkFile) -> int:
    """Return a free port that no hub of the network needs, should it run on this machine, too."""
    needed = {port_of(address) for hub in network.hubs for address in (hub.superlink, hub.gossip)}
    while (port := free_port()) in needed:
        pass
    return port


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
                f"hub {hub}: {address} ({use}) cannot be used ({error.strerror}): end the program "
                "that uses it, or give the hub another port, or `listen`, in the network file"
            ) from None
