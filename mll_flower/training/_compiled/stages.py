"""The stages of a network, and how they are found in a torch module: `read_stack`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from mll_flower.training._compiled.layers import Layer, Unsupported, layers_of

# Larger ones are unrolled into too much code.
_LARGEST_KERNEL, _LARGEST_POOL = 11, 4


@dataclass(frozen=True)
class Convolution:
    """A convolution of stride 1, then max-pooling, then ReLU, then dropout.

    Parameters
    ----------
    channels, height, width : int
        Shape of its input.
    outputs : int
        Channels of its output.
    kernel, padding : int
        Size of the square kernel, and zeros on each side.
    bias, relu : bool
        Whether it has a bias, and a ReLU at the end.
    pool : int
        Size of the square pools; 1 for none.
    dropout : float
        Probability that an entry of the output is set to zero in training.
    """

    channels: int
    height: int
    width: int
    outputs: int
    kernel: int
    padding: int
    bias: bool
    pool: int = 1
    relu: bool = False
    dropout: float = 0.0

    @property
    def out_height(self) -> int:
        """Rows of the output."""
        return (self.height + 2 * self.padding - self.kernel + 1) // self.pool

    @property
    def out_width(self) -> int:
        """Columns of the output."""
        return (self.width + 2 * self.padding - self.kernel + 1) // self.pool

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output."""
        return self.outputs, self.out_height, self.out_width

    @property
    def weights(self) -> int:
        """Number of weights, without biases."""
        return self.outputs * self.channels * self.kernel**2


@dataclass(frozen=True)
class Linear:
    """A linear layer, then ReLU, then dropout.

    Parameters
    ----------
    inputs, outputs : int
        Sizes of input and output.
    bias, relu : bool
        Whether it has a bias, and a ReLU at the end.
    dropout : float
        Probability that an entry of the output is set to zero in training.
    log_softmax : bool
        Whether its outputs become log-probabilities at the end. The cross-entropy is the same
        without that, and so is its gradient.
    """

    inputs: int
    outputs: int
    bias: bool
    relu: bool = False
    dropout: float = 0.0
    log_softmax: bool = False

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output."""
        return (self.outputs,)

    @property
    def weights(self) -> int:
        """Number of weights, without biases."""
        return self.inputs * self.outputs


Stage = Convolution | Linear


def read_stack(module: nn.Module, shape: tuple[int, ...]) -> tuple[Stage, ...]:
    """Return the stages of a module.

    Parameters
    ----------
    module : Module
        The model.
    shape : tuple of int
        Shape of one example.

    Raises
    ------
    Unsupported
        If the module does not apply such layers one after another.
    """
    for name, part in module.named_modules():
        _check_plain(f"layer {name!r}" if name else "the model", part)
    if any(True for _ in module.buffers()):
        raise Unsupported("the model has buffers")
    _check_parameters(module)
    layers = layers_of(module)
    stages: list[Stage] = []
    for layer in layers:
        try:
            shape = _add_layer(stages, layer, shape)
        except Unsupported as reason:
            kind = type(layer.module).__name__
            raise Unsupported(f"layer {layer.name!r} ({kind}): {reason}") from None
    last = stages[-1] if stages else None
    if not isinstance(last, Linear) or last.relu or last.dropout:
        raise Unsupported("the last layer is not Linear")
    if any(isinstance(stage, Linear) and stage.log_softmax for stage in stages[:-1]):
        raise Unsupported("a layer comes after the log-softmax")
    if any(stage.dropout for stage in stages) and not all(p.training for p in module.modules()):
        raise Unsupported("it has dropout, and parts that are in evaluation mode")
    used = [parameter for layer in layers for parameter in layer.module.parameters()]
    if list(map(id, used)) != list(map(id, module.parameters())):
        raise Unsupported("its layers are not used once each, in the order of their definition")
    return tuple(stages)


def _add_layer(stages: list[Stage], applied: Layer, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Add a layer to the stages; return the shape of its output."""
    last, layer = stages[-1] if stages else None, applied.module
    if type(layer) is nn.Flatten:
        if (
            layer.start_dim != 1
            or layer.end_dim != -1
            or applied.width not in (None, math.prod(shape))
        ):
            raise Unsupported("it does not flatten all dimensions of an example")
        return (math.prod(shape),)
    if type(layer) is nn.Conv2d:
        stages.append(_convolution(layer, shape))
    elif type(layer) is nn.Linear:
        if shape != (layer.in_features,):
            raise Unsupported(f"its input has the shape {shape}: put a Flatten before it")
        stages.append(Linear(layer.in_features, layer.out_features, layer.bias is not None))
    elif last is None or math.prod(shape) != math.prod(last.output_shape):
        raise Unsupported("no compiled code for it at this place")
    elif type(layer) is nn.ReLU:
        stages[-1] = replace(last, relu=True)  # also after dropout, which keeps all signs
        return shape
    elif type(layer) is nn.Dropout:
        if last.dropout:
            raise Unsupported("it is the second dropout at this place")
        stages[-1] = replace(last, dropout=float(layer.p))
        return shape
    elif type(layer) is nn.LogSoftmax:
        if not isinstance(last, Linear) or layer.dim not in (1, -1):
            raise Unsupported("it is not that of the classes")
        stages[-1] = replace(last, log_softmax=True)
        return shape
    elif type(layer) is nn.MaxPool2d:
        if not isinstance(last, Convolution) or last.pool > 1 or len(shape) != 3:
            raise Unsupported("a pool must come after a convolution, at most one after each")
        if last.dropout:
            raise Unsupported("a pool must come before dropout")
        stages[-1] = replace(last, pool=_pool_size(layer, shape))
    else:
        raise Unsupported("no compiled code for this kind of layer")
    return stages[-1].output_shape


