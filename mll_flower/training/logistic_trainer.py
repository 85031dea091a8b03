"""Local SGD steps of binary logistic regression in closed form, in NumPy float32.

Neither autograd nor a module is used: a step is a gather of the batch's rows, two matrix-vector
products, and a handful of operations on one number per row of the batch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from mll_flower.models.layout import Flat, Layout
from mll_flower.tasks.models import binary_labels
from mll_flower.training.trainer import Pace, Trainer

if TYPE_CHECKING:
    from mll_flower.tasks.task import Task

Floats = NDArray[np.float32]

_ZERO = np.float32(0)


def _aligned(*shape: int) -> Floats:
    """Return zeros in memory that torch allocates: unlike NumPy's, it is aligned to cache lines.

    BLAS may add in a different order when the alignment differs.
    """
    array: Floats = torch.zeros(*shape, dtype=torch.float32).numpy()
    return array


class LogisticTrainer(Trainer):
    """Trains the model ``logistic``: one weight per feature, then the bias.

    See `Trainer` for the parameters.
    """

    def __init__(
        self,
        task: Task,
        layout: Layout,
        batch_size: int,
        momentum: float,
        weight_decay: float,
        optimiser: str = "sgd",
    ) -> None:
        if optimiser != "sgd":
            raise ValueError(f"optimiser={optimiser!r}: this trainer has SGD alone")
        x = task.data.x_train
        self._x: Floats = np.ascontiguousarray(x.reshape(len(x), -1), dtype=np.float32)
        features = self._x.shape[1]
        if layout.shapes != ((1, features), (1,)) or set(layout.dtypes) != {"float32"}:
            raise ValueError(
                f"the model has arrays {dict(zip(layout.names, layout.shapes, strict=True))}: "
                f"logistic regression on {features} features has float32 weights (1, {features}) "
                "and a bias (1,)"
            )
        # 1 for class 0 and -1 for class 1: the log loss is softplus(sign * logit).
        labels = binary_labels(task.data.y_train, task.data.classes)
        self._sign: Floats = (1 - 2 * labels).astype(np.float32)
        self._momentum, self._weight_decay = momentum, weight_decay
        self._vector = _aligned(features + 1)
        self.row: Flat = {"float32": self._vector}
        self._batch = _aligned(batch_size, features)
        self._residual = _aligned(batch_size)
        self._ones = _aligned(batch_size)
        self._ones += 1
        self._gradient = _aligned(features + 1)
        self._velocity = _aligned(features + 1)
        self._decay = _aligned(features + 1)
        # Views that every step needs.
        self._weights, self._weight_gradient = self._vector[:-1], self._gradient[:-1]
        self._transposed = self._batch.T

    def steps(
        self,
        batches: NDArray[np.int64],
        learning_rate: float,
        noise_seed: tuple[int, ...],
        pace: Pace = iter,
    ) -> float:
        """See `Trainer.steps`; this model has no randomness of its own."""
        vector, weights = self._vector, self._weights
        gradient, weight_gradient = self._gradient, self._weight_gradient
        x, batch, transposed = self._x, self._batch, self._transposed
        residual, ones = self._residual, self._ones
        signs = self._sign.take(batches)
        logits = np.empty(batches.shape, dtype=np.float32)
        plain = not (self._momentum or self._weight_decay)
        # residual = (sigmoid(logit) - label) / batch size, the derivative of the mean loss with
        # respect to the logit. sigmoid(a) = (1 + tanh(a / 2)) / 2 cannot overflow. Without momentum
        # and weight decay the scale also holds the step size.
        scale = (-learning_rate if plain else 1.0) / (2 * len(residual))
        if self._momentum:
            self._velocity.fill(0)
        taken = 0
        for rows, sign, logit in pace(zip(batches, signs, logits, strict=True)):
            # "clip" avoids a copy; it clips nothing, as the rows are known to be in range.
            x.take(rows, axis=0, out=batch, mode="clip")
            batch.dot(weights, out=logit)
            logit += vector[-1]
            np.multiply(logit, 0.5, out=residual)
            np.tanh(residual, out=residual)
            residual += sign
            residual *= scale
            transposed.dot(residual, out=weight_gradient)
            gradient[-1] = residual.dot(ones)
            if plain:
                vector += gradient
            else:
                self._move(learning_rate)
            taken += 1
        if not taken:
            return math.nan
        logits = logits[:taken]
        logits *= signs[:taken]
        losses = np.logaddexp(logits, _ZERO, out=logits)
        return float(np.add.reduce(losses, axis=None, dtype=np.float64)) / losses.size

    def _move(self, learning_rate: float) -> None:
        """Change the model by one step with momentum or weight decay."""
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
