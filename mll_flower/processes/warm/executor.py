"""The executor that keeps ClientApps' processes: one per run, and a spare one for the next.

It has the methods of Flower's protocol ``Executor``. A task of another kind, or one whose
dependencies Flower shall install, goes to Flower's own executor.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import psutil
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult, SubprocessExecutor

from mll_flower.processes.warm import client_process, executor_link
from mll_flower.processes.warm.settings import PRELOAD_VARIABLE, WarmSettings

GROWTH = 1.0
"""Gigabytes by which a process may have grown since its first message; then it is replaced."""

_READY = 300.0  # seconds that a process may take to import everything
_LOOK = 0.5  # seconds between two looks at the memory of processes that work
_IDLE = 600.0  # seconds after which a process without messages is ended
_KEPT = 2  # processes that are kept at least, with or without messages

Key = tuple[int, str]  # a run and the hash of its app


@dataclass(eq=False)
class _Client:
    """A ClientApp's process."""

    process: Any
    link: Connection
    key: Key | None = None
    task: int | None = None
    memory: float | None = None
    used: float = field(default_factory=time.monotonic)


class WarmExecutor:
    """Hands each task to the process of its run.

    Parameters
    ----------
    supernode : Connection
        The pipe to the SuperNode, which says when there is a task and is told how it went.
    settings : WarmSettings
        How processes are started, and what they may use.
    """

    def __init__(self, supernode: Connection, settings: WarmSettings) -> None:
        self.run = 0  # of the task that is launched next
        self._supernode, self._settings = supernode, settings
        self._stock = SubprocessExecutor()
        self._clients: dict[Key, _Client] = {}
        self._spare: _Client | None = None
        os.environ[PRELOAD_VARIABLE] = ",".join(settings.preload)
        fork = settings.start_method == "fork"
        self._context: Any = multiprocessing.get_context("forkserver" if fork else "spawn")
        if fork:
            self._context.set_forkserver_preload(["mll_flower.processes.warm.preload"])

    def get_eligible_capacity(
        self, supported_task_types: set[TaskType], **_: Any
    ) -> tuple[set[TaskType], set[str]]:
        """Return that any task may come."""
        return supported_task_types, set()

    def wait_for_capacity(self, task_type: TaskType | None = None, **_: Any) -> None:
        """Return at once."""

    def reconcile(self) -> None:
        """Look after the processes until there is a task to take."""
        if self._spare is None:
            # Before a task is taken, as its token does not last for the imports of a slow machine.
            self._spare = self._new()
            if self._spare.link.poll(_READY):
                return  # there may be a task already
        while not self._watch():
            pass

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Hand a task to the process of its run."""
        if spec.task_type != TaskType.CLIENT_APP or spec.runtime_dependency_install:
            return self._stock.launch(spec)
        key = (self.run, spec.fab_hash or "")
        words = (spec.runtime_api_address, spec.token, spec.insecure, spec.root_certificates_path)
        for _ in range(2):
            client = self._clients.get(key) or self._adopt(key)
            self._tell(executor_link.STARTED, key[0], spec.task_id)
            client.task, client.used = spec.task_id, time.monotonic()
            try:
                client.link.send(words)
                return LaunchResult.accepted()
            except OSError:  # it has died while it waited
                self._end(client)
        self._tell(executor_link.FAILED, key[0], spec.task_id, "no process can be started for it")
        return LaunchResult.failed("no process can be started")

    def close(self) -> None:
        """End all processes."""
        for client in [*self._clients.values(), *([self._spare] if self._spare else [])]:
            self._end(client)
        self._spare = None

    def _watch(self) -> bool:
        """Wait for something to happen and handle it; return whether there is a task to take."""
        clients = list(self._clients.values())
        working = any(client.task is not None for client in clients)
        links = {client.link: client for client in clients}
        ready = wait([self._supernode, *links], _LOOK if working else _IDLE / 10)
        for link, client in links.items():
            if link in ready:
                self._hear(client)
        self._end_idle()
        self._end_large()
        return self._supernode in ready and self._obey()

    def _obey(self) -> bool:
        """Do what the SuperNode says; return whether there is a task to take."""
        try:
            word, *rest = self._supernode.recv()
        except (EOFError, OSError):
            self.close()
            sys.exit("The SuperNode has ended")
        if word == executor_link.KILL:
            for client in [c for key, c in self._clients.items() if key[0] == rest[0]]:
                self._end(client)
        return bool(word == executor_link.TASK)

    def _hear(self, client: _Client) -> None:
        """Pass on how a process has done its task; end it if it is not fit for another one."""
        try:
            word, text = client.link.recv()
        except (EOFError, OSError):
            client.process.join(5.0)
            code = client.process.exitcode
            how = f"by signal {-code}" if code is not None and code < 0 else f"with code {code}"
            word, text = client_process.FAILED, f"its process has ended {how}"
        if word == client_process.READY:
            return
        assert client.key is not None
        if client.task is not None:
            told = executor_link.DONE if word == client_process.DONE else executor_link.FAILED
            self._tell(told, client.key[0], client.task, text)
        client.task, client.used = None, time.monotonic()
        memory = _gigabytes(client)
        client.memory = client.memory or memory
        if word != client_process.DONE or text or memory > client.memory + GROWTH:
            self._end(client)

    def _end_idle(self) -> None:
        now = time.monotonic()
        idle = sorted((c for c in self._clients.values() if c.task is None), key=lambda c: c.used)
        surplus = len(self._clients) - max(_KEPT, self._settings.parallel)
        for place, client in enumerate(idle):
            if place < surplus or now > client.used + _IDLE:
                self._end(client)

    def _end_large(self) -> None:
        """End the processes that use more memory than they may."""
        most = self._settings.max_memory
        for client in list(self._clients.values()):
            if most is not None and client.task is not None and _gigabytes(client) > most:
                assert client.key is not None
                why = f"it used more than {most:g} GB of memory (--max-memory)"
                self._tell(executor_link.FAILED, client.key[0], client.task, why)
                self._end(client)

    def _adopt(self, key: Key) -> _Client:
        """Give the spare process to a run, and start another spare one."""
        client, self._spare = self._spare, self._new()
        if client is None or not client.process.is_alive():
            client = self._new()
        client.key = key
        self._clients[key] = client
        return client

    def _new(self) -> _Client:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=client_process.serve, args=(theirs,))
        process.start()
        theirs.close()
        return _Client(process, ours)

    def _end(self, client: _Client) -> None:
        """End a process with all that it has started."""
        if client.key is not None and self._clients.get(client.key) is client:
            del self._clients[client.key]
        client.link.close()
        with suppress(OSError):
            os.killpg(client.process.pid, signal.SIGKILL)
        client.process.kill()
        client.process.join(5.0)

    def _tell(self, *words: Any) -> None:
        with suppress(OSError):  # a SuperNode that has ended is found by `_obey`
            self._supernode.send(words)


def _gigabytes(client: _Client) -> float:
    """Return the memory that a process uses; 0 if it has ended."""
    try:
        return float(psutil.Process(client.process.pid).memory_info().rss) / 1e9
    except psutil.Error:
        return 0.0