def _convolution(layer: nn.Conv2d, shape: tuple[int, ...]) -> Convolution:
    kernel, padding = layer.kernel_size, layer.padding
    if isinstance(padding, str) or len({*kernel}) > 1 or len({*padding}) > 1:
        raise Unsupported("its kernel is not square, or its padding is not the same on all sides")
    if layer.stride != (1, 1) or layer.dilation != (1, 1) or layer.groups != 1:
        raise Unsupported("it has a stride, a dilation or groups")
    if layer.padding_mode != "zeros":
        raise Unsupported(f"its padding mode is {layer.padding_mode!r}")
    if len(shape) != 3 or shape[0] != layer.in_channels:
        raise Unsupported(f"its input has the shape {shape}")
    if kernel[0] > _LARGEST_KERNEL or padding[0] >= kernel[0]:
        raise Unsupported(f"a kernel of {kernel[0]} with padding {padding[0]} is too large")
    stage = Convolution(*shape, layer.out_channels, kernel[0], padding[0], layer.bias is not None)
    if min(stage.output_shape) < 1:
        raise Unsupported("nothing is left of its input")
    return stage


def _pool_size(layer: nn.MaxPool2d, shape: tuple[int, ...]) -> int:
    def pair(value: Any) -> tuple[int, int]:
        return (value, value) if isinstance(value, int) else tuple(value)

    size = pair(layer.kernel_size)
    if size[0] != size[1] or pair(layer.stride) != size or pair(layer.dilation) != (1, 1):
        raise Unsupported("its windows are not squares side by side")
    if pair(layer.padding) != (0, 0) or layer.ceil_mode or layer.return_indices:
        raise Unsupported("it has padding, ceil_mode or return_indices")
    if size[0] > min(_LARGEST_POOL, *shape[1:]):
        raise Unsupported(f"windows of {size[0]} are too large")
    return size[0]


def _check_plain(what: str, module: nn.Module) -> None:
    """Raise Unsupported if a module does anything but what its class does."""
    hooks = (
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_backward_pre_hooks",
    )
    if any(getattr(module, name, None) for name in hooks):
        raise Unsupported(f"{what} has hooks")
    if "forward" in vars(module) or getattr(module, "parametrizations", None):
        raise Unsupported(f"{what} has a forward or parametrizations of its own")


def _check_parameters(module: nn.Module) -> None:
    """Raise Unsupported if a parameter is shared, frozen, or not float32 on the CPU."""
    named = list(module.named_parameters(remove_duplicate=False))
    for name, parameter in named:
        if sum(parameter is other for _, other in named) > 1:
            raise Unsupported(f"the parameter {name!r} is shared by two layers")
        if parameter._backward_hooks:
            raise Unsupported(f"the parameter {name!r} has hooks")
        if not parameter.requires_grad:
            raise Unsupported(f"the parameter {name!r} is frozen")
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise Unsupported(f"the parameter {name!r} is not float32 on the CPU")
