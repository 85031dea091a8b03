"""Names in certificates that identify a hub or the operator, and the certificates' files.

A hub is known by one DNS name among its certificate's subject alternative names:
``hub-<id>.mll``. The common name repeats the id for human readers and is never trusted.
``operator.mll`` names the operator, who may ask for a hub's status and for nothing else. No real
host may have a name under ``.mll``; a network file with such a host is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from cryptography import x509
from cryptography.hazmat.primitives import serialization

SUFFIX = ".mll"
"""End of all names that stand for a hub or the operator."""

OPERATOR = "operator"
"""Name of the operator, without the suffix."""


def hub_name(hub: str) -> str:
    """Return the DNS name that stands for a hub in its certificate."""
    return f"hub-{hub}{SUFFIX}"


def operator_name() -> str:
    """Return the DNS name that stands for the operator."""
    return f"{OPERATOR}{SUFFIX}"


def hubs_named(names: Iterable[str]) -> list[str]:
    """Return the ids of the hubs that a certificate names; a valid one names exactly one."""
    return [
        name.removeprefix("hub-").removesuffix(SUFFIX)
        for name in names
        if name.startswith("hub-") and name.endswith(SUFFIX)
    ]


@dataclass(frozen=True)
class TlsFiles:
    """Paths of PEM files: the network's CA, and a certificate that it signed, with its key."""

    ca: Path
    certificate: Path
    key: Path

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return the CA, the certificate and the key as bytes."""
        return _read(self.ca), _read(self.certificate), _read(self.key)


class RenewedFiles:
    """Certificate files that are read again once they have been replaced.

    While only some of them have been replaced, so that the key is not that of the certificate,
    the last good ones stay in use.

    Parameters
    ----------
    tls : TlsFiles
        The files.
    """

    def __init__(self, tls: TlsFiles) -> None:
        self.tls = tls
        self.version = 0
        """Counts how often the files have been replaced."""
        self._lock = Lock()
        self._contents = tls.read()
        self._seen: list[tuple[int, int, int]] = []

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return the CA, the certificate and the key as they are now."""
        with self._lock, suppress(OSError, ValueError):
            stamps = self._stamps()
            if stamps != self._seen:
                contents = self.tls.read()
                if contents != self._contents:
                    _check_pair(*contents)
                    self._contents, self.version = contents, self.version + 1
                self._seen = stamps
        return self._contents

    def _stamps(self) -> list[tuple[int, int, int]]:
        files = (self.tls.ca, self.tls.certificate, self.tls.key)
        return [(s.st_ino, s.st_size, s.st_mtime_ns) for s in map(Path.stat, files)]


def _check_pair(ca: bytes, certificate: bytes, key: bytes) -> None:
    """Raise a ValueError unless the key is that of the certificate, and the CA can be read."""
    x509.load_pem_x509_certificates(ca)
    shown = x509.load_pem_x509_certificate(certificate).public_key()
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    own = serialization.load_pem_private_key(key, None).public_key()
    if shown.public_bytes(*form) != own.public_bytes(*form):
        raise ValueError("the key is not that of the certificate")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileNotFoundError(
            f"cannot read {path} ({error.strerror}); make the certificates with "
            "`mll-flower certs NETWORK`, or copy this hub's files here"
        ) from error
