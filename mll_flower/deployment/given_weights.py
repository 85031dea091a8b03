"""The workers' weights that a network file gives, beyond which a hub believes none of its workers.

Workers report their weights themselves. Where the file gives them, ``weights = "equal"`` or one
number per worker, no worker of a hub counts more than the largest that the file gives there.
"""

from __future__ import annotations

from mll_flower.config import RunConfig
from mll_flower.deployment.network_entries import NetworkFile


def largest_weight(network: NetworkFile, hub: str) -> float | None:
    """Return the largest weight of a hub's workers, and None if the file does not bound it.

    Parameters
    ----------
    network : NetworkFile
        The deployment. Its ``max-examples`` counts as well, if it is smaller.
    hub : str
        Id of the hub.
    """
    bounds = [] if network.trust.max_examples is None else [float(network.trust.max_examples)]
    given = _weights_of(network, hub)
    return min([*bounds, max(given)] if given else bounds, default=None)


def given_weight(network: NetworkFile, hub: str) -> float | None:
    """Return the sum of the weights that the file gives a hub's workers; None if it gives none.

    This is what the hub weighs before any of its workers has reported its weight.

    Parameters
    ----------
    network : NetworkFile
        The deployment.
    hub : str
        Id of the hub.
    """
    most = largest_weight(network, hub)
    return None if most is None else sum(min(w, most) for w in _weights_of(network, hub)) or None


def _weights_of(network: NetworkFile, hub: str) -> list[float]:
    """Return the weights that the file gives the workers of a hub; none for an app of one's own."""
    if network.app is not None or network.run_config.get("weights", "examples") == "examples":
        return []
    given = given_weights(network).network().w
    places = (place for entry in network.hubs for place in [entry.id] * entry.workers)
    return [float(w) for w, id in zip(given, places, strict=True) if id == hub]


def given_weights(network: NetworkFile) -> RunConfig:
    """Return a run config with the hubs, workers and weights of a network file."""
    return RunConfig(
        hubs=len(network.hubs),
        workers_per_hub=",".join(str(entry.workers) for entry in network.hubs),
        graph="complete",
        weights=str(network.run_config.get("weights", "examples")),
    )
