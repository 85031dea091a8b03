"""End a SuperNode that lives without doing its work, so that whoever watches it starts it again.

A process that lives says little: one answer with HTTP status 500 ends the thread that sends
Flower's heartbeats, an error of TLS ends the main loop, and the process stays for ever.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

AGAIN = 75
"""Exit code of a SuperNode that shall be started again (EX_TEMPFAIL)."""

PATIENCE = 180.0
"""Seconds that a part of an exchange with the SuperLink may take while that can be reached."""

_LOOK = 2.0  # seconds between two looks


class Watchdog:
    """Looks whether a SuperNode does its work.

    Parameters
    ----------
    superlink : str
        ``host:port`` of the SuperLink.
    patience : float
        Seconds that one part of an exchange with it may take.
    end : callable, optional
        Called with the reason; ends the process if not given.
    """

    def __init__(
        self,
        superlink: str,
        patience: float = PATIENCE,
        end: Callable[[str], None] | None = None,
    ) -> None:
        self.superlink, self.patience = superlink, patience
        self.end = end or end_for_restart
        self._since: float | None = None

    def start(self) -> None:
        """Watch all threads, and the exchanges with the SuperLink, from now on."""
        usual = threading.excepthook

        def hook(arguments: threading.ExceptHookArgs) -> None:
            usual(arguments)
            name = arguments.thread.name if arguments.thread else "a thread"
            self.end(f"{name} has ended with {arguments.exc_value!r}")

        threading.excepthook = hook
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Mark an exchange with the SuperLink, which Flower repeats until it succeeds."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def part(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a call of which an exchange has many: with each, there is time for the next."""

        def wrapped(*arguments: Any) -> Any:
            result = call(*arguments)
            if self._since is not None:
                self._since = time.monotonic()
            return result

        return wrapped

    def _watch(self) -> None:
        while True:
            time.sleep(_LOOK)
            since = self._since
            if since is None or time.monotonic() < since + self.patience:
                continue
            # While nobody listens there, patience is right: a restart would lose the state that
            # apps keep between messages, and gain nothing.
            if can_connect(self.superlink):
                self.end(
                    f"{self.superlink} accepts connections, but no exchange with it has succeeded "
                    f"for {self.patience:g} s"
                )
                self._since = None


def can_connect(address: str, timeout: float = 5.0) -> bool:
    """Return whether something listens at ``host:port``."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except (OSError, ValueError):
        return False
    return True


def end_for_restart(why: str) -> None:
    """End this process with the exit code that asks for another start."""
    print(f"The SuperNode no longer works and ends: {why}", file=sys.stderr, flush=True)
    os._exit(AGAIN)  # threads of Flower's would keep the process
