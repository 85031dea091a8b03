"""Compiled gradients of a torch module, for `TorchTrainer`: `why_not_compiled`, and the gradients.

The module's parameters are views of one flat vector, in order, which is the model that the machine
code reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mll_flower.native.machine_code import why_unavailable
from mll_flower.training._compiled.layers import Unsupported, check_layers
from mll_flower.training._compiled.stages import read_stack

if TYPE_CHECKING:
    from mll_flower.tasks.augmentation import Augment
    from mll_flower.tasks.task import Task


def why_not_compiled(task: Task) -> str | None:
    """Return why a task has no compiled gradients, with the layer in the way; None if it has."""
    if task.model == "logistic":
        return "logistic regression has a trainer of its own"
    if not task.loss_is_cross_entropy:
        return "its loss is not the cross-entropy"
    x, y = task.data.x_train, task.data.y_train
    if x.dtype != np.float32 or y.dtype != np.int64 or y.shape != (len(x),):
        return f"its data are {x.dtype} with labels {y.dtype}{y.shape[1:]}, not float32 with int64"
    try:
        module = task.new_model()
        stages = read_stack(module, x.shape[1:])
        check_layers(module, x.shape[1:])
    except Unsupported as reason:
        return str(reason)
    if len(y) and not 0 <= y.min() <= y.max() < stages[-1].outputs:
        return f"labels go from {y.min()} to {y.max()}, for {stages[-1].outputs} outputs"
    return why_unavailable()


class CompiledGradients:
    """Gradients of a plain stack of layers; see `GradientSource` in `torch_trainer`.

    Parameters
    ----------
    module : Module
        The model, of which `read_stack` approves.
    model : Tensor
        The vector that holds its parameters, in order.
    x, y : Tensor
        The training data and their labels.
    batch_size : int
        Rows of a batch.
    augment : callable, optional
        Changes the examples of a batch at random.
    """

    def __init__(
        self,
        module: nn.Module,
        model: Tensor,
        x: Tensor,
        y: Tensor,
        batch_size: int,
        augment: Augment | None = None,
    ) -> None:
        # Here, because without llvmlite there is only autograd, and that must work.
        from mll_flower.training._compiled.network import CompiledNetwork

        self._batches = AugmentedBatches(x, y, batch_size, augment) if augment else None
        if self._batches:
            x, y = self._batches.x, self._batches.y
        data: NDArray[np.float32] = np.ascontiguousarray(x.numpy())
        labels: NDArray[np.int64] = np.ascontiguousarray(y.numpy())
        stages = read_stack(module, data.shape[1:])
        self._noisy = any(stage.dropout for stage in stages)
        self._network = CompiledNetwork(stages, data, labels, batch_size, model.numpy())
        self.trained = [model]
        self._gradients = [torch.from_numpy(self._network.gradient)]

    def __call__(self, rows: Tensor) -> tuple[float, Sequence[Tensor]]:
        """Return the loss on these rows of the data, and its gradient."""
        if self._batches:
            rows = self._batches.fill(rows)
        noise = int(torch.randint(2**63 - 1, ())) if self._noisy else 0
        return self._network(rows.numpy(), noise), self._gradients


class AugmentedBatches:
    """One batch at a time, in memory that the machine code reads as if it were all of the data.

    Parameters
    ----------
    x, y : Tensor
        The training data and their labels.
    batch_size : int
        Rows of a batch.
    augment : callable
        Changes the examples of a batch at random.

    Attributes
    ----------
    x, y : Tensor
        The batch.
    """

    def __init__(self, x: Tensor, y: Tensor, batch_size: int, augment: Augment) -> None:
        self._all_x, self._all_y, self._augment = x, y, augment
        self.x, self.y = x.new_empty(batch_size, *x.shape[1:]), y.new_zeros(batch_size)
        self._rows = torch.arange(batch_size)

    def fill(self, rows: Tensor) -> Tensor:
        """Take these rows of the data; return where they are in the batch."""
        self.x.copy_(self._augment(self._all_x.index_select(0, rows)))
        torch.index_select(self._all_y, 0, rows, out=self.y)
        return self._rows
