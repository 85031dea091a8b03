"""Outputs of a torch module by machine code, for `Evaluator`: `CompiledModule`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mll_flower.training._compiled.stages import Linear, read_stack


class CompiledModule(nn.Module):
    """A module whose outputs are computed by machine code, without gradients.

    It uses as many threads as torch would; the outputs do not depend on their number.

    Parameters
    ----------
    module : Module
        The model, of which `read_stack` approves. Its parameters are read at every call.
    shape : tuple of int
        Shape of one example.
    """

    def __init__(self, module: nn.Module, shape: tuple[int, ...]) -> None:
        # Here, because without llvmlite there is only autograd, and that must work.
        from mll_flower.training._compiled.network import CompiledOutputs

        super().__init__()
        self.module = module
        self._stages, self._shape = read_stack(module, shape), shape
        self._new = CompiledOutputs
        self._threads: list[CompiledOutputs] = []

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for a batch of examples."""
        logits = self._logits(x)
        last = self._stages[-1]
        if isinstance(last, Linear) and last.log_softmax:
            return logits.log_softmax(1)
        return logits

    def _logits(self, x: Tensor) -> Tensor:
        # With NumPy: after an operation of its own, torch's threads are busy waiting for another.
        model = np.concatenate([p.detach().numpy().ravel() for p in self.module.parameters()])
        rows: NDArray[np.float32] = np.ascontiguousarray(x.numpy())
        count = max(1, min(torch.get_num_threads(), len(rows) // self._new.ROWS))
        while len(self._threads) < count:
            self._threads.append(self._new(self._stages, self._shape))
        threads = self._threads[:count]
        if count == 1:
            return torch.from_numpy(threads[0](model, rows))
        with ThreadPoolExecutor(count) as pool:
            parts = pool.map(
                lambda outputs, part: outputs(model, part), threads, np.array_split(rows, count)
            )
            return torch.from_numpy(np.concatenate(list(parts)))
