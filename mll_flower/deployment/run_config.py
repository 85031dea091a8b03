"""The run config of a hub and the node config of a worker, made from the network file.

A network file is the TOML file that describes a deployment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import click
from flwr.common.config import parse_config_args

from mll_flower.algorithm.corrections import SETTINGS
from mll_flower.config import RunConfig
from mll_flower.deployment.network_entries import NetworkFile, NetworkFileError, Value
from mll_flower.tasks.data import absolute_dataset, names_a_path
from mll_flower.tasks.own_code import needs_code_dir
from mll_flower.training.own_work import ALONE, try_own_work

_SET_ELSEWHERE = {
    "hubs": "the [[hub]] tables set it",
    "workers-per-hub": "`workers` of each hub sets it",
    "tau": "`tau` of the network file sets it",
    "q": "`q` of the network file sets it",
    "slots": "`rounds` or `slots` of the network file sets it",
    "absent": "`absent` of the network file sets it",
    "mixing": "`mixing` of the network file sets it",
    "graph": "`edges` or `graph` of the network file sets it",
    "output": "--state sets it",
    "resume": "a hub always goes on from its own checkpoint",
    "pool": "a SuperNode of a deployment is one worker",
    "preset": "a deployment has no presets: set the values themselves",
    "rates": "the rates of a deployment are measured",
    "clock": "a deployment runs in real time",
    "wait-for-all": "a round of a deployment ends at its deadline",
    **{key: f"`{key}` of the network file sets it" for key in SETTINGS},
}
"""Keys of the run config that may not be in a network file's [run-config], and why."""


def hub_run_config(
    network: NetworkFile, hub: str, directory: Path, insecure: bool
) -> dict[str, Value]:
    """Return the run config with which a hub's run is started.

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
        "graph": "complete",  # the network file has the links; this one passes every check
        "tau": network.tau,
        "q": network.q,
        "slots": network.rounds * network.tau,
        "absent": network.absent,
    }
    values.update(task_config(network))
    if values.get("engine", "auto") == "auto":
        # Machines differ, and all workers of a run must compute alike; speed is not needed, as a
        # worker takes at most one step per slot.
        values["engine"] = "autograd"
    checked = {k: v for k, v in values.items() if k in _known_keys()}
    config = RunConfig.from_run_config(checked)
    # Flower takes only values of the types that pyproject.toml has.
    return {k: config.to_run_config()[k] if k in checked else v for k, v in values.items()}


def task_config(network: NetworkFile) -> dict[str, Value]:
    """Return the network's own ``[run-config]``, checked, with its paths made absolute."""
    values: dict[str, Value] = {}
    for key, value in network.run_config.items():
        name = key.replace("_", "-")
        if name in _SET_ELSEWHERE:
            raise NetworkFileError(
                f"{network.path}: run-config: {key}: {_SET_ELSEWHERE[name]}; remove it from there"
            )
        if name not in _known_keys():
            listed = ", ".join(sorted(set(_known_keys()) - set(_SET_ELSEWHERE)))
            raise NetworkFileError(
                f"{network.path}: run-config: {key}: unknown key; the known ones are {listed} (and "
                'those of a Flower app of your own, if app = "PATH" or --app names one)'
            )
        values[name] = value
    return _with_absolute_paths(network, values)


def _with_absolute_paths(network: NetworkFile, values: dict[str, Value]) -> dict[str, Value]:
    data = values.get("data-dir") or os.environ.get("MLL_FLOWER_DATA", "")
    if data:
        values["data-dir"] = str(_absolute(network, str(data)))
    if "dataset" in values:
        values["dataset"] = absolute_dataset(str(values["dataset"]), network.path.parent)
    if "code-dir" in values or needs_code_dir(values):
        values["code-dir"] = str(_absolute(network, str(values.get("code-dir", ""))))
    return values


def has_own_app(network: NetworkFile) -> bool:
    """Return whether a network runs an app of the user's own, as far as its file tells.

    The app may be named on the hubs' command lines alone; then only its keys tell.
    """
    given = {key.replace("_", "-") for key in network.run_config}
    return network.app is not None or not given <= _known_keys()


def own_node_config(network: NetworkFile, text: str = "") -> dict[str, Value]:
    """Return what a worker's node config says about its own data.

    Parameters
    ----------
    network : NetworkFile
        The deployment; relative paths start at the folder of its file.
    text : str
        Pairs as Flower's commands take them, such as ``dataset="npz:own.npz"``.
    """
    # Each machine finds data and code where its own copy of the network file says. The other keys
    # may be those of an app that only the hub has, which checks them.
    given = {key.replace("_", "-"): value for key, value in network.run_config.items()}
    own_app = has_own_app(network)
    if not own_app:
        given = task_config(network)
    own = {key: value for key, value in given.items() if key in ("data-dir", "code-dir")}
    values = _with_absolute_paths(network, own)
    try:
        values.update(parse_config_args([text]))
    except (click.ClickException, OSError) as error:
        raise ValueError(
            f'node-config={text!r}: write pairs with spaces between them, a=1 b="c" ({error})'
        ) from None
    if text and "=" not in text:
        raise ValueError(f'node-config={text!r}: write pairs with spaces between them, a=1 b="c"')
    if "dataset" in values and needs_code_dir({"dataset": values["dataset"]}):
        values.setdefault("code-dir", "")
    for key in ("data-dir", "code-dir"):
        if key in values:
            values[key] = str(_absolute(network, str(values[key])))
    if "dataset" in values:
        values["dataset"] = absolute_dataset(str(values["dataset"]), network.path.parent)
    if not own_app:
        _try_own_work(network, values)
    return values


def _try_own_work(network: NetworkFile, node: Mapping[str, Value]) -> None:
    """Try what the user has written, as a worker will use it, before anything is started."""
    task = task_config(network)
    if "dataset" not in node and names_a_path(str(task.get("dataset", ""))):
        return  # where these data are is the hub's to say
    sizes = {
        "hubs": len(network.hubs),
        "workers-per-hub": ",".join(str(entry.workers) for entry in network.hubs),
        "graph": "complete",
    }
    config = RunConfig.from_run_config({**sizes, **task}, check=False).at_node(node)
    if config.own_work:
        config.check()
        try_own_work(config, ALONE if "dataset" in node else None)


def _known_keys() -> set[str]:
    return {field.name.replace("_", "-") for field in fields(RunConfig)}


def _absolute(network: NetworkFile, path: str) -> Path:
    return (network.path.parent / Path(path).expanduser()).absolute()
