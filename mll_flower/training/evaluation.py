"""Loss and metric of a model, given as flat vectors (one per dtype), on the data of a task."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from mll_flower.models.layout import Flat, Layout
from mll_flower.tasks.task import Task
from mll_flower.training._fast.channels_last import channels_last_pays
from mll_flower.training.process import CPU, torch_threads


class Evaluator:
    """Evaluates models of one task; the first evaluation builds a torch module, which is kept.

    Parameters
    ----------
    task : Task
        Data, model and loss.
    layout : Layout
        How the model lies in a flat model.
    device : torch.device
        Where it is evaluated.
    """

    def __init__(self, task: Task, layout: Layout, device: torch.device = CPU) -> None:
        self._task, self._layout, self._device = task, layout, device
        self._module: nn.Module | None = None

    def evaluate(
        self,
        flat: Flat,
        split: Literal["test", "train"],
        batch_size: int,
        limit: int | None,
        threads: int | None,
    ) -> tuple[float, float]:
        """Return the mean loss and the metric of a model; see `Engine.evaluate`."""
        if self._module is None:
            self._module = self._new_module(batch_size)
        arrays = self._layout.arrays(flat)
        with torch.no_grad():
            for name, tensor in self._module.state_dict().items():
                tensor.copy_(torch.from_numpy(arrays[name]))
        with torch_threads(threads):
            return self._task.evaluate(self._module, split, batch_size, limit)

    def _new_module(self, batch_size: int) -> nn.Module:
        module = self._task.new_model()
        if self._device.type != "cpu":
            return module.to(self._device)
        example = torch.from_numpy(self._task.data.x_test[0])
        if channels_last_pays(module, example, batch_size):
            module = module.to(memory_format=torch.channels_last)
        return module
