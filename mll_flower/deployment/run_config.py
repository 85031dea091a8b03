"""The run config of a hub, from its network file."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import click
from flwr.common.config import parse_config_args

from mll_flower.config import RunConfig
from mll_flower.deployment.network_entries import NetworkFile, NetworkFileError, Value
from mll_flower.tasks.data import absolute_dataset

_DECIDED = {
    "hubs": "[[hub]] tables",
    "workers-per-hub": "`workers` of each hub",
    "tau": "`tau`",
    "q": "`q`",
    "slots": "`rounds` or `slots`",
    "absent": "`absent`",
    "mixing": "`mixing`",
    "graph": "`edges` or `graph`",
    "output": "--state",
    "resume": "the hub's own checkpoint",
    "pool": "nothing: a SuperNode is one worker",
    "preset": "nothing: set the values themselves",
    "rates": "nothing: rates are measured",
    "wait-for-all": "nothing: a round ends at its deadline",
}
"""Keys of the run config that the network file, or its nature, decides."""


def hub_run_config(
    network: NetworkFile, hub: str, directory: Path, insecure: bool
) -> dict[str, Value]:
    """Values of the run config with which a hub's run is started.

    Parameters
    ----------
    network : NetworkFile
        The deployment.
    hub : str
        Id of the hub.
    directory : Path
        Where it keeps its checkpoint and its records.
    insecure : bool
        Whether it gossips without TLS.
    """
    values: dict[str, Value] = {
        "role": "hub",
        "network": str(network.path.absolute()),
        "hub": network.hub(hub).id,
        "run-name": network.name,
        "insecure": insecure,
        "output": str(directory.absolute()),
        "hubs": len(network.hubs),
        "workers-per-hub": ",".join(str(entry.workers) for entry in network.hubs),
        "graph": "complete",
        "tau": network.tau,
        "q": network.q,
        "slots": network.rounds * network.tau,
        "absent": network.absent,
    }
    values.update(task_config(network))
    checked = {k: v for k, v in values.items() if k in _types()}
    config = RunConfig.from_run_config(checked)
    # Flower wants the types that pyproject.toml has.
    return {k: config.to_run_config()[k] if k in checked else v for k, v in values.items()}


def task_config(network: NetworkFile) -> dict[str, Value]:
    """Return the network's own ``[run-config]``, checked, with its paths made absolute."""
    values: dict[str, Value] = {}
    for key, value in network.run_config.items():
        name = key.replace("_", "-")
        if name in _DECIDED:
            raise NetworkFileError(
                f"{network.path}: run-config: {key}: a network file sets this by {_DECIDED[name]}; "
                "remove it here"
            )
        if name not in _types():
            listed = ", ".join(sorted(set(_types()) - set(_DECIDED)))
            raise NetworkFileError(
                f"{network.path}: run-config: {key}: unknown key; the known ones are {listed}"
            )
        values[name] = value
    data = values.get("data-dir") or os.environ.get("MLL_FLOWER_DATA", "")
    if data:
        values["data-dir"] = str(_beside(network, str(data)))
    if "dataset" in values:
        values["dataset"] = absolute_dataset(str(values["dataset"]), network.path.parent)
    return values


def own_node_config(network: NetworkFile, text: str = "") -> dict[str, Value]:
    """Return what a worker's node config says of its own data.

    Parameters
    ----------
    network : NetworkFile
        The deployment; relative paths start at its file.
    text : str
        Pairs as Flower's commands take them, such as ``dataset="npz:own.npz"``.
    """
    # Each machine has its data where its own copy of the network file says.
    values = {key: value for key, value in task_config(network).items() if key == "data-dir"}
    try:
        values.update(parse_config_args([text]))
    except (click.ClickException, OSError) as error:
        raise ValueError(
            f'node-config={text!r}: write pairs with spaces between, a=1 b="c" ({error})'
        ) from None
    if text and "=" not in text:
        raise ValueError(f'node-config={text!r}: write pairs with spaces between, a=1 b="c"')
    if "data-dir" in values:
        values["data-dir"] = str(_beside(network, str(values["data-dir"])))
    if "dataset" in values:
        values["dataset"] = absolute_dataset(str(values["dataset"]), network.path.parent)
    return values


def _types() -> set[str]:
    return {field.name.replace("_", "-") for field in fields(RunConfig)}


def _beside(network: NetworkFile, path: str) -> Path:
    return (network.path.parent / Path(path).expanduser()).absolute()
