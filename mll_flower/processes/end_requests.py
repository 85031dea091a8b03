"""Requests to end a program, from whoever they come: the terminal, its end, another program."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class EndRequested(KeyboardInterrupt):
    """A signal that asks this process to end.

    Parameters
    ----------
    kind : signal.Signals
        The signal.
    """

    def __init__(self, kind: signal.Signals) -> None:
        super().__init__(kind.name)
        self.kind = kind

    @property
    def exit_code(self) -> int:
        """The exit code by which shells know a process that a signal has ended."""
        return 128 + self.kind


@contextmanager
def end_requests() -> Iterator[None]:
    """Raise `EndRequested` for Ctrl-C, SIGTERM and SIGHUP, so that every end is an orderly one.

    A signal that this process was started to ignore stays ignored: after ``nohup``, the end of the
    terminal is no request. Outside the main thread, where Python allows no handlers, signals do
    what they did before.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: object) -> None:
        raise EndRequested(signal.Signals(number))

    requests = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handled = [kind for kind in requests if signal.getsignal(kind) is not signal.SIG_IGN]
    before = {kind: signal.signal(kind, handler) for kind in handled}
    try:
        yield
    finally:
        for kind, old in before.items():
            signal.signal(kind, old)
