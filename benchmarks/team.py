"""Processes that are set up once and work on request, so that cases can take turns."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

Work = Callable[[], int]
"""Does some work and returns its units, such as steps."""


def _serve(pipe: Connection, setup: Callable[..., Work], arguments: tuple[Any, ...]) -> None:
    work = setup(*arguments)
    work()  # the first time is not measured: it fills memory and caches
    pipe.send(0)
    while pipe.recv():
        pipe.send(work())
    pipe.close()
    os._exit(0)  # without waiting for servers and their threads


class Team:
    """Processes that work at the same time; a context manager, which ends them.

    Parameters
    ----------
    setup : callable
        A function at the top of a module; ``setup(*arguments)`` returns the work of a process.
    arguments : Sequence[tuple]
        The arguments for each process.
    threads : int
        Number of threads that torch and the BLAS of each process may use.
    """

    def __init__(
        self, setup: Callable[..., Work], arguments: Sequence[tuple[Any, ...]], threads: int = 1
    ) -> None:
        context = multiprocessing.get_context("spawn")
        keys = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        before = {key: os.environ.get(key) for key in keys}
        os.environ.update(dict.fromkeys(keys, str(threads)))  # the libraries read them once
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

    def __exit__(self, *error: object) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            try:
                pipe.send(False)
            except (BrokenPipeError, OSError):
                process.kill()
            process.join()

    def seconds(self) -> float:
        """Let all work once; return the wall time until the last has ended, per unit of work."""
        start = time.perf_counter()
        for pipe in self._pipes:
            pipe.send(True)
        done: int = sum(pipe.recv() for pipe in self._pipes)
        return (time.perf_counter() - start) / done

    def microseconds(self, slices: int = 1) -> float:
        """Return the least of several `seconds`, the least disturbed one, in microseconds."""
        return 1e6 * min(self.seconds() for _ in range(slices))
