"""One round of a hub: its workers' models become the sub-network average one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mll_flower.averaging import AbsentRule, absent_factors, is_finite
from mll_flower.layout import Flat
from mll_flower.tasks.engine_sum import RunningSum


def play_round(
    hub: Flat,
    v: Sequence[float],
    counts: NDArray[np.int64],
    losses: NDArray[np.float64],
    train: Callable[[int], tuple[float, Flat]],
    absent: AbsentRule,
) -> tuple[Flat, dict[int, str]]:
    """Play one round (rules 1 and 6).

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
        Trains the worker at this place from the hub's model, and gives its loss and its
        model, which need last only until the next call. Called again for the same worker it
        gives the same.
    absent : {"keep", "renormalise"}
        What becomes of the share of an absent worker.

    Returns
    -------
    flat : Flat
        The sub-network average.
    failed : dict
        Place of each absent worker -> why it is absent.
    """
    failed: dict[int, str] = {}
    taken = counts.tolist()
    suspicious = False
    while True:
        places = [place for place in range(len(v)) if place not in failed]
        factors, _ = absent_factors(v, [place not in failed for place in range(len(v))], absent)
        total = RunningSum()
        known = len(failed)
        for place, factor in zip(places, factors, strict=True):
            if not taken[place]:
                total.add(hub, factor)
                continue
            try:
                losses[place], model = train(place)
            except Exception as error:  # one worker's failure is not the hub's
                failed[place] = f"{type(error).__name__}: {error}"
            else:
                if not suspicious or is_finite(model):
                    total.add(model, factor)
                    continue
                failed[place] = "its trained model is not finite"
        for place in failed:
            losses[place], counts[place] = math.nan, 0
        # With "keep" the factors of those who arrived are the same whoever is absent;
        # otherwise the round is played again with the factors that are now known.
        if absent != "keep" and len(failed) > known:
            continue
        if len(failed) == len(v):
            return hub, failed
        arrived = [place not in failed for place in range(len(v))]
        kept = absent_factors(v, arrived, absent)[1] if failed else 0.0
        if kept > 0:
            total.add(hub, kept)
        average = total.result()
        if is_finite(average):
            return average, failed
        if suspicious:
            why = "the models are finite, but their average is not: the hub keeps its own"
            failed |= {place: why for place, here in enumerate(arrived) if here}
            losses[:], counts[:] = math.nan, 0
            return hub, failed
        # Only now is it worth looking at every model, in the same round once more.
        suspicious = True
