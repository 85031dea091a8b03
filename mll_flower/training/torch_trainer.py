"""Local SGD steps of any torch module on one flat model, without copies in or out.

The module's parameters and buffers are views of the trainer's row, so that loading a model
is one copy into the row, and the trained model is the row.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mll_flower.models.layout import Flat, Layout
from mll_flower.training._fast.plain_stack import Stack
from mll_flower.training.process import Pace

if TYPE_CHECKING:
    from mll_flower.tasks.task import Task

# Outputs of a batch's convolutions an entry of their weights, above which channels_last pays:
# it speeds up the activations (above all max-pooling) and costs a reordering of the weights.
# Measured, ms a step as NCHW / channels_last, with this ratio: CNN at batch 32 12.5 / 10.5 (72);
# ResNet-18 at batch 32 1666 / 1204 (1.8), at 8 472 / 439 (0.4), at 4 326 / 340 (0.2), at 2
# 175 / 200 (0.1); with the stem for large pictures at 32 241 / 242 (0.1), at 8 114 / 134.
_CHANNELS_LAST_FROM = 0.3


def numpy_state(module: nn.Module) -> dict[str, NDArray[np.generic]]:
    """Give the module's state_dict as NumPy arrays that share its memory."""
    state = {}
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"the model's state {name!r} is a {type(value).__name__}, which cannot be "
                "averaged: keep it out of the state_dict"
            )
        state[name] = value.detach().cpu().numpy()
    return state


