"""Loss and metric of a model, given as flat vectors (one per dtype), on the data of a task."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from mll_flower.models.layout import Flat, Layout
from mll_flower.tasks.task import Task
from mll_flower.training._compiled.outputs import CompiledModule
from mll_flower.training._fast.channels_last import channels_last_pays
from mll_flower.training.gradient_engine import GradientEngine
from mll_flower.training.process import CPU, torch_threads


class Evaluator:
    """Evaluates models of one task; the first evaluation builds a torch module, which is kept.

    Parameters
    ----------
    task : Task
        Data, model and loss.
    layout : Layout
        How the model lies in a flat model.
    engine : {"autograd", "compiled"}
        What computes the model's outputs; see `mll_flower.training.gradient_engine`.
    device : torch.device
        Where it is evaluated.
    """

    def __init__(
        self, task: Task, layout: Layout, engine: GradientEngine, device: torch.device = CPU
    ) -> None:
        self._task, self._layout, self._device = task, layout, device
        self._compiled = engine == "compiled"
        self._model: nn.Module | None = None

    def evaluate(
        self,
        flat: Flat,
        split: Literal["test", "train"],
        batch_size: int,
        limit: int | None,
        threads: int | None,
    ) -> tuple[float, float]:
        """Return the mean loss and the metric of a model; see `Engine.evaluate`."""
        if self._model is None:
            self._model, self._module = self._new_model(batch_size)
        arrays = self._layout.arrays(flat)
        with torch.no_grad():
            for name, tensor in self._model.state_dict().items():
                tensor.copy_(torch.from_numpy(arrays[name]))
        with torch_threads(threads):
            return self._task.evaluate(self._module, split, batch_size, limit)

    def _new_model(self, batch_size: int) -> tuple[nn.Module, nn.Module]:
        """Return a module of the task, and what computes its outputs: itself, or machine code."""
        model = self._task.new_model()
        if self._device.type != "cpu":
            model = model.to(self._device)
            return model, model
        example = torch.from_numpy(self._task.data.x_test[0])
        if self._compiled and _has_convolution(model):
            return model, CompiledModule(model, tuple(example.shape))
        if channels_last_pays(model, example, batch_size):
            model = model.to(memory_format=torch.channels_last)
        return model, model


def _has_convolution(model: nn.Module) -> bool:
    """Return whether machine code is faster: torch's linear layers are as fast on large batches."""
    return any(isinstance(layer, nn.Conv2d) for layer in model.modules())
