"""The interface between the engine and the code that takes workers' steps.

The engine decides which worker trains when, on which mini-batches and from which model; a
trainer only takes the steps. There are two: `TorchTrainer` for any torch module, and
`LogisticTrainer` for logistic regression, with its gradient written out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mll_flower.models.layout import Flat, Layout

if TYPE_CHECKING:
    from mll_flower.tasks.task import Task

Pace = Callable[[Iterable[Any]], Iterator[Any]]
"""Yields each batch when its step is due, as a budget's ``pace`` does; ``iter`` never waits."""


class Trainer(Protocol):
    """Takes steps on one model, which it holds in its `row`.

    Parameters
    ----------
    task : Task
        Data, model and loss.
    layout : Layout
        How the model lies in a flat model.
    batch_size : int
        Rows of a mini-batch.
    momentum, weight_decay : float
        As in ``torch.optim``.
    optimiser : str
        A key of `mll_flower.training.optimisers.OPTIMISERS`.

    Attributes
    ----------
    row : Flat
        The model. Write the model to start from into its vectors, call `steps`, and read the
        trained model from the same vectors.
    """

    row: Flat

    def __init__(
        self,
        task: Task,
        layout: Layout,
        batch_size: int,
        momentum: float,
        weight_decay: float,
        optimiser: str = "sgd",
    ) -> None: ...

    def steps(
        self,
        batches: NDArray[np.int64],
        learning_rate: float,
        noise_seed: tuple[int, ...],
        pace: Pace = iter,
    ) -> float:
        """Take one step per batch on the model in the row; the optimiser's state starts afresh.

        Parameters
        ----------
        batches : ndarray
            Rows of the training data, (steps, batch size).
        learning_rate : float
            Step size.
        noise_seed : tuple of int
            Seed of the module's own randomness, such as dropout.
        pace : callable
            Yields each batch when its step is due, and stops when no time is left.

        Returns
        -------
        float
            Mean over the steps of the loss before each step; nan if no step was taken.
        """

    def shifter(self, shift: Flat) -> Callable[[], None]:
        """Return what takes a shift off the model that is being trained, between two steps.

        Parameters
        ----------
        shift : Flat
            What is taken off, each time that the result is called.
        """

        def take_off() -> None:
            for dtype, vector in shift.items():
                self.row[dtype] -= vector

        return take_off
