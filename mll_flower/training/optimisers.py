"""How a worker moves its model along the gradients: SGD, and AdamW.

An optimiser's state (momentum, moments) starts afresh in every round of every worker: workers take
turns in one trainer, and what they send to their hub is a model alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

BETAS, EPSILON = (0.9, 0.999), 1e-8
"""AdamW's decay rates and its smallest denominator: the defaults of ``torch.optim.AdamW``."""


class Optimiser(Protocol):
    """Changes tensors in place, given their gradients.

    Parameters
    ----------
    tensors : Sequence[Tensor]
        What is trained; none of them requires a gradient itself.
    momentum, weight_decay : float
        As in torch.optim.
    """

    def __init__(self, tensors: Sequence[Tensor], momentum: float, weight_decay: float) -> None: ...

    def reset(self) -> None:
        """Forget all earlier steps."""

    def move(self, gradients: Sequence[Tensor | None], learning_rate: float) -> None:
        """Take one step; a tensor whose gradient is None stays as it is."""


class Sgd(Optimiser):
    """Moves as ``torch.optim.SGD`` does. See `Optimiser` for the parameters."""

    def __init__(self, tensors: Sequence[Tensor], momentum: float, weight_decay: float) -> None:
        self._tensors, self._momentum, self._weight_decay = tensors, momentum, weight_decay
        self._velocity = [torch.zeros_like(tensor) for tensor in tensors] if momentum else []

    def reset(self) -> None:
        """See `Optimiser.reset`."""
        for velocity in self._velocity:
            velocity.zero_()

    def move(self, gradients: Sequence[Tensor | None], learning_rate: float) -> None:
        """See `Optimiser.move`."""
        used = [i for i, gradient in enumerate(gradients) if gradient is not None]
        tensors = [self._tensors[i] for i in used]
        direction = [gradient for gradient in gradients if gradient is not None]
        if self._weight_decay:
            # Not in place: two parameters may share one gradient tensor.
            direction = list(torch._foreach_add(direction, tensors, alpha=self._weight_decay))
        if self._velocity:
            velocities = [self._velocity[i] for i in used]
            torch._foreach_mul_(velocities, self._momentum)
            torch._foreach_add_(velocities, direction)
            direction = velocities
        torch._foreach_add_(tensors, direction, alpha=-learning_rate)


class AdamW(Optimiser):
    """Moves as ``torch.optim.AdamW`` does with its default betas and eps.

    See `Optimiser` for the parameters; there is no momentum.
    """

    def __init__(self, tensors: Sequence[Tensor], momentum: float, weight_decay: float) -> None:
        if momentum:
            raise ValueError(f"momentum={momentum}: AdamW has none, leave it at 0")
        self._tensors, self._weight_decay = tensors, weight_decay
        self._mean = [torch.zeros_like(tensor) for tensor in tensors]
        self._square = [torch.zeros_like(tensor) for tensor in tensors]
        self._taken = [0] * len(tensors)

    def reset(self) -> None:
        """See `Optimiser.reset`."""
        for moment in (*self._mean, *self._square):
            moment.zero_()
        self._taken = [0] * len(self._tensors)

    def move(self, gradients: Sequence[Tensor | None], learning_rate: float) -> None:
        """See `Optimiser.move`."""
        first, second = BETAS
        for i, gradient in enumerate(gradients):
            if gradient is None:
                continue
            tensor, mean, square = self._tensors[i], self._mean[i], self._square[i]
            self._taken[i] += 1
            if self._weight_decay:
                tensor.mul_(1 - learning_rate * self._weight_decay)
            mean.lerp_(gradient, 1 - first)
            square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
            # Both moments start at zero; these factors undo the bias that this causes.
            scale = (1 - second ** self._taken[i]) ** 0.5
            denominator = (square.sqrt() / scale).add_(EPSILON)
            tensor.addcdiv_(mean, denominator, value=-learning_rate / (1 - first ** self._taken[i]))


OPTIMISERS: dict[str, type[Optimiser]] = {"sgd": Sgd, "adamw": AdamW}
"""Value of the key ``optimiser`` -> optimiser."""
