"""Rounds of a hub whose workers are all trained in this process, one after another.

A simulated SuperNode may host a whole hub (``pool = "hub"``). It then averages its workers
itself and replies with one model, so that one message may cover several rounds. This is an
optimisation: the bits are the same as with one SuperNode per worker. The average is the one
that a hub on a Flower grid uses, `mll_flower.models.subnetwork_average`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mll_flower.models.layout import Flat
from mll_flower.models.subnetwork_average import (
    AbsentRule,
    SubnetworkAverage,
    WorkerAbsent,
    subnetwork_average,
)
from mll_flower.models.sums import RunningSum, is_finite
from mll_flower.training.corrected_rounds import RoundCorrection

Train = Callable[..., tuple[float, Flat]]
"""``train(hub model, worker, round, steps, learning rate)`` -> (training loss, trained model).

It does not change the hub's model, and gives the same bits when it is called again. Its result
need be valid only until the next call.
"""


@dataclass(frozen=True)
class HubResult:
    """The outcome of some rounds of a hub.

    Parameters
    ----------
    flat : Flat
        The hub's model after the last round.
    steps : ndarray
        Steps taken, [rounds, workers]; 0 for an absent worker.
    losses : ndarray
        Mean training loss of those steps, [rounds, workers]; nan where no step was taken.
    absent : list of (worker, round, reason)
        Workers whose training failed, or gave a model that is not finite.
    """

    flat: Flat
    steps: NDArray[np.int64]
    losses: NDArray[np.float64]
    absent: list[tuple[int, int, str]]


def run_rounds(
    flat: Flat,
    workers: Sequence[int],
    v: Sequence[float],
    rounds: Sequence[int],
    steps: NDArray[np.int64],
    learning_rates: Sequence[float],
    train: Train,
    absent_rule: AbsentRule,
    correction: RoundCorrection | None = None,
) -> HubResult:
    """Run some rounds of a hub: in each, train its workers and average their models.

    Parameters
    ----------
    flat : Flat
        The hub's model before the first round; not changed.
    workers : Sequence[int]
        The hub's workers, in the order in which they are averaged.
    v : Sequence[float]
        Their shares, or weights in that proportion.
    rounds : Sequence[int]
        Numbers of the rounds.
    steps : ndarray
        Steps of each worker in each round, [rounds, workers]; not changed.
    learning_rates : Sequence[float]
        Step size of each round.
    train : callable
        Takes the steps of one worker in one round; see `Train`.
    absent_rule : {"keep", "renormalise"}
        Whether the share of an absent worker stays with the hub's model, or the shares of the
        others are divided by their sum.
    correction : RoundCorrection, optional
        What a run with corrections that go past the paper does differently.
    """
    taken = steps.copy()
    losses = np.empty(steps.shape)
    absent: list[tuple[int, int, str]] = []
    hub = flat
    for k, (round, learning_rate) in enumerate(zip(rounds, learning_rates, strict=True)):
        train_one = train if correction is None else correction.begin(train)
        average, losses[k] = _run_round(
            hub, workers, v, round, steps[k].tolist(), learning_rate, train_one, absent_rule
        )
        for place, reason in average.absent.items():
            taken[k, place] = 0
            absent.append((workers[place], round, reason))
        if average.model is not None:
            hub = average.model
            if correction is not None:
                hub = correction.end(average, steps[k].tolist(), learning_rate)
    if hub is flat:
        hub = {dtype: vector.copy() for dtype, vector in flat.items()}
    return HubResult(hub, taken, losses, absent)


def _run_round(
    hub: Flat,
    workers: Sequence[int],
    v: Sequence[float],
    round: int,
    steps: Sequence[int],
    learning_rate: float,
    train: Train,
    absent_rule: AbsentRule,
) -> tuple[SubnetworkAverage, list[float]]:
    """Train the workers that take steps, and average all of them; also return their losses."""
    losses = [math.nan] * len(workers)

    def model_of(place: int) -> Flat:
        if not steps[place]:
            return hub
        try:
            losses[place], model = train(hub, workers[place], round, steps[place], learning_rate)
        except Exception as error:  # the failure of one worker must not end the hub's round
            raise WorkerAbsent(f"{type(error).__name__}: {error}") from error
        return model

    average = subnetwork_average(
        hub, v, model_of, absent_rule, new_sum=RunningSum, finite=is_finite
    )
    for place in average.absent:
        losses[place] = math.nan
    return average, losses
