"""Models of the user's own: built by a function or class that the run config names."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from mll_flower.tasks.own_code import call

if TYPE_CHECKING:
    from torch import Tensor, nn


def build_own_model(
    reference: str, code_dir: str, example: Tensor, outputs: int, seed: int
) -> nn.Module:
    """Build a model whose initial values depend on the seed alone, as far as it is torch's.

    Before the call torch, NumPy and Python's ``random`` are seeded; their states are restored
    afterwards. So every process of a run builds the same model.

    Parameters
    ----------
    reference, code_dir
        As in `mll_flower.tasks.own_code.find`. It is called with what it has parameters for:
        ``input_shape`` (of one example) and ``classes`` or ``outputs``.
    example : Tensor
        A batch of examples; lazy layers take their sizes from it.
    outputs : int
        Number of classes, or of targets per row in regression.
    seed : int
        The run seed.

    Raises
    ------
    ValueError
        If it gives no module, or one without anything to train.
    """
    import torch
    from torch import nn
    from torch.nn.parameter import is_lazy

    with _seeded(seed):
        module = call(
            "model",
            reference,
            code_dir,
            input_shape=tuple(example.shape[1:]),
            classes=outputs,
            outputs=outputs,
        )
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"model={reference!r} gives a {type(module).__name__}: give a torch.nn.Module"
            )
        if any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
            with torch.no_grad():
                module(example)
    module.to("cpu")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(f"model={reference!r} gives a module without parameters to train")
    return module


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    import torch

    states: tuple[Any, Any] = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % (1 << 32))  # noqa: NPY002
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
