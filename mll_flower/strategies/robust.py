"""Flower's robust strategies by name, to aggregate inside a hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.serverapp.strategy import Bulyan, FedMedian, FedTrimmedAvg, Krum, MultiKrum, Strategy

ROBUST: dict[str, Callable[..., Strategy]] = {
    "fedmedian": FedMedian,
    "fedtrimmedavg": FedTrimmedAvg,
    "krum": Krum,
    "multikrum": MultiKrum,
    "bulyan": Bulyan,
}
"""The strategies that bear some workers which send anything."""


def robust_strategy(name: str, **arguments: Any) -> Callable[[int], Strategy]:
    """Return a function that makes the strategy of a hub, as ``inner_strategy`` takes it.

    Parameters
    ----------
    name : str
        One of `ROBUST`.
    **arguments
        Arguments of the strategy.
    """
    if name not in ROBUST:
        raise ValueError(f"inner strategy {name!r}: choose one of {', '.join(ROBUST)}")
    return lambda hub: ROBUST[name](**arguments)
