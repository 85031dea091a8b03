"""Which certificates and keys each hub, each worker and the operator of a deployment needs.

Also checks that they exist and are valid today, before anything is started.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mll_flower.deployment.certs import operator_files, public_key, worker_key
from mll_flower.deployment.expiry import check_dates
from mll_flower.deployment.network_entries import NetworkFile


def hub_credentials(network: NetworkFile, hub: str) -> list[Path]:
    """Return what a hub needs: the CA, its certificate, its key, its workers' public keys."""
    tls = network.hub(hub).tls
    return [tls.ca, tls.certificate, tls.key, *hub_worker_keys(network, hub)]


def hub_worker_keys(network: NetworkFile, hub: str) -> list[Path]:
    """Return the public keys of a hub's workers, which it registers with its SuperLink."""
    workers = range(network.hub(hub).workers)
    return [public_key(worker_key(network.certs, hub, number)) for number in workers]


def worker_credentials(network: NetworkFile, hub: str, number: int) -> tuple[Path, Path]:
    """Return what a worker needs: the CA and its own private key."""
    return network.hub(hub).tls.ca, worker_key(network.certs, hub, number)


def operator_credentials(network: NetworkFile) -> list[Path]:
    """Return what the operator needs: the CA, a certificate and its key."""
    tls = operator_files(network.certs)
    return [tls.ca, tls.certificate, tls.key]


def check_credentials(network: NetworkFile, needed: Sequence[Path], insecure: bool) -> None:
    """Raise an error that names the remedy if a certificate or key is missing, or expired."""
    missing = [path for path in needed if not path.is_file()]
    if missing and not insecure:
        raise FileNotFoundError(
            f"{missing[0]} does not exist, and nothing runs without TLS unless it is asked for: "
            f"make the certificates with `mll-flower certs {network.path}`, copy them here, or "
            "use --insecure (every model and every instruction then travels in the clear, and "
            "anyone may pose as a hub or a worker)"
        )
    if not insecure:
        check_dates(network, [path for path in needed if path.suffix == ".crt"])
