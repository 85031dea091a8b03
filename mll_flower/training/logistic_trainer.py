"""Local SGD steps of binary logistic regression in closed form, in NumPy float32.

No autograd and no module: a step is a gather, two matrix-vector products and a handful of
operations on a batch's worth of numbers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from mll_flower.models.layout import Flat, Layout
from mll_flower.tasks.models import binary_labels
from mll_flower.training.process import Pace

if TYPE_CHECKING:
    from mll_flower.tasks.task import Task

Floats = NDArray[np.float32]

_ZERO = np.float32(0)


def _aligned(*shape: int) -> Floats:
    # torch aligns its memory to cache lines, NumPy does not: see TorchTrainer.
    array: Floats = torch.zeros(*shape, dtype=torch.float32).numpy()
    return array


class LogisticTrainer:
    """Trains the one model in its row: a weight for each feature, then the bias.

    Parameters
    ----------
    task : Task
        Data and model; the model is ``logistic``.
    layout : Layout
        How the model lies in a flat model.
    batch_size : int
        Rows of a mini-batch.
    momentum, weight_decay : float
        As in ``torch.optim.SGD``.
    """

    def __init__(
        self, task: Task, layout: Layout, batch_size: int, momentum: float, weight_decay: float
    ) -> None:
        x = task.data.x_train
        self._x: Floats = np.ascontiguousarray(x.reshape(len(x), -1), dtype=np.float32)
        features = self._x.shape[1]
        if layout.shapes != ((1, features), (1,)) or set(layout.dtypes) != {"float32"}:
            raise ValueError(
                f"the model has arrays {dict(zip(layout.names, layout.shapes, strict=True))}: "
                f"logistic regression on {features} features has float32 weights (1, {features}) "
                "and a bias (1,)"
            )
        # 1 for the class 0 and -1 for the class 1: the log loss is softplus(sign * logit).
        labels = binary_labels(task.data.y_train, task.data.classes)
        self._sign: Floats = (1 - 2 * labels).astype(np.float32)
        self._momentum, self._weight_decay = momentum, weight_decay
        self._vector = _aligned(features + 1)
        self.row: Flat = {"float32": self._vector}
        self._batch = _aligned(batch_size, features)
        self._slope = _aligned(batch_size)
        self._ones = _aligned(batch_size)
        self._ones += 1
        self._gradient = _aligned(features + 1)
        self._velocity = _aligned(features + 1)
        self._decay = _aligned(features + 1)
        # Views that every step needs.
        self._weights, self._slopes = self._vector[:-1], self._gradient[:-1]
        self._transposed = self._batch.T

    def steps(
        self,
        batches: NDArray[np.int64],
        learning_rate: float,
        noise: tuple[int, ...],
        pace: Pace = iter,
    ) -> float:
        """Take one SGD step a batch on the model in the row.

        Parameters
        ----------
        batches : ndarray
            Rows of the data, (steps, batch size).
        learning_rate : float
            Step size.
        noise : tuple of int
            Not used: nothing else in the model is random.
        pace : callable
            Gives the batches, one when its step is due, and ends when there is no time for more.

        Returns
        -------
        float
            Mean over the steps of the loss before the step; nan if there are none.
        """
        vector, weights = self._vector, self._weights
        gradient, slopes = self._gradient, self._slopes
        x, batch, transposed = self._x, self._batch, self._transposed
        slope, ones = self._slope, self._ones
        signs = self._sign.take(batches)
        logits = np.empty(batches.shape, dtype=np.float32)
        plain = not (self._momentum or self._weight_decay)
        # slope = (sigmoid(logit) - label) / batch size, with sigmoid(a) = (1 + tanh(a / 2)) / 2,
        # which cannot overflow; a plain step has its step size folded in.
        scale = (-learning_rate if plain else 1.0) / (2 * len(slope))
        if self._momentum:
            self._velocity.fill(0)
        taken = 0
        for rows, sign, logit in pace(zip(batches, signs, logits, strict=True)):
            # "clip" only spares a copy: the rows are known to be in range.
            x.take(rows, axis=0, out=batch, mode="clip")
            batch.dot(weights, out=logit)
            logit += vector[-1]
            np.multiply(logit, 0.5, out=slope)
            np.tanh(slope, out=slope)
            slope += sign
            slope *= scale
            transposed.dot(slope, out=slopes)
            gradient[-1] = slope.dot(ones)
            if plain:
                vector += gradient
            else:
                self._step(learning_rate)
            taken += 1
        if not taken:
            return math.nan
        logits = logits[:taken]
        logits *= signs[:taken]
        losses = np.logaddexp(logits, _ZERO, out=logits)
        return float(np.add.reduce(losses, axis=None, dtype=np.float64)) / losses.size

    def _step(self, learning_rate: float) -> None:
        direction = self._gradient
        if self._weight_decay:
            np.multiply(self._vector, self._weight_decay, out=self._decay)
            direction += self._decay
        if self._momentum:
            self._velocity *= self._momentum
            self._velocity += direction
            np.copyto(direction, self._velocity)
        direction *= learning_rate
        self._vector -= direction
