"""Flower's commands for the hubs and workers of a network file."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from mll_flower.deployment.certs import worker_key
from mll_flower.deployment.network_entries import HubEntry, NetworkFile, NetworkFileError, Value
from mll_flower.processes.simulation import flower_environment

CONNECTION = "hub"
"""Name of the hub's SuperLink in the Flower config of its own."""


def state_directory(network: NetworkFile, state: Path | None = None) -> Path:
    """Where hubs and workers keep their state: given, or ``state`` beside the network file."""
    return (state or network.path.parent / "state").absolute()


def hub_directory(network: NetworkFile, hub: str, state: Path | None = None) -> Path:
    """Where a hub keeps its checkpoint, its records and its Flower home."""
    return state_directory(network, state) / f"hub-{network.hub(hub).id}"


def worker_directory(
    network: NetworkFile, hub: str, number: int, state: Path | None = None
) -> Path:
    """Where a worker keeps its Flower home."""
    return state_directory(network, state) / f"worker-{network.hub(hub).id}-{number}"


def check_worker(network: NetworkFile, hub: str, number: int) -> None:
    """Raise `NetworkFileError` unless the network has this worker."""
    workers = network.hub(hub).workers
    if not 0 <= number < workers:
        raise NetworkFileError(
            f"{network.path}: hub {hub} has {workers} workers, 0 to {workers - 1}; there is no "
            f"number {number}: raise `workers` of that hub and run `mll-flower certs --extend`"
        )


def check_files(network: NetworkFile, needed: Sequence[Path], insecure: bool) -> None:
    """Raise an error that names the remedy unless the certificates and keys are there."""
    missing = [path for path in needed if not path.is_file()]
    if missing and not insecure:
        raise FileNotFoundError(
            f"{missing[0]} is not there, and nothing runs without TLS unless it is asked for: "
            f"make the certificates with `mll-flower certs {network.path}`, copy them here, or "
            "say --insecure (every model and every order then travels in the clear, and anyone "
            "may pose as a hub or a worker)"
        )


def hub_secrets(network: NetworkFile, hub: str) -> list[Path]:
    """Files that a hub needs: its certificate, its key, the CA, its workers' public keys."""
    entry = network.hub(hub)
    keys = [public_key(network, hub, number) for number in range(entry.workers)]
    return [entry.tls.ca, entry.tls.certificate, entry.tls.key, *keys]


def worker_secrets(network: NetworkFile, hub: str, number: int) -> list[Path]:
    """Files that a worker needs: the CA and its own private key."""
    return [network.hub(hub).tls.ca, worker_key(network.certs, hub, number)]


def public_key(network: NetworkFile, hub: str, number: int) -> Path:
    """Public key of a hub's worker."""
    private = worker_key(network.certs, hub, number)
    return private.with_name(f"{private.name}.pub")


def environment(home: Path) -> dict[str, str]:
    """Environment of Flower's commands, with a home of their own."""
    home.mkdir(parents=True, exist_ok=True)
    return {
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",  # of 1 s: a round has no second to waste
        **flower_environment(home),
        "GRPC_VERBOSITY": "ERROR",
    }


def superlink_words(entry: HubEntry, directory: Path, insecure: bool) -> list[str]:
    """Build the command of a hub's SuperLink."""
    host, port = entry.superlink_listen
    words = ["flower-superlink", "--host", host, "--port", str(port)]
    # On disk, so that the workers' registrations and node ids outlive a restart.
    words += ["--database", str(directory / "superlink.db")]
    if insecure:
        return [*words, "--insecure"]
    tls = entry.tls
    words += ["--ssl-ca-certfile", str(tls.ca), "--ssl-certfile", str(tls.certificate)]
    return [*words, "--ssl-keyfile", str(tls.key), "--enable-supernode-auth"]


def supernode_words(
    network: NetworkFile,
    hub: str,
    number: int,
    port: int,
    node_config: Mapping[str, Value],
    insecure: bool,
) -> list[str]:
    """Build the command of a worker's SuperNode, whose own port stays on this machine."""
    words = ["flower-supernode", "--superlink", network.hub(hub).superlink]
    words += ["--host", "127.0.0.1", "--port", str(port)]
    words += ["--node-config", pairs(node_config)]
    if insecure:
        return [*words, "--insecure"]
    ca, key = worker_secrets(network, hub, number)
    return [*words, "--root-certificates", str(ca), "--auth-supernode-private-key", str(key)]


def node_config(network: NetworkFile, hub: str, number: int) -> dict[str, Value]:
    """Return a worker's place in the network: its number among the workers of all hubs."""
    place = number
    for entry in network.hubs:
        if entry.id == hub:
            break
        place += entry.workers
    total = sum(entry.workers for entry in network.hubs)
    return {"partition-id": place, "num-partitions": total, "hub": hub, "number": number}


def local_address(entry: HubEntry) -> str:
    """``host:port`` of a hub's SuperLink, seen from the hub's own machine."""
    host, port = entry.superlink_listen
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def write_connection(entry: HubEntry, home: Path, insecure: bool) -> None:
    """Tell the ``flwr`` command in this home of the hub's SuperLink."""
    trust = "insecure = true" if insecure else f"root-certificates = '{entry.tls.ca.absolute()}'"
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        f'address = "{local_address(entry)}"\n{trust}\n'
    )


def is_up(entry: HubEntry, insecure: bool) -> bool:
    """Whether the hub's SuperLink answers."""
    scheme = "http" if insecure else "https"
    trust = False if insecure else ssl.create_default_context(cafile=str(entry.tls.ca))
    try:
        reply = httpx.get(
            f"{scheme}://{local_address(entry)}/health", timeout=1.0, verify=trust, trust_env=False
        )
    except httpx.HTTPError:
        return False
    return reply.is_success


def submit_words(app: Path, config: Mapping[str, Value], keys: Sequence[Path]) -> list[str]:
    """Build the command that registers a hub's workers and starts its run."""
    words = [sys.executable, "-m", "mll_flower.deployment.submit", CONNECTION, str(app)]
    return [*words, pairs(config), *(str(key) for key in keys)]


def pairs(values: Mapping[str, Value]) -> str:
    """Spell values as Flower's commands want them: TOML, with spaces between."""
    return " ".join(f"{key}={_toml(value)}" for key, value in values.items())


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        if any(mark in value for mark in "'\"\n\\"):
            raise ValueError(f"{value!r}: no quotes, backslashes or line breaks in these values")
        return f'"{value}"'
    return repr(value)
