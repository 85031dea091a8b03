"""A Flower app of the user's own in a deployment: find it, and make its run config.

The network file names the app's folder as ``app``; ``mll-flower hub --app`` and ``up --app`` take
its place. The keys of the network file's ``[run-config]`` are then those of the app, with the types
that its pyproject.toml gives them, and a few of the library's own.
"""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

from flwr.common.config import flatten_dict

from mll_flower.deployment.network_entries import NetworkFile, NetworkFileError, Value

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}

WEIGHTS = ("examples", "equal")

LIBRARY_KEYS = ("node-timeout", "weights", "data-dir", "tensorboard")
"""Keys of ``[run-config]`` that the library uses with any app; it may have them, too."""


def app_run_config(network: NetworkFile, app: Path) -> dict[str, Value]:
    """Return the network's ``[run-config]`` as the app's run config, checked.

    Parameters
    ----------
    network : NetworkFile
        The deployment.
    app : Path
        The app's folder, with its pyproject.toml.

    Raises
    ------
    ValueError
        The folder holds no Flower app, or a key or a value is not known to it.
    """
    known = app_keys(app)
    values: dict[str, Value] = {}
    for key, value in network.run_config.items():
        where = f"{network.path}: run-config: {key}"
        name = key if key in known else key.replace("_", "-")
        if name in LIBRARY_KEYS:
            _check_library_key(where, name, value)
        if name in known:
            values[name] = _typed(where, value, known[name])
        elif name not in LIBRARY_KEYS:
            raise NetworkFileError(
                f"{where}: neither the app in {app} nor the library knows this key; the app's "
                f"keys, in [tool.flwr.app.config] of its pyproject.toml, are "
                f"{', '.join(known) or 'none'}; the library's are {', '.join(LIBRARY_KEYS)}"
            )
    return values


def check_state_outside(app: Path, folder: Path) -> None:
    """Raise an error if a hub's state is in the app's folder: Flower would send it to workers."""
    if folder.resolve().is_relative_to(app.resolve()):
        raise ValueError(
            f"{folder}, the hub's state, lies in the folder of the app, {app}, which Flower sends "
            "to the workers: keep the network file outside that folder, or use --state"
        )


def app_keys(app: Path) -> dict[str, Any]:
    """Return the run config of a Flower app with its defaults; errors say what is wrong with it."""
    path = app / "pyproject.toml"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"app {app}: {path} cannot be read ({error}): give the folder of a Flower app, with "
            "its pyproject.toml"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"app {app}: {path} is not TOML: {error}") from None
    flower = table.get("tool", {}).get("flwr", {}).get("app", {})
    missing = {"serverapp", "clientapp"} - set(flower.get("components", {}))
    if missing:
        raise ValueError(
            f"app {app}: {path} names no {' and no '.join(sorted(missing))} in "
            "[tool.flwr.app.components]: give the folder of a Flower app"
        )
    return dict(flatten_dict(flower.get("config", {})))


def _typed(where: str, value: Value, default: Any) -> Value:
    """Return a value with the type of the app's default: Flower takes no other."""
    if type(value) is type(default):
        return value
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    raise NetworkFileError(
        f"{where}: {value!r} is of another type than the app's own {default!r}: give "
        f"{_KINDS[type(default)]}"
    )


def _check_library_key(where: str, name: str, value: Value) -> None:
    if name == "node-timeout":
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(float(value)) or float(value) <= 0:
            raise NetworkFileError(f"{where}: {value!r}: use a positive number of seconds")
    if name == "weights" and value not in WEIGHTS:
        raise NetworkFileError(
            f"{where}: {value!r}: with an app of your own use one of {', '.join(WEIGHTS)} (the "
            "metric of each reply that the app's weighted_by_key names, or all the same)"
        )
