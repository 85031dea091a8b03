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
    weights = str(network.run_config.get("weights", "examples"))
    if network.app is None and weights != "examples":
        given = given_weights(network).network().w
        places = (place for entry in network.hubs for place in [entry.id] * entry.workers)
        bounds.append(max(float(w) for w, id in zip(given, places, strict=True) if id == hub))
    return min(bounds, default=None)


def given_weights(network: NetworkFile) -> RunConfig:
    """Return a run config with the hubs, workers and weights of a network file."""
    return RunConfig(
        hubs=len(network.hubs),
        workers_per_hub=",".join(str(entry.workers) for entry in network.hubs),
        graph="complete",
        weights=str(network.run_config.get("weights", "examples")),
    )
