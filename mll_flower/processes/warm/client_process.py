"""The process in which the ClientApp of one run answers its messages, one after another.

Flower's ``run_clientapp`` does the work for each message. It is made for a process that ends with
the message; so the names in its module that end the process, or that would do again what is done,
are replaced.

An app may bring along any package, this one included. So nothing is imported here once an app may
have been loaded, and nothing travels through the pipe but built-in types.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import flwr.supernode.runtime.run_clientapp as _run_clientapp

from mll_flower.processes.warm.parent_death import die_with_parent

flower: Any = _run_clientapp  # whose private names are used and replaced

READY, DONE, FAILED = "ready", "done", "failed"
"""What the process says: that it waits for its first task, and how a task has ended."""

Task = tuple[str, str, bool, str | None]
"""What ``flwr-clientapp`` is told: the SuperNode's address, token, insecure, certificates."""


class _Finished(BaseException):
    """Flower is done with a message; not an `Exception`, so that no app catches it."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.good = 0 <= code < 100  # Flower's codes of a good end


def serve(link: Connection) -> NoReturn:
    """Answer messages until the pipe is closed, or one has not gone well.

    Parameters
    ----------
    link : Connection
        The pipe to the executor.
    """
    os.setpgrp()  # so that it can be ended with all that it starts
    _leave_with_executor()
    import mll_flower.processes.warm.preload  # noqa: F401  (done already in a copied process)

    sys.argv = ["flwr-clientapp"]
    _draw_anew()
    app = _App()
    try:
        link.send((READY, ""))
        while True:
            word, text = app.answer(link.recv())
            sys.stdout.flush()
            sys.stderr.flush()
            link.send((word, text))
            if word != DONE or text:
                break
    except (EOFError, OSError):
        pass
    os._exit(0)  # neither handlers nor threads of the app's libraries keep it


class _App:
    """The app of one run, loaded by its first message."""

    def __init__(self) -> None:
        self._fab: bytes | None = None
        self._at_exit: list[Any] = []
        self._install_from_fab = flower.install_from_fab
        flower.install_from_fab = self._install
        flower.register_signal_handlers = self._keep_exit_handlers
        flower.flwr_exit = _raise_finished
        # The SuperNode has the whole message already, or all but: no second to wait.
        flower.pull_and_inflate_object_from_tree = partial(
            flower.pull_and_inflate_object_from_tree, initial_backoff=0.02, backoff_cap=0.5
        )

    def answer(self, task: Task) -> tuple[str, str]:
        """Let Flower answer one message; return how that went, and what was wrong if anything."""
        address, token, insecure, certificates = task
        try:
            flower.run_clientapp(
                runtime_api_address=address,
                token=token,
                insecure=insecure,
                certificates=Path(certificates).read_bytes() if certificates else None,
                parent_pid=None,
                runtime_dependency_install=False,
            )
        except _Finished as finished:
            for handler in self._at_exit:  # sends the context and stops the heartbeats
                handler()
            # After an error, which Flower has replied with, the app may be in any state.
            return DONE, "" if finished.good else "it has raised an error"
        except BaseException as error:
            # Above all a SystemExit of the app's, for which Flower sends no reply.
            return FAILED, f"it ended with {error!r}"
        return FAILED, "Flower's run_clientapp has returned"

    def _keep_exit_handlers(self, *_: Any, exit_handlers: Any = None, **__: Any) -> None:
        self._at_exit = list(exit_handlers or [])

    def _install(self, content: bytes, *args: Any, **kwargs: Any) -> None:
        """Install the app, once."""
        if self._fab is None:
            _forget_modules_of(self._install_from_fab(content, *args, **kwargs))
            self._fab = content
        elif self._fab != content:
            raise RuntimeError("another FAB in a process that has loaded one")


def _raise_finished(code: int, *_: Any, **__: Any) -> NoReturn:
    raise _Finished(code)


def _forget_modules_of(app: Path) -> None:
    """Forget modules under names that the app has, too: the app's own are meant."""
    names = {path.stem for path in app.iterdir() if path.is_dir() or path.suffix == ".py"}
    names -= {"flwr", *sys.stdlib_module_names}  # a new process has imported these, too
    for name in list(sys.modules):
        if name.partition(".")[0] in names:
            del sys.modules[name]


def _leave_with_executor() -> None:
    """End with the executor, whatever this process is doing then."""
    # A copied process holds the end of a pipe that keeps the fork server: with it closed, the fork
    # server ends with the executor, and we with the fork server.
    held = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_alive_fd", None)
    if isinstance(held, int):
        os.close(held)
        forkserver._forkserver._forkserver_alive_fd = None  # type: ignore[attr-defined]
    die_with_parent(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Flower raises it when a task was stopped
    executor = multiprocessing.parent_process()

    def watch() -> None:
        if executor is not None:
            executor.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _draw_anew() -> None:
    """Give NumPy's global generator a state of its own, as in a new process."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
