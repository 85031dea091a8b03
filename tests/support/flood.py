"""Strangers at a port: connections that never say a word, and connections that say anything."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from types import TracebackType


class Flood:
    """Keeps connections to a port of this machine open, and sends random bytes to it.

    Parameters
    ----------
    port : int
        The port.
    idle : int
        Connections that are open at any time and send nothing.
    senders : int
        Threads that send random bytes, over one connection after another.
    """

    def __init__(self, port: int, idle: int = 500, senders: int = 4) -> None:
        self.port, self.garbage, self.opened = port, 0, 0
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._hold, args=(idle,))]
        self._threads += [threading.Thread(target=self._send, args=(n,)) for n in range(senders)]

    def __enter__(self) -> Flood:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=5.0)
        with self._lock:
            self.opened += 1
        return connection

    def _hold(self, count: int) -> None:
        held: list[socket.socket] = []
        while not self._stop.wait(0.2):
            held = [connection for connection in held if not is_closed(connection)]
            with contextlib.suppress(OSError):
                while len(held) < count:
                    held.append(self._connect())
        for connection in held:
            connection.close()

    def _send(self, seed: int) -> None:
        source = random.Random(seed)
        # Some look like the beginning of TLS, or of HTTP/2 without it.
        starts = (b"", b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        while not self._stop.wait(0.02):
            with contextlib.suppress(OSError), self._connect() as connection:
                connection.sendall(source.choice(starts) + source.randbytes(source.randrange(4096)))
                with self._lock:
                    self.garbage += 1


def is_closed(connection: socket.socket) -> bool:
    """Return whether the other end has closed a connection; then close ours, too."""
    try:
        connection.setblocking(False)
        while connection.recv(1 << 12):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    connection.close()
    return True
