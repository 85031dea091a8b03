"""Hubs and workers as running sites: Flower's processes, and what to do when one ends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mll_flower.config import RunConfig
from mll_flower.deployment import commands as flower
from mll_flower.deployment.mixing_column import mixing_column
from mll_flower.deployment.network_entries import NetworkFile, Value
from mll_flower.deployment.run_config import hub_run_config
from mll_flower.processes.process_tree import Ended, Processes
from mll_flower.processes.simulation import app_directory, free_port

Say = Callable[[str], None]

UP = 90.0
"""Seconds that a SuperLink has to answer, and a hub's app to begin."""

_AGAIN = 3.0  # seconds until a SuperNode that has ended is started again


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
    say : callable
        Given lines for the operator.
    state : Path, optional
        Where the network's state is kept here.
    insecure : bool
        Without TLS.
    quiet : bool
        Whether the SuperLink writes to a file of its own instead of to our output.
    """

    def __init__(
        self,
        network: NetworkFile,
        hub: str,
        processes: Processes,
        stop: threading.Event,
        say: Say,
        state: Path | None = None,
        insecure: bool = False,
        quiet: bool = True,
    ) -> None:
        self.network, self.entry = network, network.hub(hub)
        self.processes, self.stop, self.say = processes, stop, say
        self.insecure = insecure
        self.folder = flower.hub_directory(network, hub, state)
        self.name = f"SuperLink of hub {hub}"
        self.log = self.folder / "superlink.log"
        self._quiet = quiet
        self._home = self.folder / "flwr"
        self._submitted = 0.0
        self._asked = 0.0
        flower.check_files(network, flower.hub_secrets(network, hub), insecure)
        self.config = hub_run_config(network, hub, self.folder, insecure)
        # An H that fails its checks fails here, before anything is started.
        mixing_column(network, RunConfig.from_run_config(self.config), hub)

    def start(self) -> None:
        """Start the SuperLink, register the workers and start the run."""
        for what, address in (
            ("superlink", self.entry.superlink_listen),
            ("gossip", (self.entry.listen or _host(self.entry.gossip), _port(self.entry.gossip))),
        ):
            _check_port(self.entry.id, what, *address)
        (self.folder / "now.json").unlink(missing_ok=True)
        flower.write_connection(self.entry, self._home, self.insecure)
        env = flower.environment(self._home)
        words = flower.superlink_words(self.entry, self.folder, self.insecure)
        self.processes.start(self.name, words, env, self.log if self._quiet else None)
        self._await_superlink()
        if not self.stop.is_set():
            self._submit(env)

    def look(self) -> str:
        """Return what the hub is doing; `SiteFailed` if its run has failed."""
        now = self.now()
        phase = str(now.get("phase", "starting"))
        if phase == "failed":
            raise SiteFailed(f"hub {self.entry.id}: {now.get('error')}; {self._where()}")
        if phase == "finished":
            return phase
        if not now:
            self._ask_flower()
        elif not _is_alive(int(now["pid"])):
            raise SiteFailed(f"hub {self.entry.id}: its run has died; {self._where()}")
        return phase

    def now(self) -> dict[str, Any]:
        """Return what the hub has last said of itself; empty before its app begins."""
        with suppress(OSError, ValueError):
            return dict(json.loads((self.folder / "now.json").read_text()))
        return {}

    def _await_superlink(self) -> None:
        end = time.monotonic() + UP
        while not flower.is_up(self.entry, self.insecure):
            if not self.processes.is_running(self.name):
                raise SiteFailed(f"the {self.name} has ended at once; {self._where()}")
            if time.monotonic() > end:
                raise SiteFailed(f"the {self.name} does not answer after {UP:g} s; {self._where()}")
            if self.stop.wait(0.2):
                return

    def _submit(self, env: Mapping[str, str]) -> None:
        keys = [
            flower.public_key(self.network, self.entry.id, number)
            for number in range(self.entry.workers)
        ]
        words = flower.submit_words(app_directory(), self.config, [] if self.insecure else keys)
        submit = subprocess.run(words, env=dict(env), capture_output=True, text=True, check=False)
        if submit.returncode and not self.stop.is_set():
            said = (submit.stdout + submit.stderr).strip()[-2000:]
            raise SiteFailed(f"hub {self.entry.id}: its run cannot be started: {said}")
        self._submitted = self._asked = time.monotonic()

    def _ask_flower(self) -> None:
        """Find out why the hub's app does not begin: it cannot tell by itself."""
        if time.monotonic() < self._asked + UP / 3:
            return
        self._asked = time.monotonic()
        listing = subprocess.run(
            ["flwr", "list", flower.CONNECTION, "--format", "json"],
            env=flower.environment(self._home),
            capture_output=True,
            text=True,
            check=False,
        )
        with suppress(ValueError, KeyError):
            runs = json.loads(listing.stdout)["runs"]
            newest = max(runs, key=lambda run: str(run.get("created-at", "")))
            if str(newest["status"]).startswith("finished"):
                raise SiteFailed(
                    f"hub {self.entry.id}: its run ended as {newest['status']!r} before it began; "
                    f"{self._where()}"
                )

    def _where(self) -> str:
        return f"see {self.log}" if self._quiet else "see the output above"


class WorkerSite:
    """A worker on this machine: its SuperNode, started again when it ends.

    Parameters
    ----------
    network, hub, processes, say, state, insecure, quiet
        As in `HubSite`.
    number : int
        Which of the hub's workers, from 0.
    node_config : Mapping
        More node config, such as ``dataset`` and ``data-dir`` of the worker's own data.
    """

    def __init__(
        self,
        network: NetworkFile,
        hub: str,
        number: int,
        processes: Processes,
        say: Say,
        state: Path | None = None,
        insecure: bool = False,
        quiet: bool = True,
        node_config: Mapping[str, Value] | None = None,
    ) -> None:
        flower.check_worker(network, hub, number)
        flower.check_files(network, flower.worker_secrets(network, hub, number), insecure)
        self.network, self.hub, self.number = network, hub, number
        self.processes, self.say, self.insecure = processes, say, insecure
        self.folder = flower.worker_directory(network, hub, number, state)
        self.name = f"SuperNode {hub}-{number}"
        self.node_config = {**flower.node_config(network, hub, number), **(node_config or {})}
        self._log = self.folder / "supernode.log" if quiet else None
        self._again = 0.0

    def start(self) -> None:
        """Start the SuperNode."""
        words = flower.supernode_words(
            self.network, self.hub, self.number, free_port(), self.node_config, self.insecure
        )
        env = flower.environment(self.folder / "flwr")
        self.processes.start(self.name, words, env, self._log)

    def handle(self, ended: Ended) -> None:
        """Say that the SuperNode has ended, and see to it that it is started again."""
        # It ends by itself when the SuperLink does not know its key yet, or any more.
        self.say(f"{ended}; it is started again in {_AGAIN:g} s")
        self._again = time.monotonic() + _AGAIN

    def look(self) -> None:
        """Start the SuperNode again when it is time."""
        if self._again and time.monotonic() >= self._again:
            self._again = 0.0
            self.start()


def _check_port(hub: str, what: str, host: str, port: int) -> None:
    """Raise an error with a remedy if something listens on a port that a hub needs."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise SiteFailed(
                f"hub {hub}: {host}:{port} ({what}) cannot be used ({error.strerror}): is the hub "
                "running already? Otherwise give it another port, or `listen`, in the network file"
            ) from None


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
