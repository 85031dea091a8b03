"""Ray nodes for tests: several on this machine, on loopback, each ended with all its processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from mll_flower.processes.flower_environment import free_port


class RayNodes:
    """A cluster on this machine.

    Parameters
    ----------
    folder : Path
        Ray's temporary folder: short, because the paths of its sockets begin with it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        self.nodes: list[list[psutil.Process]] = []

    def add(self, cpus: int = 1) -> list[psutil.Process]:
        """Start a node, the first one as the head; return its processes."""
        port = self.address.rpartition(":")[2]
        command = [str(Path(sys.executable).parent / "ray"), "start", "--num-cpus", str(cpus)]
        command += ["--node-ip-address", "127.0.0.1", "--disable-usage-stats"]
        command += ["--object-store-memory", "100000000"]
        if not self.nodes:
            command += ["--head", "--port", port, "--include-dashboard", "false"]
            command += ["--temp-dir", str(self.folder)]
            command += ["--ray-client-server-port", str(free_port())]
        else:
            command += ["--address", self.address]
        before = set(psutil.pids())
        mark = f"mll-test-{os.getpid()}-{len(self.nodes)}"
        env = {**os.environ, "MLL_TEST_NODE": mark}
        env["RAY_worker_niceness"] = "0"  # or a busy machine starves them
        env["RAY_memory_monitor_refresh_ms"] = "0"  # it counts what others use
        env.pop("RAY_ADDRESS", None)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise RuntimeError(f"ray start failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid not in before and process.environ().get("MLL_TEST_NODE") == mark:
                    found.append(process)
        self.nodes.append(found)
        return found

    def kill(self, node: int) -> None:
        """Kill all processes of a node at once, as a machine's failure does."""
        processes = self.nodes[node]
        children = []
        for process in processes:
            with suppress(psutil.Error):
                children += process.children(recursive=True)
        for process in [*processes, *children]:
            with suppress(psutil.Error):
                process.kill()

    def end(self) -> None:
        """End every node; nodes that joined go first."""
        for node in reversed(range(len(self.nodes))):
            self.kill(node)
        end = time.monotonic() + 20
        left = [process for node in self.nodes for process in node]
        while any(p.is_running() and p.status() != "zombie" for p in left if p.is_running()):
            if time.monotonic() > end:
                raise RuntimeError("Ray's processes do not end")
            time.sleep(0.1)


@contextmanager
def ray_nodes(count: int) -> Iterator[RayNodes]:
    """Start a cluster of so many nodes with one CPU each; end it afterwards."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as name:
        cluster = RayNodes(Path(name))
        try:
            for _ in range(count):
                cluster.add()
            yield cluster
        finally:
            cluster.end()
