"""One round of a hub whose workers are trained in this process, one after another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mll_flower.models.layout import Flat
from mll_flower.models.subnetwork_average import AbsentRule, WorkerAbsent, subnetwork_average
from mll_flower.models.sums import RunningSum, is_finite


def play_round(
    hub: Flat,
    v: Sequence[float],
    counts: NDArray[np.int64],
    losses: NDArray[np.float64],
    train: Callable[[int], tuple[float, Flat]],
    absent_rule: AbsentRule,
) -> tuple[Flat, dict[int, str]]:
    """Train the workers that take steps, and average all of them.

    Parameters
    ----------
    hub : Flat
        The model that the hub sends; not changed.
    v : Sequence[float]
        The workers' shares, or weights in that proportion.
    counts : ndarray
        Steps of each worker; set to 0 for the absent.
    losses : ndarray
        Where to write the training loss of each worker that takes a step; nan elsewhere.
    train : callable
        Trains the worker at this place from the hub's model; returns its loss and its model,
        which need last only until the next call. Called again for the same worker it returns
        the same.
    absent_rule : {"keep", "renormalise"}
        What becomes of the share of an absent worker.

    Returns
    -------
    flat : Flat
        The sub-network average.
    absent : dict
        Place of each absent worker -> why it is absent.
    """
    taken = counts.tolist()

    def model_of(place: int) -> Flat:
        if not taken[place]:
            return hub
        try:
            losses[place], model = train(place)
        except Exception as error:  # one worker's failure is not the hub's
            raise WorkerAbsent(f"{type(error).__name__}: {error}") from error
        return model

    average = subnetwork_average(hub, v, model_of, absent_rule, RunningSum, is_finite)
    for place in average.absent:
        losses[place], counts[place] = math.nan, 0
    return hub if average.model is None else average.model, average.absent
