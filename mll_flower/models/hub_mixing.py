"""Mixing when all hubs' models are in one place: y(d) = sum over j of H[j, d] z(j).

z(j) is hub j's average of its workers' models, y(d) the new model of hub d. A hub that sees only
its neighbours' models mixes with `mll_flower.gossip.local_mixing`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mll_flower.models.layout import Flat
from mll_flower.models.sums import sum_models


def mix_models(models: Sequence[Flat], matrix: NDArray[np.float64]) -> list[Flat]:
    """Mix the models of all hubs, each from the same z.

    Parameters
    ----------
    models : Sequence[Flat]
        z(d), one per hub.
    matrix : ndarray, D x D
        H; column d holds the weights of hub d's mix.

    Returns
    -------
    list of Flat
        y(d), one per hub.
    """
    mixed = []
    for column in np.asarray(matrix).T:
        sources = np.flatnonzero(column).tolist()
        mixed.append(sum_models([models[j] for j in sources], [float(column[j]) for j in sources]))
    return mixed
