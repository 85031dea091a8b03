"""The commands of Flower's that start the hubs and workers of a deployment.

They are made from the network file, the TOML file that describes the deployment.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mll_flower.deployment.credentials import worker_credentials
from mll_flower.deployment.hub_state import SUPERLINK_DATABASE
from mll_flower.deployment.network_entries import (
    HubEntry,
    NetworkFile,
    NetworkFileError,
    Value,
    host_of,
    port_of,
)
from mll_flower.processes.config_pairs import config_pairs
from mll_flower.processes.flower_environment import flower_environment
from mll_flower.processes.private_certificate import CERTIFICATE, KEY
from mll_flower.processes.superlink import CONNECTION
from mll_flower.processes.warm.settings import WarmSettings
from mll_flower.processes.warm.supernode import supernode_words


def deployment_environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's commands in a deployment, with a home of their own."""
    home.mkdir(parents=True, exist_ok=True)
    return {
        # Instead of 1 s: a round has no second to waste.
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
        **flower_environment(home),
        "GRPC_VERBOSITY": "ERROR",
    }


def superlink_command(
    entry: HubEntry, directory: Path, private: str, keys: Sequence[Path], insecure: bool
) -> list[str]:
    """Return the command of a hub's SuperLink, which answers nobody but workers on its port.

    Parameters
    ----------
    entry : HubEntry
        The hub.
    directory : Path
        Where its state is kept, and the certificate that `make_private_certificate` has made.
    private : str
        ``host:port`` on loopback for the hub itself.
    keys : Sequence[Path]
        Public keys of the workers.
    insecure : bool
        Without TLS and authentication.
    """
    command = [sys.executable, "-m", "mll_flower.processes.guarded_superlink"]
    command += ["--listen", entry.superlink_listen]
    command += ["--host", host_of(private), "--port", str(port_of(private))]
    # On disk, so that the workers' registrations and node ids outlive a restart.
    command += ["--database", str(directory / SUPERLINK_DATABASE)]
    if insecure:
        return [*command, "--insecure"]
    for key in keys:
        command += ["--worker-key", str(key)]
    for option, file in (("--private-certificate", CERTIFICATE), ("--private-key", KEY)):
        command += [option, str(directory / file)]
    tls = entry.tls
    command += ["--ssl-ca-certfile", str(tls.ca), "--ssl-certfile", str(tls.certificate)]
    return [*command, "--ssl-keyfile", str(tls.key), "--enable-supernode-auth"]


def supernode_command(
    network: NetworkFile,
    hub: str,
    number: int,
    port: int,
    node_config: Mapping[str, Value],
    insecure: bool,
    settings: WarmSettings | None = None,
) -> list[str]:
    """Return the command of a worker's SuperNode.

    Parameters
    ----------
    network : NetworkFile
        The deployment.
    hub, number : str and int
        The worker's hub, and which of the hub's workers it is, from 0.
    port : int
        A free port for the SuperNode's own processes, which nobody else can reach.
    node_config : Mapping
        Its node config.
    insecure : bool
        Without TLS and authentication.
    settings : WarmSettings, optional
        How its ClientApp is run.
    """
    words = ["--superlink", network.hub(hub).superlink]
    words += ["--host", "127.0.0.1", "--port", str(port)]
    words += ["--node-config", config_pairs(node_config)]
    if insecure:
        words += ["--insecure"]
    else:
        ca, key = worker_credentials(network, hub, number)
        words += ["--root-certificates", str(ca), "--auth-supernode-private-key", str(key)]
    return supernode_words(settings or WarmSettings(), words)


def submit_command(app: Path, config: Mapping[str, Value], keys: Sequence[Path]) -> list[str]:
    """Return the command that registers a hub's workers and starts its run.

    Parameters
    ----------
    app : Path
        The Flower app's folder.
    config : Mapping
        The run config.
    keys : Sequence[Path]
        Public keys of the workers.
    """
    command = [sys.executable, "-m", "mll_flower.processes.submit", CONNECTION, str(app)]
    return [*command, config_pairs(config), *(str(key) for key in keys)]


def worker_node_config(network: NetworkFile, hub: str, number: int) -> dict[str, Value]:
    """Return a worker's place in the network: its number among the workers of all hubs."""
    workers = network.hub(hub).workers
    if not 0 <= number < workers:
        raise NetworkFileError(
            f"{network.path}: hub {hub} has {workers} workers, 0 to {workers - 1}, and no "
            f"number {number}: raise `workers` of that hub and run `mll-flower certs --extend`"
        )
    place = number
    for entry in network.hubs:
        if entry.id == hub:
            break
        place += entry.workers
    total = sum(entry.workers for entry in network.hubs)
    return {"partition-id": place, "num-partitions": total, "hub": hub, "number": number}
