"""Names in certificates that identify a hub or the operator, and the certificates' files.

A hub is known by one DNS name among its certificate's subject alternative names:
``hub-<id>.mll``. The common name repeats the id for human readers and is never trusted.
``operator.mll`` names the operator, who may ask for a hub's status and for nothing else. No real
host may have a name under ``.mll``; a network file with such a host is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileNotFoundError(
            f"cannot read {path} ({error.strerror}); make the certificates with "
            "`mll-flower certs NETWORK`, or copy this hub's files here"
        ) from error
