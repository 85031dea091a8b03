"""A SuperLink on this machine: start it, ask whether it is up, and how its newest run went.

Used for the SuperLink of a simulation, and for that of each hub of a deployment.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import tomli_w

from mll_flower.processes.process_tree import Processes

CONNECTION = "mll"
"""Name of the SuperLink in the Flower config that `SuperLink.start` writes."""

_LIST_TIMEOUT = 60.0  # seconds that a SuperLink has to list its runs


class SuperLinkFailed(RuntimeError):
    """A SuperLink that ended at once, or does not answer."""


@dataclass(frozen=True)
class SuperLink:
    """A SuperLink on this machine, and what Flower's commands need to reach it.

    Parameters
    ----------
    home : Path
        The ``FLWR_HOME`` of the commands.
    address : str
        ``host:port``, as seen from this machine.
    env : dict[str, str]
        Environment of the SuperLink and of the commands.
    ca : Path, optional
        Certificate of the authority that signed the SuperLink's own; without it there is no TLS.
    """

    home: Path
    address: str
    env: dict[str, str]
    ca: Path | None = None

    @property
    def port(self) -> int:
        """The port of the address."""
        return int(self.address.rpartition(":")[2])

    def start(
        self,
        processes: Processes,
        name: str,
        command: Sequence[str],
        log: Path | None = None,
        timeout: float = 60.0,
        stop: threading.Event | None = None,
    ) -> None:
        """Start the SuperLink and wait until it answers; `SuperLinkFailed` if it does not.

        Parameters
        ----------
        processes : Processes
            Where its process is kept.
        name : str
            The name of its process.
        command : Sequence[str]
            ``flower-superlink`` and its arguments.
        log : Path, optional
            The file to which its output is appended.
        timeout : float
            Seconds that it has to answer.
        stop : threading.Event, optional
            Ends the wait when it is set.
        """
        stop = stop or threading.Event()
        self.write_config()
        processes.start(name, command, self.env, log)
        end = time.monotonic() + timeout
        while not self.is_up():
            if not processes.is_running(name):
                raise SuperLinkFailed(f"{name} ended at once")
            if time.monotonic() > end:
                raise SuperLinkFailed(f"{name} did not answer within {timeout:g} s")
            if stop.wait(0.1):
                return

    def write_config(self) -> None:
        """Write the Flower config of the home: its one connection is this SuperLink."""
        connection: dict[str, str | bool] = {"address": self.address}
        if self.ca is None:
            connection["insecure"] = True
        else:
            connection["root-certificates"] = str(self.ca.absolute())
        config = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")

    def is_up(self) -> bool:
        """Return whether the SuperLink answers."""
        scheme = "http" if self.ca is None else "https"
        trust = False if self.ca is None else ssl.create_default_context(cafile=str(self.ca))
        url = f"{scheme}://{self.address}/health"
        try:
            return httpx.get(url, timeout=1.0, verify=trust, trust_env=False).is_success
        except httpx.HTTPError:
            return False

    def newest_run_status(self) -> str | None:
        """Return the status of the newest run, such as ``finished:completed``; None if unknown."""
        run = self._newest_run()
        return str(run["status"]) if run is not None and "status" in run else None

    def newest_run_log(self) -> str:
        """Return what the newest run has logged: the SuperLink keeps it, and shows it nowhere."""
        run = self._newest_run()
        if run is None or "run-id" not in run:
            return ""
        return self._flwr("log", str(run["run-id"]), CONNECTION, "--show")

    def _newest_run(self) -> dict[str, Any] | None:
        try:
            listed = json.loads(self._flwr("list", CONNECTION, "--format", "json"))
            runs: list[dict[str, Any]] = listed["runs"]
            return max(runs, key=lambda run: str(run.get("created-at", "")))
        except (ValueError, KeyError):
            return None

    def _flwr(self, *arguments: str) -> str:
        """Return the output of one of Flower's commands; empty if it does not end in time."""
        try:
            done = subprocess.run(
                ["flwr", *arguments],
                env=self.env,
                capture_output=True,
                text=True,
                check=False,
                timeout=_LIST_TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            return ""
        return done.stdout
