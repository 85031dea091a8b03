"""Processes that are set up once and then work when told, so that cases can take turns."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any

Work = Callable[[], int]
"""Does some work; returns how much (steps, or what is counted)."""


def _serve(pipe: Connection, setup: Callable[..., Work], arguments: tuple[Any, ...]) -> None:
    work = setup(*arguments)
    work()  # warm: memory, caches, code paths
    pipe.send(0)
    while pipe.recv():
        pipe.send(work())
    pipe.close()
    os._exit(0)  # servers and their threads need not be waited for


class Team:
    """Processes that work at the same time; a context manager that ends them.

    Parameters
    ----------
    setup : callable
        A function of a module; ``setup(*arguments)`` gives the work of a process.
    arguments : Sequence[tuple]
        Those of each process.
    threads : int
        Threads that torch and the BLAS of each process may use.
    """

    def __init__(
        self, setup: Callable[..., Work], arguments: Sequence[tuple[Any, ...]], threads: int = 1
    ) -> None:
        context = multiprocessing.get_context("spawn")
        keys = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        before = {key: os.environ.get(key) for key in keys}
        os.environ.update(dict.fromkeys(keys, str(threads)))  # read when the libraries load
        try:
            self._pipes: list[Connection] = []
            self._processes: list[SpawnProcess] = []
            for args in arguments:
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, setup, args), daemon=True)
                process.start()
                theirs.close()
                self._pipes.append(ours)
                self._processes.append(process)
        finally:
            for key, value in before.items():
                os.environ.pop(key, None)
                if value is not None:
                    os.environ[key] = value
        for pipe in self._pipes:
            pipe.recv()

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            try:
                pipe.send(False)
            except (BrokenPipeError, OSError):
                process.kill()
            process.join()

    def seconds(self) -> float:
        """Let all work once; the wall time until the last has finished, for each unit of work."""
        start = time.perf_counter()
        for pipe in self._pipes:
            pipe.send(True)
        done: int = sum(pipe.recv() for pipe in self._pipes)
        return (time.perf_counter() - start) / done

    def microseconds(self, slices: int = 1) -> float:
        """`seconds` in microseconds, the least of so many: the least disturbed."""
        return 1e6 * min(self.seconds() for _ in range(slices))
