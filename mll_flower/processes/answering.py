"""Processes of one thread that answer orders over a pipe, and end with the process that gave them.

Sweeps and plans play their runs in such processes, several at a time: `answers`.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any

# Seconds between two looks at processes that are busy.
_LOOK_EVERY = 0.5

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


class Answerer:
    """A process that answers orders, and the job that it is busy with.

    Parameters
    ----------
    serve : callable
        What the process runs, such as ``lambda pipe: answer_orders(pipe, ...)`` in a module.
    """

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        self.serve = serve
        self.process, self.pipe = start_answering(serve)
        self.job: Any = None

    def give(self, job: Any, order: Any) -> None:
        """Give the order for a job."""
        self.job = job
        self.pipe.send(order)

    def answer(self) -> tuple[Any, str | None]:
        """Receive the answer to an order: a value, or an error as text."""
        try:
            value, error = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join(10)
            code = self.process.exitcode
            value, error = None, f"its process died (exit code {code}; out of memory?)"
        return value, error

    def stop(self) -> None:
        """End the process: by an order when it is idle, by a signal when it is busy."""
        if self.job is not None:
            self.process.terminate()
        elif self.process.is_alive():
            self.pipe.send(None)
        self.process.join(30)
        self.pipe.close()


def answers(
    jobs: Sequence[Any], team: list[Answerer], order_of: Callable[[Any], Any]
) -> Iterator[list[tuple[Any, Any, str | None]]]:
    """Give jobs, in their order, to whoever is idle; yield the answers as they come.

    Parameters
    ----------
    jobs : Sequence
        What is to be done.
    team : list of Answerer
        Who does it; one that has died is replaced.
    order_of : callable
        Job -> the order that is sent.

    Yields
    ------
    list of (job, value, error)
        What has been answered since the last time; at least twice per second.
    """
    queue = list(jobs)
    while queue or any(member.job is not None for member in team):
        for place, member in enumerate(team):
            if member.job is None and queue:
                if not member.process.is_alive():
                    member = team[place] = Answerer(member.serve)
                job = queue.pop(0)
                member.give(job, order_of(job))
        busy: dict[Any, Answerer] = {m.pipe: m for m in team if m.job is not None}
        done = []
        for pipe in wait(list(busy), timeout=_LOOK_EVERY):
            member = busy[pipe]
            job, member.job = member.job, None
            done.append((job, *member.answer()))
        yield done


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
