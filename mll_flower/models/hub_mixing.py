"""Mixing when all hubs' models are in one place: y(d) = sum over j of H[j, d] z(j).

z(j) is hub j's average of its workers' models, y(d) the new model of hub d. A hub that sees only
its neighbours' models mixes with `mll_flower.gossip.local_mixing`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mll_flower.models.layout import Flat, Vector
from mll_flower.models.sums import blocks, sum_models, weighted_sum


def mix_models(
    models: Sequence[Flat], matrix: NDArray[np.float64], overwrite: bool = False
) -> list[Flat]:
    """Mix the models of all hubs, each from the same z.

    Parameters
    ----------
    models : Sequence[Flat]
        z(d), one per hub.
    matrix : ndarray, D x D
        H; column d holds the weights of hub d's mix.
    overwrite : bool
        Whether y may be written over z, which saves the memory of D models. No two hubs may
        then share a model.

    Returns
    -------
    list of Flat
        y(d), one per hub. If all hubs mix alike, they share one model.
    """
    columns = [_sources_and_factors(column) for column in np.asarray(matrix).T]
    if all(column == columns[0] for column in columns):
        sources, factors = columns[0]
        return [sum_models([models[j] for j in sources], factors)] * len(models)
    if overwrite:
        for dtype in models[0]:
            _mix_in_place([model[dtype] for model in models], columns)
        return list(models)
    return [sum_models([models[j] for j in sources], factors) for sources, factors in columns]


def _sources_and_factors(column: NDArray[np.float64]) -> tuple[list[int], list[float]]:
    sources = np.flatnonzero(column).tolist()
    return sources, [float(column[j]) for j in sources]


def _mix_in_place(vectors: list[Vector], columns: list[tuple[list[int], list[float]]]) -> None:
    """Mix vectors block by block; a block of all hubs is mixed before any of it is overwritten."""
    for block in blocks(vectors[0].size):
        parts = [vector[block] for vector in vectors]
        mixed = [weighted_sum([parts[j] for j in sources], w) for sources, w in columns]
        for part, result in zip(parts, mixed, strict=True):
            part[...] = result
