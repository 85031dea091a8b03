"""Averages of all hubs and their mixing in one pass, for hubs that all mix alike.

On a complete graph every hub ends a mixing with the same model. The hubs' averages are then needed
only block by block: four hubs with a model of 210 MB take 1.1 times the memory of Flower's FedAvg,
and 1.4 times if each average is kept until the mixing (``python -m benchmarks.large_models``). The
result is that of `sum_records` and `mix_models` to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Array

from mll_flower.models.layout import Flat, Layout, Vector
from mll_flower.models.sums import blocks, vector_is_finite, weighted_sum


@dataclass(frozen=True)
class Summands:
    """A hub's average z(d) as what it is the sum of.

    Parameters
    ----------
    records : Sequence of records
        The models.
    factors : Sequence[float]
        One factor for each.
    """

    records: Sequence[Mapping[str, Array | Vector]]
    factors: Sequence[float]


def average_and_mix(
    layout: Layout, hubs: Sequence[Summands], column: Sequence[float]
) -> Flat | None:
    """Return the sum of ``column[d] * z(d)`` over the hubs; None if some z(d) is not finite.

    Parameters
    ----------
    layout : Layout
        The layout of all models.
    hubs : Sequence[Summands]
        z(d) of the hubs that the column refers to.
    column : Sequence[float]
        The weights of the mix, which is the same for all hubs.
    """
    hubs = [hub for hub, weight in zip(hubs, column, strict=True) if weight]
    column = [weight for weight in column if weight]
    mixed = layout.empty()
    rows = [layout.rows(hub.records) for hub in hubs]
    for index, place in enumerate(layout.places):
        views = [place.views([row[index] for row in models]) for models in rows]
        into = mixed[place.dtype][place.slice]
        for block in blocks(place.count):
            averages = [
                weighted_sum([vector[block] for vector in vectors], hub.factors)
                for vectors, hub in zip(views, hubs, strict=True)
            ]
            if not all(map(vector_is_finite, averages)):
                return None
            weighted_sum(averages, column, out=into[block])
    return mixed
