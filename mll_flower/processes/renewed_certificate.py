"""A server that takes a renewed certificate while it runs, for connections from then on."""

from __future__ import annotations

import ssl
import threading
from contextlib import suppress
from pathlib import Path

PAUSE = 10.0
"""Seconds between two looks at the files."""


def follow_renewals(
    context: ssl.SSLContext, certificate: Path, key: Path, pause: float = PAUSE
) -> threading.Event:
    """Load a certificate and its key again whenever the files have been replaced.

    Parameters
    ----------
    context : ssl.SSLContext
        The server's, which has loaded them once.
    certificate, key : Path
        The files.
    pause : float
        Seconds between two looks at them.

    Returns
    -------
    threading.Event
        Set it to look no more.
    """
    over = threading.Event()
    seen = _contents(certificate, key)

    def follow() -> None:
        nonlocal seen
        while not over.wait(pause):
            with suppress(OSError):  # a file is missing while it is replaced
                now = _contents(certificate, key)
                # Of a pair that does not match, because one half is still the old one, nothing
                # may be loaded: so in a context of its own first.
                if now != seen and _match(certificate, key):
                    context.load_cert_chain(certificate, key)
                    seen = now

    threading.Thread(target=follow, name="renewed certificate", daemon=True).start()
    return over


def _contents(*files: Path) -> list[bytes]:
    return [path.read_bytes() for path in files]


def _match(certificate: Path, key: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError:
        return False
    return True
