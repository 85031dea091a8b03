"""A deployment of real processes on loopback: start it, break it, read what it wrote, end it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tomli_w
from safetensors.numpy import load_file
from sklearn.datasets import load_digits

from mll_flower.config import RunConfig
from mll_flower.deployment.certs import make_certs
from mll_flower.deployment.hub_state import MODEL_FILE, ROUNDS_FILE, hub_directory, read_now
from mll_flower.deployment.network_file import NetworkFile, example_network, load_network
from mll_flower.deployment.run_config import hub_run_config
from mll_flower.models.layout import Flat
from mll_flower.processes.log_rotation import parts
from mll_flower.processes.process_tree import is_alive
from mll_flower.training.engine import Engine
from mll_flower.training.run_engine import run_engine

COMMAND = str(Path(sys.executable).parent / "mll-flower")

COLD = os.environ.get("MLL_FLOWER_TEST_COLD", "0") != "0"
"""Whether workers run their ClientApps as Flower does, in a new process per message."""


_ports = random.SystemRandom()  # several test runs at once must not draw the same
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Return ports that are free now, all different, and never the same twice.

    They are below those that systems give to outgoing connections: one of these could take such a
    port between now and the moment in which a server binds it.
    """
    found: list[int] = []
    while len(found) < count:
        port = _ports.randrange(10_000, 32_000)
        if port not in _given and _is_free(port):
            found.append(port)
            _given.add(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def heed_ctrl_c() -> None:
    """Let commands that are started from now on end at Ctrl-C.

    Those that a test starts inherit from it that Ctrl-C is ignored, as it is in the background of a
    shell and under nohup.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def write_data(path: Path) -> None:
    """Write the digits to a file, so that no worker spends a second on importing sklearn."""
    digits = load_digits()
    x, y = (digits.images / 16).astype(np.float32)[:, None], digits.target.astype(np.int64)
    np.savez(path, x_train=x[:1500], y_train=y[:1500], x_test=x[1500:], y_test=y[1500:])


def example_with(folder: Path, *changes: tuple[str, str]) -> NetworkFile:
    """Write the example network to a folder, with some texts in it replaced; return it."""
    text = example_network()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "network.toml").write_text(text)
    return load_network(folder / "network.toml")


def running_in(folder: Path) -> list[psutil.Process]:
    """Return the processes that have a path in this folder in their command or environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            texts = (*process.cmdline(), *process.environ().values())
            if any(str(folder) in text for text in texts) and is_alive(process):
                found.append(process)
    return [process for process in found if process.pid != os.getpid()]


class Deployment:
    """A network of real hubs and workers in a folder of its own; ends all that it starts.

    Parameters
    ----------
    folder : Path
        Where everything is kept.
    hubs : Mapping[str, int]
        Number of workers of each hub, by id.
    edges : Sequence
        Pairs of hub ids.
    run_config : Mapping
        What the network file's ``[run-config]`` has besides the data set; all that it has if
        ``app`` names a Flower app of its own.
    **values
        Further keys of the network file (tau, q, slot, rounds, round-deadline, ...).
    """

    def __init__(
        self,
        folder: Path,
        hubs: Mapping[str, int],
        edges: Sequence[tuple[str, str]],
        run_config: Mapping[str, Any] | None = None,
        **values: Any,
    ) -> None:
        self.folder = folder
        write_data(folder / "data.npz")
        ports = free_ports(2 * len(hubs))
        self.ports = ports
        self.gossip_port = dict(zip(hubs, ports[1::2], strict=True))
        settings = {"dataset": "npz:data.npz", "batch-size": 8, "learning-rate": 0.1, "seed": 5}
        settings = {**({} if "app" in values else settings), **(run_config or {})}
        entries = [
            {
                "id": id,
                "workers": workers,
                "superlink": f"127.0.0.1:{superlink}",
                "gossip": f"127.0.0.1:{gossip}",
            }
            for (id, workers), superlink, gossip in zip(
                hubs.items(), ports[::2], ports[1::2], strict=True
            )
        ]
        table = {"name": "trial", "edges": edges, **values, "run-config": settings, "hub": entries}
        self.path = folder / "network.toml"
        self.path.write_text(tomli_w.dumps(table))
        self.network = load_network(self.path)
        make_certs(self.network, self.network.certs)
        self.state = folder / "state"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def run(self, name: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        """Start ``mll-flower`` with some arguments, under a name."""
        heed_ctrl_c()
        with (self.folder / f"{name}.out").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [COMMAND, *arguments],
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "300", **(env or {})},
            )

    def hub(self, id: str, path: Path | None = None, env: Mapping[str, str] | None = None) -> None:
        """Start a hub; its output is in ``hub-ID.out``."""
        self.run(f"hub-{id}", "hub", str(path or self.path), "--id", id, "--quiet", env=env)

    def worker(self, hub: str, number: int, env: Mapping[str, str] | None = None) -> None:
        """Start a worker; its output is in ``worker-HUB-NUMBER.out``."""
        arguments = ["worker", str(self.path), "--hub", hub, "--number", str(number), "--quiet"]
        self.run(f"worker-{hub}-{number}", *arguments, *_cold(), env=env)

    def up(self, *options: str) -> subprocess.Popen[bytes]:
        """Start the whole network with one command; its output is in ``up.out``."""
        self.run("up", "up", str(self.path), *options, *_cold())
        return self.processes["up"]

    def output(self, name: str) -> str:
        """Return what a command has written."""
        return (self.folder / f"{name}.out").read_text()

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``mll-flower`` to its end, which must come within a minute."""
        env = {**os.environ, "COLUMNS": "300"}
        return subprocess.run(
            [COMMAND, *arguments],
            cwd=self.folder,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
        )

    def find(self, name: str, text: str) -> list[psutil.Process]:
        """Return the processes that a command has started with a text in their own command."""
        found = psutil.Process(self.processes[name].pid).children(recursive=True)
        return [p for p in found if is_alive(p) and text in " ".join(p.cmdline())]

    def wait_ended(self, name: str, code: int, timeout: float = 120.0) -> None:
        """Wait until a command has ended by itself, with an exit code."""
        process = self.processes[name]
        self.wait(f"{name} ends", lambda: process.poll() is not None, timeout)
        assert process.returncode == code, self.report()
        del self.processes[name]

    def start_all(self) -> None:
        """Start every hub and every worker, each by its own command."""
        for entry in self.network.hubs:
            self.hub(entry.id)
            for number in range(entry.workers):
                self.worker(entry.id, number)

    def signal(self, name: str, kind: signal.Signals) -> None:
        """Send a signal to a command's process and to all its descendants, parents first."""
        root = psutil.Process(self.processes[name].pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(kind)
        if kind == signal.SIGKILL:
            self.processes.pop(name).wait()

    def end(self) -> None:
        """End everything."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()
        for process in running_in(self.folder):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def state_of(self, hub: str) -> Path:
        """Return the folder of a hub's state."""
        return hub_directory(self.network, hub, self.state)

    def entries(self, hub: str) -> list[dict[str, Any]]:
        """Return the lines of a hub's record: rows and events."""
        lines = [
            line
            for path in parts(self.state_of(hub) / ROUNDS_FILE)
            for line in path.read_bytes().splitlines()
        ]
        # The last line may be half written.
        return [json.loads(line) for line in lines if line.endswith(b"}")]

    def rows(self, hub: str) -> list[dict[str, Any]]:
        """Return the rows of a hub's rounds."""
        return [entry for entry in self.entries(hub) if "arrived" in entry]

    def now(self, hub: str) -> dict[str, Any]:
        """Return what a hub last wrote about itself."""
        return read_now(self.state_of(hub))

    def wait(self, what: str, condition: Callable[[], bool], timeout: float = 240.0) -> None:
        """Wait until a condition holds; the error, if it does not, shows all outputs."""
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"not within {timeout:g} s: {what}\n{self.report()}")
            time.sleep(0.2)

    def wait_round(self, hub: str, round: int, timeout: float = 240.0) -> None:
        """Wait until a hub has recorded a round."""
        self.wait(
            f"hub {hub} at round {round}",
            lambda: any(row["round"] >= round for row in self.rows(hub)),
            timeout,
        )

    def wait_finished(self, hubs: Sequence[str], timeout: float = 240.0) -> None:
        """Wait until the hubs' commands have ended, all with exit code 0."""
        for hub in hubs:
            process = self.processes[f"hub-{hub}"]
            self.wait(f"hub {hub} ends", lambda p=process: p.poll() is not None, timeout)
            assert process.returncode == 0, self.report()

    def report(self) -> str:
        """Return the ends of all outputs."""
        parts = []
        for path in (*self.folder.glob("*.out"), *self.state.glob("*/*.log")):
            text = path.read_text(errors="replace")[-1500:]
            parts.append(f"--- {path.relative_to(self.folder)}\n{text}")
        return "\n".join(parts)

    def model(self, hub: str) -> Flat:
        """Return a hub's final model, flat."""
        return self.engine().layout.flatten(load_file(self.state_of(hub) / MODEL_FILE))

    def engine(self) -> Engine:
        """Return an engine that can train every worker of this network, for replays."""
        return run_engine(self.config())

    def config(self) -> RunConfig:
        """Return the run config that the hubs get."""
        first = self.network.hubs[0].id
        values = hub_run_config(self.network, first, self.state_of(first), False)
        return RunConfig.from_run_config(values)


def _cold() -> list[str]:
    return ["--cold"] if COLD else []
