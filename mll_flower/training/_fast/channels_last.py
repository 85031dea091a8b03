"""When torch's channels_last memory format makes a module faster, and batches in that format.

The format stores the channels of a pixel side by side. It speeds up the activations of
convolutions (above all max-pooling) and costs a reordering of their weights, so it pays where
there are many outputs per weight: it is used from 0.3 on. Measured, in ms per step:

    model                             batch   NCHW   channels_last   outputs per weight
    the paper's CNN                      32   12.5            10.5   72
    ResNet-18                            32   1666            1204   1.8
    ResNet-18                             8    472             439   0.4
    ResNet-18                             4    326             340   0.2
    ResNet-18                             2    175             200   0.1
    ResNet-18, stem for large images     32    241             242   0.1
    ResNet-18, stem for large images      8    114             134   not noted
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# The format is used from this number of outputs per weight, over all convolutions of a batch.
_LEAST_OUTPUTS_PER_WEIGHT = 0.3


def channels_last_pays(module: nn.Module, example: Tensor, batch_size: int) -> bool:
    """Return whether this module is faster in the channels_last memory format.

    The sizes alone decide, never a clock: the format changes the last bits of the result.

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
    return outputs * batch_size >= _LEAST_OUTPUTS_PER_WEIGHT * weights


def to_channels_last(batch: Tensor) -> Tensor:
    """Return a batch of images in the channels_last format, without a copy if it has one channel.

    Parameters
    ----------
    batch : Tensor
        Contiguous, (rows, channels, height, width).
    """
    if batch.shape[1] == 1:
        # One channel lies the same in both formats; only these strides tell torch which it is.
        _, _, height, width = batch.shape
        return batch.as_strided(batch.shape, (height * width, 1, width, 1))
    return batch.contiguous(memory_format=torch.channels_last)
