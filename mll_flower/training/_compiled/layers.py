"""The layers that a module applies to its input, one after another: `layers_of`.

A module may be an ``nn.Sequential`` or a class with a ``forward`` of its own, which torch.fx
follows with a symbol for the input. What it sees is one pass through the code, so a ``forward``
that could take another way next time must not get through: functions with conditions are refused
(`conditions`), and the two modes of a module must agree. `check_layers` tries the result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from mll_flower.tasks.models import in_mode
from mll_flower.training._compiled.conditions import find_condition

_LAYERS = (
    nn.Conv2d,
    nn.MaxPool2d,
    nn.ReLU,
    nn.Dropout,
    nn.Flatten,
    nn.Linear,
    nn.LogSoftmax,
    nn.Identity,
)
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_RELU = (functional.relu, functional.relu_, torch.relu, torch.relu_)
_LOG_SOFTMAX = (functional.log_softmax, torch.log_softmax)
_POOL = (functional.max_pool2d, torch.max_pool2d)
_POOL_ARGUMENTS = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")


class Unsupported(ValueError):
    """A module that has no compiled gradients; the text says which part is in the way."""


@dataclass(frozen=True)
class Layer:
    """One step of a module's forward pass.

    Parameters
    ----------
    name : str
        The layer's name in the module, or that of the operation.
    module : Module
        The layer; an operation such as ``torch.relu`` as the layer that does the same.
    width : int, optional
        For a Flatten, the number of entries that are said to be left of an example.
    """

    name: str
    module: nn.Module
    width: int | None = None


def layers_of(module: nn.Module) -> list[Layer]:
    """Return the layers of a module, in the order in which they are applied.

    Parameters
    ----------
    module : Module
        The model, with layers of those kinds alone for which there is compiled code.

    Raises
    ------
    Unsupported
        If the module does anything but apply one layer after another.
    """
    _check_kinds(module)
    if condition := find_condition(module):
        raise Unsupported(condition)
    evaluated, trained = (_follow(module, training) for training in (False, True))
    if list(map(repr, evaluated)) != list(map(repr, trained)):
        raise Unsupported("its forward differs between training and evaluation")
    return trained


def check_layers(module: nn.Module, shape: tuple[int, ...]) -> None:
    """Raise Unsupported unless a module's output and gradient are those of its layers in a row.

    torch.fx does not see everything: a layer within ``torch.no_grad()`` is not trained, for one.

    Parameters
    ----------
    module : Module
        A new model, of which `layers_of` approves.
    shape : tuple of int
        Shape of one example.
    """
    layers, parameters = layers_of(module), list(module.parameters())

    def in_a_row(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer.module.train(module.training)(x.clone())
        return x

    def seeded(forward: Callable[[Tensor], Tensor]) -> Tensor:
        torch.manual_seed(1)  # of dropout
        return forward(x.clone())

    def gradient(output: Tensor) -> Sequence[Tensor | None]:
        if not output.requires_grad:
            return [None] * len(parameters)
        return torch.autograd.grad(output.square().sum(), parameters, allow_unused=True)

    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        x = torch.randn(3, *shape)
        for training in (False, True):
            with in_mode(module, training):
                found, expected = seeded(module), seeded(in_a_row)
                if not _close([found], [expected]):
                    raise Unsupported("its output is not that of its layers")
                if not _close(gradient(found), gradient(expected)):
                    raise Unsupported("its gradient is not that of its layers")


def _close(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> bool:
    """Return whether tensors are the same up to rounding; none of them may be missing."""
    return all(
        one is not None
        and other is not None
        and one.shape == other.shape
        and torch.allclose(one, other, equal_nan=True)
        for one, other in zip(found, expected, strict=True)
    )


def _check_kinds(module: nn.Module) -> None:
    """Raise Unsupported if the module has layers of torch's that have no compiled code."""
    for name, part in module.named_modules():
        kind = type(part)
        if kind.__module__.startswith("torch.nn") and kind not in (*_LAYERS, *_CONTAINERS):
            raise Unsupported(
                f"layer {name!r} ({kind.__name__}): no compiled code for this kind of layer"
            )


