"""Corrections in a process that trains workers: longer steps, and shifted ones.

See `mll_flower.algorithm.corrections` for what they are for. A simulated node that hosts a whole
hub keeps the hub's part of them for as long as a message lasts (`HostedHub`): Y(d) and c(i) come
with the message, and c(i) goes back with the reply. One that hosts a single worker gets its shift
from its hub, as a worker of a deployment does (`HostedWorker`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from mll_flower.models.corrections import HubState, mean_steps
from mll_flower.models.layout import Flat
from mll_flower.models.subnetwork_average import AbsentRule, SubnetworkAverage
from mll_flower.training.trainer import Pace, Trainer

Train = Callable[..., tuple[float, Flat]]


class RoundCorrection(Protocol):
    """What `mll_flower.training.hub_rounds` does differently when a correction is on."""

    def begin(self, train: Train) -> Train:
        """Begin a round; return what takes the place of ``train``."""

    def end(self, average: SubnetworkAverage, steps: Sequence[int], learning_rate: float) -> Flat:
        """End a round whose average has a model; return the hub's model."""


class HostedWorker(RoundCorrection):
    """The corrections of a node that hosts one worker.

    Parameters
    ----------
    factor : float
        The factor on its step size.
    shift : Flat, optional
        What it takes off its model after each step.
    """

    def __init__(self, factor: float, shift: Flat | None) -> None:
        self._factor, self._shift = factor, shift

    def begin(self, train: Train) -> Train:
        """See `RoundCorrection.begin`."""

        def corrected(
            flat: Flat, worker: int, round: int, steps: int, learning_rate: float
        ) -> tuple[float, Flat]:
            rate = learning_rate * self._factor
            return train(flat, worker, round, steps, rate, shift=self._shift)

        return corrected

    def end(self, average: SubnetworkAverage, steps: Sequence[int], learning_rate: float) -> Flat:
        """See `RoundCorrection.end`: what is left is up to the hub."""
        assert average.model is not None
        return average.model


class HostedHub(RoundCorrection):
    """The corrections of a node that hosts all workers of a hub.

    Parameters
    ----------
    state : HubState
        Y(d) and c(i).
    workers : Sequence[int]
        The hub's workers.
    weights, factors : Sequence[float]
        Their weights, and the factors on their step sizes.
    steps : float
        S(d) if it is the same in every round, as with inverse rates; 0 to compute it.
    absent_rule : {"keep", "renormalise"}
        What becomes of the shares of absent workers.
    """

    def __init__(
        self,
        state: HubState,
        workers: Sequence[int],
        weights: Sequence[float],
        factors: Sequence[float],
        steps: float,
        absent_rule: AbsentRule,
    ) -> None:
        self.state = state
        self._workers, self._weights, self._steps = list(workers), list(weights), steps
        self._factor_of = dict(zip(workers, factors, strict=True))
        self._absent_rule = absent_rule
        self._new: dict[int, Flat] = {}

    def begin(self, train: Train) -> Train:
        """See `RoundCorrection.begin`."""
        self.state.begin(dict(zip(self._workers, self._weights, strict=True)))
        self._new = {}

        def corrected(
            flat: Flat, worker: int, round: int, steps: int, learning_rate: float
        ) -> tuple[float, Flat]:
            rate = learning_rate * self._factor_of[worker]
            shift = self.state.shift(worker, rate)
            loss, model = train(flat, worker, round, steps, rate, shift=shift)
            if shift is not None:
                self._new[worker] = self.state.gradient(flat, model, shift, steps, rate)
            return loss, model

        return corrected

    def end(self, average: SubnetworkAverage, steps: Sequence[int], learning_rate: float) -> Flat:
        """See `RoundCorrection.end`."""
        assert average.model is not None
        arrived = [place not in average.absent for place in range(len(self._workers))]
        for worker, here in zip(self._workers, arrived, strict=True):
            if here and worker in self._new:
                self.state.gradients[worker] = self._new[worker]
        taken = self._steps or mean_steps(self._weights, steps, arrived, self._absent_rule)
        return self.state.correct(average.model, taken, learning_rate)


def shifted(pace: Pace, trainer: Trainer, shift: Flat | None) -> Pace:
    """Return a pace that takes a shift off the model after each step.

    Parameters
    ----------
    pace : Pace
        Yields each batch when its step is due.
    trainer : Trainer
        What takes the steps.
    shift : Flat, optional
        What is taken off; None for nothing.
    """
    if shift is None:
        return pace
    take_off = trainer.shifter(shift)

    def paced(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in pace(batches):
            yield batch
            take_off()

    return paced
