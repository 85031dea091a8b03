"""What the hubs of a deployment must agree on, from each hub's own copy of the network file.

Hubs compare these terms before they train and at every mixing (`mll_flower.gossip.agreement`). What
may differ from site to site is not among them: addresses, folders, where the data are, the number
of workers, the length of the run, and the graph, which grows while other hubs go on.
"""

from __future__ import annotations

import hashlib
from dataclasses import MISSING, fields
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from mll_flower.config import RunConfig
from mll_flower.deployment.network_entries import NetworkFile, Value
from mll_flower.models.layout import Layout

_SHARED = {
    "dataset", "model", "loss", "augment", "optimiser", "engine", "batch-size",
    "learning-rate", "lr-milestones", "lr-factor", "momentum", "weight-decay", "weights",
    "partition", "seed",
}  # fmt: skip
"""Settings of a run that must be the same everywhere."""


def shared_terms(network: NetworkFile) -> dict[str, Value]:
    """Return what all hubs of a network must have in common.

    Parameters
    ----------
    network : NetworkFile
        This hub's copy of the network file.
    """
    terms: dict[str, Value] = {
        "tau": network.tau,
        "q": network.q,
        "slot": network.slot,
        "absent": network.absent,
        "mixing": network.mixing
        if isinstance(network.mixing, str)
        else f"the file {_digest(network.mixing.read_bytes())}",
        "Flower": ".".join(_version("flwr").split(".")[:2]),
        "mll-flower": _version("mll-flower"),
    }
    return {**terms, **network.corrections.to_keys(), **_settings(network)}


def layout_term(layout: Layout) -> str:
    """Return a model's layout as a term: hubs whose models differ in it cannot mix."""
    entries = sum(int(np.prod(shape)) for shape in layout.shapes)
    text = repr((layout.names, layout.shapes, layout.dtypes))
    return f"{len(layout.names)} arrays, {entries} entries, {_digest(text.encode())}"


def _settings(network: NetworkFile) -> dict[str, Value]:
    """Return the settings of the run, with defaults; those of an app of one's own as they are."""
    known = {field.name.replace("_", "-"): field.default for field in fields(RunConfig)}
    given = {key.replace("_", "-"): value for key, value in network.run_config.items()}
    settings: dict[str, Value] = {}
    for key in sorted(_SHARED | (given.keys() - known.keys())):
        value = given.get(key, known.get(key, MISSING))
        if isinstance(value, bool | int | float | str):
            settings[key] = value
    kind, colon, _ = str(settings.get("dataset", "")).partition(":")
    if kind in ("npz", "hf", "image-folder"):
        settings["dataset"] = kind + colon  # each site has its own path to it
    return settings


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
