"""A deployment of real processes on loopback, for tests: start, break, wait, read, end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from mll_flower.config import RunConfig
from mll_flower.deployment.certs import make_certs
from mll_flower.deployment.network_file import load_network
from mll_flower.deployment.run_config import hub_run_config
from mll_flower.models.layout import Flat
from mll_flower.processes.process_tree import _descendants
from mll_flower.training.engine import Engine
from mll_flower.training.run_engine import run_engine

COMMAND = str(Path(sys.executable).parent / "mll-flower")


def free_ports(count: int) -> list[int]:
    """Ports that are free now, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def write_data(path: Path) -> None:
    """Write digits as a worker's own file would hold them: importing sklearn takes a second."""
    digits = load_digits()
    x, y = (digits.images / 16).astype(np.float32)[:, None], digits.target.astype(np.int64)
    np.savez(path, x_train=x[:1500], y_train=y[:1500], x_test=x[1500:], y_test=y[1500:])


def running_in(folder: Path) -> list[int]:
    """Processes that were started with a path in this folder on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in words:
                found.append(int(entry.name))
    return found


class Deployment:
    """A network of real hubs and workers in a folder of its own; ends all that it starts.

    Parameters
    ----------
    folder : Path
        Where everything is kept.
    hubs : Mapping[str, int]
        Workers of each hub, by id.
    edges : Sequence
        Pairs of hub ids.
    run_config : Mapping
        The network file's ``[run-config]``, beyond the data set.
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
        settings.update(run_config or {})
        top = {"name": "trial", "edges": [list(edge) for edge in edges], **values}
        lines = [f"{key.replace('_', '-')} = {json.dumps(value)}" for key, value in top.items()]
        lines += ["[run-config]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        for (id, workers), superlink, gossip in zip(
            hubs.items(), ports[::2], ports[1::2], strict=True
        ):
            lines += ["[[hub]]", f'id = "{id}"', f"workers = {workers}"]
            lines += [f'superlink = "127.0.0.1:{superlink}"', f'gossip = "127.0.0.1:{gossip}"']
        self.path = folder / "network.toml"
        self.path.write_text("\n".join(lines) + "\n")
        self.network = load_network(self.path)
        make_certs(self.network, self.network.certs)
        self.state = folder / "state"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def run(self, name: str, *words: str) -> None:
        """Start ``mll-flower`` with some words, under a name."""
        with (self.folder / f"{name}.out").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [COMMAND, *words],
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "300"},
            )

    def hub(self, id: str, path: Path | None = None) -> None:
        """Start a hub; its output is in ``hub-ID.out``."""
        self.run(f"hub-{id}", "hub", str(path or self.path), "--id", id, "--quiet")

    def worker(self, hub: str, number: int) -> None:
        """Start a worker."""
        name = f"worker-{hub}-{number}"
        words = ["worker", str(self.path), "--hub", hub, "--number", str(number), "--quiet"]
        self.run(name, *words)

    def start_all(self) -> None:
        """Start every hub and every worker, each by its own command."""
        for entry in self.network.hubs:
            self.hub(entry.id)
            for number in range(entry.workers):
                self.worker(entry.id, number)

    def family(self, name: str) -> list[int]:
        """A command's process and everything below it."""
        pid = self.processes[name].pid
        return [pid, *_descendants([pid])]

    def signal(self, name: str, word: signal.Signals) -> None:
        """Send a signal to a command's process and to everything below it, top first."""
        for pid in self.family(name):
            try:
                os.kill(pid, word)
            except ProcessLookupError:
                continue
        if word == signal.SIGKILL:
            self.processes.pop(name).wait()

    def stop(self, name: str) -> int:
        """Ask a command to end; return its exit code."""
        process = self.processes.pop(name)
        process.terminate()
        return process.wait(timeout=60)

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
        for pid in running_in(self.folder):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def entries(self, hub: str) -> list[dict[str, Any]]:
        """Lines of a hub's record: rows and events."""
        path = self.state / f"hub-{hub}" / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def rows(self, hub: str) -> list[dict[str, Any]]:
        """Rows of a hub's rounds."""
        return [entry for entry in self.entries(hub) if "arrived" in entry]

    def now(self, hub: str) -> dict[str, Any]:
        """What a hub says of itself in its file."""
        try:
            return json.loads((self.state / f"hub-{hub}" / "now.json").read_text())
        except (OSError, ValueError):
            return {}

    def wait(self, what: str, condition: Callable[[], bool], timeout: float = 240.0) -> None:
        """Wait until a condition holds; an error shows how everything is."""
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
        """Wait until the hubs' commands have ended; all must have ended well."""
        for hub in hubs:
            process = self.processes[f"hub-{hub}"]
            self.wait(f"hub {hub} ends", lambda p=process: p.poll() is not None, timeout)
            assert process.returncode == 0, self.report()

    def report(self) -> str:
        """The ends of all outputs."""
        parts = []
        for path in (*self.folder.glob("*.out"), *self.state.glob("*/*.log")):
            parts.append(f"--- {path.relative_to(self.folder)}\n{path.read_text()[-1500:]}")
        return "\n".join(parts)

    def model(self, hub: str) -> Flat:
        """A hub's final model, flat."""
        from safetensors.numpy import load_file

        return self.engine().layout.flatten(load_file(self.state / f"hub-{hub}/model.safetensors"))

    def engine(self) -> Engine:
        """The engine that trains all workers of this network, for replays."""
        return run_engine(self.config())

    def config(self) -> RunConfig:
        """The run config that the hubs get."""
        first = self.network.hubs[0].id
        values = hub_run_config(self.network, first, self.state / f"hub-{first}", False)
        return RunConfig.from_run_config(values)
