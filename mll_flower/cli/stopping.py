"""Requests to end a command: Ctrl-C, SIGTERM and SIGHUP become an orderly end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and requests to end set, so that the end is always orderly."""
    stop = threading.Event()

    def handler(number: int, frame: object) -> None:
        stop.set()

    requests = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # A signal that is ignored stays ignored: under nohup, a closed terminal ends nothing.
    handled = [kind for kind in requests if signal.getsignal(kind) is not signal.SIG_IGN]
    before: dict[signal.Signals, Any] = {kind: signal.signal(kind, handler) for kind in handled}
    try:
        yield stop
    finally:
        for kind, old in before.items():
            signal.signal(kind, old)
