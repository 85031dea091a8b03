"""The watchdog: a thread that dies, an exchange that never ends, and neither."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from mll_flower.processes.warm import watchdog as module
from mll_flower.processes.warm.watchdog import AGAIN, Watchdog, can_connect
from tests.support.supernode import wait_for

DYING = """
import threading, time
from mll_flower.processes.warm.watchdog import Watchdog
Watchdog("127.0.0.1:1").start()
def heartbeats():
    raise RuntimeError("HTTP 500")
threading.Thread(target=heartbeats, name="heartbeats").start()
time.sleep(60)
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK", 0.01)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)


def test_the_death_of_a_thread_ends_the_process() -> None:
    command = [sys.executable, "-c", DYING]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == AGAIN
    assert "heartbeats has ended with RuntimeError('HTTP 500')" in ended.stderr
    assert "Traceback" in ended.stderr


def test_an_exchange_that_never_ends(listener: socket.socket) -> None:
    reasons: list[str] = []
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    watchdog = Watchdog(address, 0.1, reasons.append)
    watchdog.start()
    with watchdog.exchange():
        wait_for(lambda: bool(reasons))
    assert f"{address} accepts connections" in reasons[0]


def test_patience_while_nobody_listens_and_with_short_exchanges(listener: socket.socket) -> None:
    reasons: list[str] = []
    port = listener.getsockname()[1]
    quiet = Watchdog(f"127.0.0.1:{port}", 0.1, reasons.append)
    quiet.start()
    for _ in range(5):
        with quiet.exchange():
            threading.Event().wait(0.05)
    with quiet.exchange():
        for _ in range(5):
            quiet.part(threading.Event().wait)(0.05)
    listener.close()
    alone = Watchdog(f"127.0.0.1:{port}", 0.05, reasons.append)
    alone.start()
    with alone.exchange():
        threading.Event().wait(0.3)
    assert reasons == []


def test_addresses(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert can_connect(f"127.0.0.1:{port}")
    assert can_connect(f"localhost:{port}")
    assert not can_connect("127.0.0.1:1")
    assert not can_connect("nonsense")
