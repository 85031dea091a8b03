"""A worker's steps on any torch module: `TorchTrainer._step`.

A flat model is one vector per dtype that holds all arrays of a model
(`mll_flower.models.layout`). The trainer has one such model, its *row*, and the module's
parameters and buffers are views of it. So the engine (`mll_flower.training.engine`) loads a hub's
model with one copy into the row, lets a worker take its steps, and finds the trained model there.

Gradients come from autograd, or for plain stacks of layers from machine code that is made for the
network (`mll_flower.training._compiled`); `mll_flower.training.gradient_engine` chooses.
Logistic regression is trained elsewhere, with its gradient written out:
`mll_flower.training.logistic_trainer`.

On a GPU the row that is trained is in its memory, and copied from and to the row that the engine
sees before and after a worker's steps. The data stay in the memory of the machine, of which
processes share one copy; each batch is sent to the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mll_flower.models.layout import Flat, Layout
from mll_flower.training._compiled.gradients import CompiledGradients
from mll_flower.training._fast.channels_last import channels_last_pays, to_channels_last
from mll_flower.training.device import seed_noise
from mll_flower.training.gradient_engine import GradientEngine
from mll_flower.training.optimisers import OPTIMISERS
from mll_flower.training.process import CPU
from mll_flower.training.trainer import Pace, Trainer

if TYPE_CHECKING:
    from mll_flower.tasks.augmentation import Augment
    from mll_flower.tasks.task import Task


def numpy_state(module: nn.Module) -> dict[str, NDArray[np.generic]]:
    """Return the module's state_dict as NumPy arrays that share its memory."""
    state = {}
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"the model's state {name!r} is a {type(value).__name__}, which cannot be "
                "averaged: keep it out of the state_dict"
            )
        state[name] = value.detach().cpu().numpy()
    return state


class GradientSource(Protocol):
    """Differentiates the loss of a batch: `Autograd` or `CompiledGradients`."""

    @property
    def trained(self) -> Sequence[Tensor]:
        """The tensors that training changes; none of them requires a gradient itself."""

    def __call__(self, rows: Tensor) -> tuple[float, Sequence[Tensor | None]]:
        """Return the loss on these rows of the data, and its gradient for each trained tensor.

        The gradient is None for a tensor that the loss ignores. All are valid until the next call.
        """


