"""Processes of one thread that answer orders over a pipe, and end with the process that gave them.

Sweeps and plans play their runs in such processes, several at a time.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def start_answering(serve: Callable[[Connection], None]) -> tuple[Any, Connection]:
    """Start a process that runs ``serve(pipe)``; return it and our end of the pipe."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with _one_thread():
        process = context.Process(target=serve, args=(theirs,), daemon=True)
        process.start()
    theirs.close()
    return process, ours


def answer_orders(pipe: Connection, answer: Callable[[Any], Any]) -> None:
    """Answer orders until None arrives: with (value, None), or (None, the error as text).

    Parameters
    ----------
    pipe : Connection
        Brings the orders and takes the answers.
    answer : callable
        Order -> value.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    while (order := _next_order(pipe)) is not None:
        try:
            pipe.send((answer(order), None))
        except Exception as error:
            pipe.send((None, f"{type(error).__name__}: {error}"))


def _end_with_parent() -> None:
    """End this process at once when the one that gave the orders has died, by whatever signal."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _next_order(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:  # the process that gave the orders has ended
        return None


@contextmanager
def _one_thread() -> Iterator[None]:
    """Set variables that limit the processes started in here to one thread each."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