def channels_last_pays(module: nn.Module, example: Tensor, batch_size: int) -> bool:
    """Say whether training this module is faster in the channels_last memory format.

    Decided by the sizes alone, never by a clock: the format decides the last bits of the
    result.

    Parameters
    ----------
    module : Module
        A module that is not trained yet; its modes are restored.
    example : Tensor
        One row of the data.
    batch_size : int
        Rows of a mini-batch.
    """
    convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
    if example.dim() != 3 or not convolutions:
        return False
    outputs = 0

    def count(part: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal outputs
        outputs += output.numel()

    modes = [(part, part.training) for part in module.modules()]
    hooks = [part.register_forward_hook(count) for part in convolutions]
    module.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module(example[None])
    finally:
        for hook in hooks:
            hook.remove()
        for part, training in modes:
            part.training = training
    weights = sum(part.weight.numel() for part in convolutions)
    return outputs * batch_size >= _CHANNELS_LAST_FROM * weights


def _views(layout: Layout, row: dict[str, Tensor]) -> list[Tensor]:
    """Give each tensor of a model as a view of a row."""
    return [
        row[place.dtype][place.slice].view(shape)
        for place, shape in zip(layout.places, layout.shapes, strict=True)
    ]


class TorchTrainer:
    """Trains the one model in its row.

    Parameters
    ----------
    task : Task
        Data, model and loss.
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
        self._loss = task.loss
        self._x, self._y = task.tensors()
        self._momentum, self._weight_decay = momentum, weight_decay
        self.module = task.new_model()
        self.channels_last = channels_last_pays(self.module, self._x[0], batch_size)
        self._bind(layout)
        self._moved: list[Tensor] = list(self._parameters)
        self._stack = Stack.of(self.module, self._x.dim()) if task.has_plain_loss else None
        if self._stack is not None:
            # Such a module is its parameters alone: the whole row is moved at once.
            self._moved = list(self._row.values())
            slope = {dtype: torch.zeros_like(row) for dtype, row in self._row.items()}
            self._slope, self._slopes = list(slope.values()), _views(layout, slope)
        self._velocity = [torch.zeros_like(x) for x in self._moved] if momentum else []

    def _bind(self, layout: Layout) -> None:
        """Make every tensor of the module a view of the row."""
        # torch aligns its memory to cache lines; the BLAS may add in another order when the
        # alignment differs, so the row always lies in memory of torch's.
        self._row = {
            dtype: torch.from_numpy(vector).clone() for dtype, vector in layout.empty().items()
        }
        self.row: Flat = {dtype: tensor.numpy() for dtype, tensor in self._row.items()}
        self._parameters: list[nn.Parameter] = []
        self._buffers: list[tuple[dict[str, Tensor | None], str, Tensor]] = []
        self._ties: list[tuple[Tensor, Tensor]] = []
        views: dict[int, Tensor] = {}
        # state_dict visits a module as often as it is reachable, so shared tensors come twice.
        tensors = self.module.state_dict(keep_vars=True)
        for (name, tensor), view in zip(tensors.items(), _views(layout, self._row), strict=True):
            if id(tensor) in views:
                self._ties.append((view, views[id(tensor)]))
                continue
            views[id(tensor)] = view
            if isinstance(tensor, nn.Parameter):
                tensor.data = view
                if tensor.requires_grad:
                    self._parameters.append(tensor)
            else:
                owner, _, leaf = name.rpartition(".")
                buffers = self.module.get_submodule(owner)._buffers
                buffers[leaf] = view
                self._buffers.append((buffers, leaf, view))
        # Buffers outside the state_dict are not part of the model: every round starts them anew.
        bound = {id(view) for _, _, view in self._buffers}
        self._scratch = [(b, b.clone()) for b in self.module.buffers() if id(b) not in bound]

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
            What the module's own randomness (dropout) depends on.
        pace : callable
            Gives the batches, one when its step is due, and ends when there is no time for more.

        Returns
        -------
        float
            Mean over the steps of the loss before the step; nan if there are none.
        """
        words = np.random.SeedSequence(noise).generate_state(1, np.uint64)
        torch.default_generator.manual_seed(int(words[0]))
        for buffer, start in self._scratch:
            buffer.copy_(start)
        for velocity in self._velocity:
            velocity.zero_()
        total, taken = 0.0, 0
        for rows in pace(torch.from_numpy(batches)):
            total += self._step(rows, learning_rate)
            taken += 1
        self._settle()
        return total / taken if taken else math.nan

    def _step(self, rows: Tensor, learning_rate: float) -> float:
        labels = self._y.index_select(0, rows)
        if self._stack is not None:
            with torch.inference_mode():
                loss = self._stack.gradient(self._batch(rows), labels, self._slopes)
                self._move(self._moved, self._slope, self._velocity, learning_rate)
            return loss.item()
        loss = self._loss(self.module(self._batch(rows)), labels)
        # Not through .grad: that would cost a zeroing, an addition and a read more a parameter.
        grads = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        used = [i for i, grad in enumerate(grads) if grad is not None]
        with torch.no_grad():
            self._move(
                [self._parameters[i] for i in used],
                [grads[i] for i in used],
                [self._velocity[i] for i in used] if self._velocity else [],
                learning_rate,
            )
        return loss.item()

    def _move(
        self,
        parameters: list[Tensor],
        direction: list[Tensor],
        velocities: list[Tensor],
        learning_rate: float,
    ) -> None:
        if self._weight_decay:
            # Not in place: two parameters may share one gradient tensor.
            direction = list(torch._foreach_add(direction, parameters, alpha=self._weight_decay))
        if velocities:
            torch._foreach_mul_(velocities, self._momentum)
            torch._foreach_add_(velocities, direction)
            direction = velocities
        torch._foreach_add_(parameters, direction, alpha=-learning_rate)

    def _batch(self, rows: Tensor) -> Tensor:
        batch = self._x.index_select(0, rows)
        if not self.channels_last:
            return batch
        if batch.shape[1] == 1:
            # One channel lies the same in both formats; only these strides tell torch which.
            _, _, height, width = batch.shape
            return batch.as_strided(batch.shape, (height * width, 1, width, 1))
        return batch.contiguous(memory_format=torch.channels_last)

    def _settle(self) -> None:
        """Bring into the row what the module holds elsewhere."""
        for buffers, leaf, view in self._buffers:
            current = buffers[leaf]
            if current is not view:  # the module has put a new tensor in the buffer's place
                if current is None or current.shape != view.shape or current.dtype != view.dtype:
                    buffers[leaf] = view
                    raise ValueError(
                        f"training changed the shape or dtype of the buffer {leaf!r}: a model "
                        "must keep both in a round"
                    )
                view.copy_(current)
                buffers[leaf] = view
        for view, source in self._ties:
            view.copy_(source)
