"""A TCP proxy that can be cut: the network between two hubs, in tests."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Forwards bytes to a port of this machine until it is cut.

    Parameters
    ----------
    target : int
        The port to forward to.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.whole = True
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
                sink.sendall(data)
        with self._lock:
            for connection in (source, sink):
                self._open.discard(connection)
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        source.close()