def _follow(module: nn.Module, training: bool) -> list[Layer]:
    """Return the layers that one pass through the module's code applies, in one of its modes."""
    name = type(module).__name__
    try:
        with in_mode(module, training):
            graph = fx.Tracer().trace(module)
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise Unsupported(f"{name}.forward cannot be followed ({text})") from None
    layers: list[Layer] = []
    current = None
    for node in graph.nodes:
        if node.op == "placeholder" and current is None:
            current = node
        elif node.op == "output":
            if node.args != (current,):
                raise Unsupported(f"{name}.forward returns something else than its last result")
        elif node.op == "placeholder" or _is_size(node):
            continue  # sizes are looked at where they are used
        else:
            if not node.args or node.args[0] is not current:
                what = f"the parameter {node.target!r}" if node.op == "get_attr" else repr(node)
                raise Unsupported(f"{name}.forward uses {what} beside its layers")
            layers += _layer(module, node, training)
            current = node
    return layers


def _layer(module: nn.Module, node: fx.Node, training: bool) -> list[Layer]:
    """Return what a step of a forward pass does to the one before, as a layer; none if nothing."""
    arguments: tuple[Any, ...] = node.args[1:]
    target = node.target
    if node.op == "call_module":
        layer = module.get_submodule(str(target))
        plain = not arguments and not node.kwargs
        if plain:
            return [] if type(layer) is nn.Identity else [Layer(str(target), layer)]
    elif target in _RELU or (node.op == "call_method" and target in ("relu", "relu_")):
        return [Layer(node.name, nn.ReLU())]
    elif target in _POOL:
        options = _named(_POOL_ARGUMENTS, arguments, node)
        return [Layer(node.name, nn.MaxPool2d(**options))]
    elif target in _LOG_SOFTMAX or (node.op == "call_method" and target == "log_softmax"):
        options = _named(("dim",), arguments, node)
        if options.get("dim") is not None and options.get("dtype") is None:
            return [Layer(node.name, nn.LogSoftmax(options["dim"]))]
    elif target is functional.dropout:
        options = _named(("p", "training", "inplace"), arguments, node)
        if options.pop("training", True) is training:
            return [Layer(node.name, nn.Dropout(**options))]
    elif target is torch.flatten or (node.op == "call_method" and target == "flatten"):
        options = _named(("start_dim", "end_dim"), arguments, node)
        return [Layer(node.name, nn.Flatten(**{"start_dim": 0, **options}))]
    elif (node.op == "call_method" and target in ("view", "reshape")) or target is torch.reshape:
        width = _width_of_view(arguments)
        if width is not None and not node.kwargs:
            return [Layer(node.name, nn.Flatten(), width if width > 0 else None)]
    raise _no_code(node)


def _named(names: tuple[str, ...], arguments: tuple[Any, ...], node: fx.Node) -> dict[str, Any]:
    """Return an operation's arguments by their names; all of them must be known by now."""
    named = {**dict(zip(names, arguments, strict=False)), **node.kwargs}
    if any(isinstance(value, fx.Node) for value in named.values()):
        raise _no_code(node)
    return named


def _no_code(node: fx.Node) -> Unsupported:
    return Unsupported(f"operation {node.name!r} of its forward: no compiled code for it")


def _width_of_view(arguments: tuple[Any, ...]) -> int | None:
    """Return the columns of a view with one row per example, -1 if not said; None for others."""
    sizes = arguments[0] if len(arguments) == 1 else arguments
    if not isinstance(sizes, tuple | list) or len(sizes) != 2:
        return None
    rows, columns = sizes
    counted = isinstance(rows, fx.Node) and _is_row_count(rows)
    if isinstance(columns, int) and (counted or (rows == -1 and columns > 0)):
        return columns
    return None


def _is_size(node: fx.Node) -> bool:
    """Return whether a node is a size of a tensor: ``x.size()``, ``x.shape``, or one entry."""
    if node.op == "call_method":
        return node.target == "size"
    if node.target is getattr:
        return bool(node.args[1] == "shape")
    whole = node.args[0] if node.target is operator.getitem else None
    return isinstance(whole, fx.Node) and _is_size(whole)


def _is_row_count(node: fx.Node) -> bool:
    """Return whether a node is the number of examples: ``x.size(0)`` or ``x.shape[0]``."""
    return _is_size(node) and node.args[1:] == (0,)
