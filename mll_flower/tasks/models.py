"""The models of the tasks, by name, with initial values that depend on a seed alone.

torch is imported when a model is built, so that a configuration can be checked without it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import nn

Labels = TypeVar("Labels", NDArray[np.int64], "torch.Tensor")


def known_models() -> tuple[str, ...]:
    """Return the names that `build_model` knows."""
    return tuple(_BUILDERS)


def binary_labels(y: Labels, classes: int) -> Labels:
    """Turn class labels into the two labels of the model ``logistic``.

    Parameters
    ----------
    y : ndarray or Tensor
        int64 labels in 0 .. classes - 1.
    classes : int
        Number of classes, at least 2.

    Returns
    -------
    ndarray or Tensor
        int64: 0 for the classes below half, 1 for the rest (digits: 0-4 against 5-9).
    """
    return 2 * y // classes


def build_model(
    name: str, input_shape: tuple[int, ...], classes: int, seed: int, regression: bool = False
) -> nn.Module:
    """Build a model whose initial values depend on the seed alone.

    The global random state of torch is neither read nor changed.

    Parameters
    ----------
    name : str
        ``logistic``: binary logistic regression with one logit that starts at zero; see
        `binary_labels`.
        ``mlp``: one hidden layer of 64 units.
        ``cnn``: the paper's CNN, two 5x5 convolutions of 10 and 20 channels with padding 2, each
        with ReLU and a 2x2 max-pool, then 100 hidden units.
        ``resnet18``: ResNet-18 with a 3x3 stem of stride 1 and no first max-pool, for 32x32 images.
    input_shape : tuple of int
        Shape of one example: (channels, height, width); ``logistic`` and ``mlp`` also take
        (features,).
    classes : int
        Number of classes, at least 2, or of targets per row in regression.
    seed : int
        Seed of the initial values.
    regression : bool
        Whether the model predicts numbers instead of classes.

    Returns
    -------
    Module
        On the CPU, in training mode.

    Raises
    ------
    ValueError
        If the name is not known, or the model cannot take such examples.
    """
    import torch

    if name not in _BUILDERS:
        raise ValueError(f"unknown model {name!r}: use one of {', '.join(_BUILDERS)}")
    if regression and name == "logistic":
        raise ValueError("model 'logistic' predicts classes, not numbers: use 'mlp' or 'cnn'")
    if classes < 2 and not regression:
        raise ValueError(f"model {name!r} needs at least 2 classes, not {classes}")
    if not input_shape or min(input_shape) < 1:
        raise ValueError(f"model {name!r}: {input_shape} is not the shape of an example")
    # Built without storage (on "meta") and filled afterwards: layers that are built with storage
    # fill themselves from torch's global random state.
    with torch.device("meta"):
        module = _BUILDERS[name](input_shape, classes)
    # Not by `to_empty`, which imports sympy: 30 MB and half a second in every process.
    empty = {key: torch.empty(t.shape, dtype=t.dtype) for key, t in module.state_dict().items()}
    module.load_state_dict(empty, assign=True)
    generator = torch.Generator().manual_seed(seed)
    _INITIALISERS.get(name, _default_values)(module, generator)
    return module


@contextmanager
def in_mode(module: nn.Module, training: bool) -> Iterator[None]:
    """Put a module into training or evaluation mode for a while.

    Parameters
    ----------
    module : Module
        The model; afterwards each of its parts is in the mode that it had before.
    training : bool
        Whether the mode is that of training.
    """
    modes = [(part, part.training) for part in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for part, before in modes:
            part.training = before


def _logistic(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return _layers(flatten=("Flatten",), linear=("Linear", math.prod(input_shape), 1))


def _mlp(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return _layers(
        flatten=("Flatten",),
        hidden=("Linear", math.prod(input_shape), 64),
        relu=("ReLU",),
        output=("Linear", 64, classes),
    )


def _cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    channels, height, width = _image_shape("cnn", input_shape, smallest=4)
    # Pooling before ReLU gives the same values, with ReLU on a quarter of the numbers.
    return _layers(
        conv1=("Conv2d", channels, 10, 5, 1, 2),
        pool1=("MaxPool2d", 2),
        relu1=("ReLU",),
        conv2=("Conv2d", 10, 20, 5, 1, 2),
        pool2=("MaxPool2d", 2),
        relu2=("ReLU",),
        flatten=("Flatten",),
        hidden=("Linear", 20 * (height // 2 // 2) * (width // 2 // 2), 100),
        relu3=("ReLU",),
        output=("Linear", 100, classes),
    )


def _resnet18(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    from torch import nn
    from torchvision.models import resnet18

    channels, _, _ = _image_shape("resnet18", input_shape, smallest=1)
    module: nn.Module = resnet18(num_classes=classes)
    module.conv1 = nn.Conv2d(channels, 64, kernel_size=3, stride=1, padding=1, bias=False)
    module.maxpool = nn.Identity()
    return module


def _layers(**layers: tuple[Any, ...]) -> nn.Module:
    """Stack named layers, each given as its name in torch.nn and its arguments."""
    from torch import nn

    return nn.Sequential(
        OrderedDict((name, getattr(nn, kind)(*args)) for name, (kind, *args) in layers.items())
    )


def _image_shape(name: str, shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ValueError(
            f"model {name!r} takes images of shape (channels, height, width), at least "
            f"{smallest}x{smallest}, not {shape}: use 'mlp' or 'logistic' for other data"
        )
    return shape[0], shape[1], shape[2]


def _zeros(module: nn.Module, generator: torch.Generator) -> None:
    from torch import nn

    for parameter in module.parameters():
        nn.init.zeros_(parameter)


def _default_values(module: nn.Module, generator: torch.Generator, he_normal: bool = False) -> None:
    """Fill each layer as torch does by default, but from the generator.

    With `he_normal` convolutions are filled as in ResNets (He et al. 2015, by fan-out).
    """
    from torch import nn

    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            if he_normal and isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(
                    layer.weight, mode="fan_out", nonlinearity="relu", generator=generator
                )
            else:
                nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
            if layer.bias is not None:
                bound = 1 / math.sqrt(layer.weight[0].numel())
                nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
        elif isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()  # ones and zeros: nothing random


def _resnet_values(module: nn.Module, generator: torch.Generator) -> None:
    _default_values(module, generator, he_normal=True)


_BUILDERS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "logistic": _logistic,
    "mlp": _mlp,
    "cnn": _cnn,
    "resnet18": _resnet18,
}

_INITIALISERS: dict[str, Callable[[nn.Module, torch.Generator], None]] = {
    "logistic": _zeros,
    "resnet18": _resnet_values,
}
