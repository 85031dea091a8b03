"""A TCP proxy that can be slow, lossy or cut: the network between two hubs, in tests."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time


class Proxy:
    """Forwards bytes to a port of this machine until it is cut.

    What is lost is what a lossy network looks like through TCP: bytes come late, as they are sent
    again, and now and then a connection ends.

    Parameters
    ----------
    target : int
        The port to forward to.
    """

    _AGAIN = 1.0  # seconds until lost bytes are sent again
    _END = 0.1  # share of losses after which the connection ends

    def __init__(self, target: int) -> None:
        self.target = target
        self.whole = True
        self.delay = 0.0  # seconds
        self.loss = 0.0  # share of all pieces
        self.lost = self.ended = 0  # pieces, and connections, so far
        self._random = random.Random(target)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and from now on every new one as soon as it is made."""
        with self._lock:
            self.whole = False
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Let connections through again."""
        self.whole = True

    def close(self) -> None:
        """Cut all connections and stop listening."""
        self.cut()
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if not self.whole:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with self._lock:
            self._open |= {source, sink}
        with contextlib.suppress(OSError):
            while self.whole and (data := source.recv(1 << 16)):
                if not self._passes():
                    break
                sink.sendall(data)
        with self._lock:
            for connection in (source, sink):
                self._open.discard(connection)
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        source.close()

    def _passes(self) -> bool:
        """Wait as long as a piece needs; return whether its connection outlives it."""
        time.sleep(self.delay)
        while self._random.random() < self.loss:
            self.lost += 1
            if self._random.random() < self._END:
                self.ended += 1
                return False
            time.sleep(self._AGAIN)
        return True
