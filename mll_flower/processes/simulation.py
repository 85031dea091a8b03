"""Run a Flower app on the simulation engine, and leave no process behind."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, Any

from mll_flower.processes.config_pairs import config_pairs
from mll_flower.processes.flower_environment import flower_environment
from mll_flower.processes.places import own_place, own_port
from mll_flower.processes.process_tree import Processes, ProcessTree
from mll_flower.processes.ray_cluster import THIS_MACHINE, Resources
from mll_flower.processes.superlink import CONNECTION, SuperLink, SuperLinkFailed
from mll_flower.processes.watchdog import sweep

__all__ = ["RunFailed", "SuperLink", "run_app", "simulation_superlink"]

# Seconds that Flower's and Ray's processes have to end: nothing of theirs is worth a longer wait.
_PATIENCE = 2.0
# The paths of Ray's sockets, which begin with this folder, may have 107 bytes.
_LONGEST_HOME_FOR_RAY = 36
# Seconds that a SuperLink has to answer. It takes three, on a machine that does nothing else.
_BUSY_MACHINE = 300.0
# Seconds between two calls of `run_app`'s ``on_idle``.
_IDLE = 0.5


class RunFailed(RuntimeError):
    """A run that Flower did not complete."""


@contextmanager
def simulation_superlink(
    home: Path | None = None,
    resources: Resources = THIS_MACHINE,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[SuperLink]:
    """Start a SuperLink for simulations on loopback, with ports of its own; end it afterwards.

    If many simulations run on this machine already, it first waits for one of them to end.

    Parameters
    ----------
    home : Path, optional
        Its Flower home; a temporary folder if not given.
    resources : Resources
        The cluster on which its simulations run, if it is not this machine alone.
    say : callable
        Told once if there is a wait.
    """
    sweep()
    with (
        nullcontext() if resources.address else own_place(say),
        Processes(_PATIENCE) as processes,
        own_port() as port,
        own_port() as control_port,
    ):
        folder = processes.temporary_folder() if home is None else home
        env = processes.marked(flower_environment(folder))
        if home is None and len(str(folder)) <= _LONGEST_HOME_FOR_RAY:
            env["RAY_TMPDIR"] = str(folder)  # or else Ray's files stay in /tmp after the run
        env = resources.environment(env)
        superlink = SuperLink(folder, f"127.0.0.1:{port}", env)
        command = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += ["--control-api-address", f"127.0.0.1:{control_port}"]
        log = folder / "superlink.log"
        log.unlink(missing_ok=True)
        try:
            superlink.start(processes, "flower-superlink", command, log, _BUSY_MACHINE)
        except SuperLinkFailed as failure:
            raise RunFailed(f"{failure}:\n{log.read_text()[-2000:]}") from None
        yield superlink


def run_app(
    superlink: SuperLink,
    app: Path,
    config: Mapping[str, Any],
    federation: Mapping[str, Any],
    on_line: Callable[[str], None],
    on_idle: Callable[[], None] | None = None,
) -> None:
    """Run an app, giving each line of its log to ``on_line``; raise `RunFailed` if it fails.

    Parameters
    ----------
    superlink : SuperLink
        Where it runs.
    app : Path
        The app's folder, with its pyproject.toml.
    config, federation : Mapping
        Values of the run config and of the federation config.
    on_line : callable
        Given each line of the run's log.
    on_idle : callable, optional
        Called about twice a second while the run goes on. If it raises, the run ends.
    """
    command = ["flwr", "run", str(app), CONNECTION, "--stream"]
    command += ["--federation-config", config_pairs(federation)]
    command += ["--run-config", config_pairs(config)]
    process = subprocess.Popen(
        command,
        env=superlink.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    tree = ProcessTree(process)
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in _lines(process.stdout, on_idle):
            lines.append(line.rstrip())
            on_line(lines[-1])
        process.wait()
    finally:
        tree.end(_PATIENCE)
    # Flower's command succeeds even when the run has failed: the status tells.
    status = "not started" if process.returncode else superlink.newest_run_status() or "unknown"
    if status != "finished:completed":
        tail = "\n".join(lines[-15:])
        raise RunFailed(f"the run ended as {status!r}; the end of its log:\n{tail}")


def _lines(stream: IO[str], on_idle: Callable[[], None] | None) -> Iterator[str]:
    """Yield the lines of a stream; call ``on_idle`` between them and while there are none."""
    if on_idle is None:
        yield from stream
        return
    # A thread reads, because nothing can be done while a read waits for the next line.
    arrived: SimpleQueue[str | None] = SimpleQueue()

    def read() -> None:
        for line in stream:
            arrived.put(line)
        arrived.put(None)

    Thread(target=read, daemon=True).start()
    called = time.monotonic()
    while True:
        with suppress(Empty):
            line = arrived.get(timeout=_IDLE)
            if line is None:
                return
            yield line
        if time.monotonic() - called >= _IDLE:
            on_idle()
            called = time.monotonic()
