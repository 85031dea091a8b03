"""Who a hub is: names in certificates, and the files that hold them.

A hub is known by one DNS name in its certificate's subject alternative names:
``hub-<id>.mll``. The common name repeats the id for people to read and is never trusted.
``operator.mll`` names the operator, who may ask for a hub's status and nothing else.
No real host may have a name under ``.mll`` (`load_network` sees to that).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SUFFIX = ".mll"
OPERATOR = "operator"


def hub_name(hub: str) -> str:
    """The DNS name that stands for a hub in its certificate."""
    return f"hub-{hub}{SUFFIX}"


def operator_name() -> str:
    """The DNS name that stands for the operator."""
    return f"{OPERATOR}{SUFFIX}"


def hubs_named(names: Iterable[str]) -> list[str]:
    """Ids of the hubs that a certificate's names stand for; a good one names exactly one."""
    return [
        name.removeprefix("hub-").removesuffix(SUFFIX)
        for name in names
        if name.startswith("hub-") and name.endswith(SUFFIX)
    ]


@dataclass(frozen=True)
class TlsFiles:
    """Paths of PEM files: the network's CA, and a certificate of it with its key."""

    ca: Path
    certificate: Path
    key: Path

    def read(self) -> tuple[bytes, bytes, bytes]:
        """CA, certificate and key as bytes."""
        return _read(self.ca), _read(self.certificate), _read(self.key)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileNotFoundError(
            f"cannot read {path} ({error.strerror}); make the certificates with "
            "`mll-flower certs NETWORK`, or copy this hub's files here"
        ) from error