class Autograd:
    """Gradients of any module and any loss, by torch's autograd.

    Parameters
    ----------
    module : Module
        The model.
    loss : callable
        ``loss(output, labels)``: the mean loss of a batch.
    parameters : sequence of Parameter
        The module's parameters that are trained.
    x, y : Tensor
        The training data and their labels.
    channels_last : bool
        Whether to give the module batches in that memory format.
    device : torch.device
        Where the module is; batches are sent there.
    augment : callable, optional
        Changes the examples of a batch at random.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        parameters: Sequence[nn.Parameter],
        x: Tensor,
        y: Tensor,
        channels_last: bool,
        device: torch.device = CPU,
        augment: Augment | None = None,
    ) -> None:
        self._module, self._loss, self._parameters = module, loss, parameters
        self._augment = augment
        self._x, self._y, self._channels_last, self._device = x, y, channels_last, device
        self.trained = [parameter.detach() for parameter in parameters]  # the same memory

    def __call__(self, rows: Tensor) -> tuple[float, Sequence[Tensor | None]]:
        """Return the loss and its gradients; see `GradientSource`."""
        x = self._x.index_select(0, rows)
        if self._augment:
            x = self._augment(x)
        x = x.to(self._device)
        if self._channels_last:
            x = to_channels_last(x)
        loss = self._loss(self._module(x), self._y.index_select(0, rows).to(self._device))
        # Not through .grad, which would add a zeroing, an addition and a read per parameter.
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        return loss.item(), gradients


class TorchTrainer(Trainer):
    """Trains any torch module.

    See `Trainer` for the parameters; ``engine`` computes gradients, on ``device``.
    """

    def __init__(
        self,
        task: Task,
        layout: Layout,
        batch_size: int,
        momentum: float,
        weight_decay: float,
        optimiser: str = "sgd",
        engine: GradientEngine = "autograd",
        device: torch.device = CPU,
    ) -> None:
        (x, y), augment = task.tensors(), task.new_augmentation()
        self._device = device
        self.module = task.new_model().to(device)
        self._bind(layout)
        self._gradients: GradientSource
        if engine == "compiled":
            (row,) = self._row.values()
            self._gradients = CompiledGradients(self.module, row, x, y, batch_size, augment)
        else:
            last = device.type == "cpu" and channels_last_pays(self.module, x[0], batch_size)
            self._gradients = Autograd(
                self.module, task.loss, self._parameters, x, y, last, device, augment
            )
        trained = self._gradients.trained
        self._optimiser = OPTIMISERS[optimiser](trained, momentum, weight_decay)

    def _bind(self, layout: Layout) -> None:
        """Make every tensor of the module a view of the row."""
        # BLAS may add in a different order when the alignment of memory differs, so the row is
        # always in memory that torch allocates, which is aligned to cache lines.
        self._host = {
            dtype: torch.from_numpy(vector).clone() for dtype, vector in layout.empty().items()
        }
        self.row: Flat = {dtype: tensor.numpy() for dtype, tensor in self._host.items()}
        # On a CPU the same tensors, so that nothing is copied.
        self._row = {dtype: tensor.to(self._device) for dtype, tensor in self._host.items()}
        self._parameters: list[nn.Parameter] = []
        self._buffers: list[tuple[dict[str, Tensor | None], str, Tensor]] = []
        self._ties: list[tuple[Tensor, Tensor]] = []
        views: dict[int, Tensor] = {}
        # A tensor that two modules share appears in the state_dict under both names.
        tensors = self.module.state_dict(keep_vars=True)
        for (name, tensor), place, shape in zip(
            tensors.items(), layout.places, layout.shapes, strict=True
        ):
            view = self._row[place.dtype][place.slice].view(shape)
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
        # Buffers outside the state_dict are not part of the model: every round resets them.
        bound = {id(view) for _, _, view in self._buffers}
        self._scratch = [(b, b.clone()) for b in self.module.buffers() if id(b) not in bound]

    def steps(
        self,
        batches: NDArray[np.int64],
        learning_rate: float,
        noise_seed: tuple[int, ...],
        pace: Pace = iter,
    ) -> float:
        """See `Trainer.steps`."""
        seed = np.random.SeedSequence(noise_seed).generate_state(1, np.uint64)
        seed_noise(self._device, int(seed[0]))
        _copy(self._host, self._row)
        for buffer, start in self._scratch:
            buffer.copy_(start)
        self._optimiser.reset()
        total, taken = 0.0, 0
        for rows in pace(torch.from_numpy(batches)):
            total += self._step(rows, learning_rate)
            taken += 1
        self._collect_replaced()
        _copy(self._row, self._host)
        return total / taken if taken else math.nan

    def shifter(self, shift: Flat) -> Callable[[], None]:
        """See `Trainer.shifter`."""
        there = {d: torch.tensor(vector).to(self._device) for d, vector in shift.items()}

        def take_off() -> None:
            for dtype, vector in there.items():
                self._row[dtype] -= vector

        return take_off

    def _step(self, rows: Tensor, learning_rate: float) -> float:
        """Take one step on these rows of the data; return the loss before it."""
        loss, gradients = self._gradients(rows)
        self._optimiser.move(gradients, learning_rate)
        return loss

    def _collect_replaced(self) -> None:
        """Copy into the row the buffers that the module has replaced, and tied tensors."""
        for buffers, leaf, view in self._buffers:
            current = buffers[leaf]
            if current is not view:  # the module has put a new tensor in the buffer's place
                buffers[leaf] = view
                if current is None or current.shape != view.shape or current.dtype != view.dtype:
                    raise ValueError(
                        f"training changed the shape or dtype of the buffer {leaf!r}: a model "
                        "must keep both in a round"
                    )
                view.copy_(current)
        for view, source in self._ties:
            view.copy_(source)


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    """Copy a model to or from the device; nothing if both are the same tensors."""
    for dtype, tensor in target.items():
        if source[dtype] is not tensor:
            tensor.copy_(source[dtype])
