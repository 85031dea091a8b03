"""The web server of the live page: one page, and a stream of events for each browser.

It serves nothing else: no file, no path. A request whose ``Host`` names neither this machine nor
an address is refused, so that no web page elsewhere can read it through a name that it has pointed
at this machine (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from mll_flower.watching.looking import Watch, dump
from mll_flower.watching.page import render_page
from mll_flower.watching.source import Source

LOOPBACK = "127.0.0.1"
READERS = 64
"""Browsers at the same time; one more is turned away."""

_BEAT = 10.0  # seconds after which a stream says that it is alive, and learns if nobody listens
_STUCK = 30.0  # seconds that a browser may leave its stream unread

_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    protocol_version = "HTTP/1.1"
    timeout = _STUCK
    server_version, sys_version = "mll-flower", ""

    def do_GET(self) -> None:
        """Answer: the page, its events, or that nothing else is here."""
        path = self.path.partition("?")[0]
        if not self.server.is_own_name(self.headers.get("Host", "")):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this server does not have that name")
        elif path == "/":
            self._send_page()
        elif path == "/events":
            self._send_events()
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here but the page, at /")

    def _send_page(self) -> None:
        nonce = secrets.token_urlsafe(18)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; "
            "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        source = self.server.watch.source
        body = render_page(source.kind, self.server.title, nonce).encode()
        self._head(HTTPStatus.OK, "text/html; charset=utf-8", {"Content-Security-Policy": policy})
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_events(self) -> None:
        if not self.server.readers.acquire(blocking=False):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"{READERS} pages are open already")
            return
        try:
            self._head(HTTPStatus.OK, "text/event-stream; charset=utf-8", {"Connection": "close"})
            self.end_headers()
            self.close_connection = True
            self._stream(self.server.watch)
        except OSError:
            pass  # the browser has gone, or does not read
        finally:
            self.server.readers.release()

    def _stream(self, watch: Watch) -> None:
        version, shape = 0, ""
        while not watch.over:
            news = watch.newest(version, _BEAT)
            if news is None:
                self.wfile.write(b": still here\n\n")
                continue
            text = ""
            if news.shape != shape:
                text = f"event: still\ndata: {news.still}\n\n"
            age = news.view["age"] + time.monotonic() - news.made
            view = dump({**news.view, "age": round(age, 1), "version": news.version})
            self.wfile.write(f"{text}event: view\ndata: {view}\n\n".encode())
            version, shape = news.version, news.shape

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        body = f"{status.value}: {why}\n".encode()
        self._head(status, "text/plain; charset=utf-8", {"Content-Length": str(len(body))})
        self.end_headers()
        self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, more: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": kind} | _HEADERS | more).items():
            self.send_header(name, value)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: whoever started the server wants their terminal for other things."""


class WatchServer(ThreadingHTTPServer):
    """Serves the live page of one source.

    Parameters
    ----------
    watch : Watch
        What looks at the source.
    host, port : str and int
        Where to listen; port 0 takes one that is free.
    title : str
        Name of what is watched.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, watch: Watch, host: str, port: int, title: str) -> None:
        self.watch, self.host, self.title = watch, host, title
        self.readers = threading.Semaphore(READERS)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise OSError(
                f"cannot listen on {host}:{port} ({error.strerror or error}): "
                "choose another --port (0: one that is free) or --host"
            ) from None

    @property
    def url(self) -> str:
        """The address of the page, for a browser on this machine."""
        host = {"0.0.0.0": LOOPBACK, "::": "::1", "": LOOPBACK}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_address[1]}/"

    def is_own_name(self, host: str) -> bool:
        """Return whether a ``Host`` names this server: an address, this machine, or --host."""
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        name = name.strip("[]").rstrip(".").lower()
        own = {"localhost", self.host.lower(), socket.gethostname().lower(), socket.getfqdn()}
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return bool(name) and name in own
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of browsers that hang up."""


@contextmanager
def serve(source: Source, host: str, port: int, title: str) -> Iterator[WatchServer]:
    """Serve the live page of a source until the block ends.

    Parameters
    ----------
    source : Source
        What is watched. It is looked at once before anything is served: what is wrong with it is
        raised from here.
    host, port, title
        As in `WatchServer`.
    """
    watch = Watch(source)
    server = WatchServer(watch, host, port, title)
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), name="watch-server")
    try:
        watch.start()
    except BaseException:
        server.server_close()
        raise
    thread.start()
    try:
        yield server
    finally:
        watch.stop()
        server.shutdown()
        thread.join()
        server.server_close()
