"""Gradients of a plain stack of layers, without autograd.

Why it pays: autograd builds a graph of every step, which costs a twelfth of a step of the paper's
CNN. Here the same kernels are called in the same order, with the same bits, and without a graph.
The only exception is the gradient of a convolution's bias: it is a ``torch.sum``, taken before the
backward pass of a max-pool that follows the convolution. That takes a tenth of the time of the
convolution's own kernel, and may differ from it in the last bits. All gradients are in one vector,
so that one operation moves the whole model.

Only `TorchTrainer` uses it: it calls `PlainStack.of` once, and uses autograd if that returns None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

# By their full names, because finding an overload takes longer than a small kernel.
_convolution = torch.ops.aten.convolution.default
_convolution_backward = torch.ops.aten.convolution_backward.default
_max_pool = torch.ops.aten.max_pool2d_with_indices.default
_max_pool_backward = torch.ops.aten.max_pool2d_with_indices_backward.default
_relu_backward = torch.ops.aten.threshold_backward.default
_log_softmax = torch.ops.aten._log_softmax.default
_log_softmax_backward = torch.ops.aten._log_softmax_backward_data.default
_nll_loss = torch.ops.aten.nll_loss_forward.default
_nll_loss_backward = torch.ops.aten.nll_loss_backward.default
_MEAN, _IGNORED_LABEL = 1, -100  # cross_entropy's defaults, as the kernels encode them


class PlainStack:
    """The mean cross-entropy of a batch and its gradient; make one with `of`.

    Parameters
    ----------
    layers : list of _Layer
        From the first to the last.
    model : Tensor
        The vector that holds the parameters of all layers, in their order.

    Attributes
    ----------
    trained : list of Tensor
        ``model`` alone.
    """

    def __init__(self, layers: list[_Layer], model: Tensor) -> None:
        self._layers = layers
        self.trained = [model]
        self._gradient = torch.zeros_like(model)
        sizes = [parameter.numel() for layer in layers for parameter in layer.parameters]
        parts = iter(torch.split_with_sizes(self._gradient, sizes))
        self._gradients = [
            [next(parts).view(parameter.shape) for parameter in layer.parameters]
            for layer in layers
        ]

    @classmethod
    def of(cls, module: nn.Module, row: Mapping[str, Tensor], dims: int) -> PlainStack | None:
        """Return the stack that equals a module; None if only autograd can differentiate it.

        Parameters
        ----------
        module : Module
            Its tensors must be views of ``row``.
        row : Mapping
            dtype name -> the entries of the module's state_dict of that dtype, in order.
        dims : int
            Number of dimensions of a batch.
        """
        if (
            type(module) is not nn.Sequential
            or _has_hooks(module)
            or any(True for _ in module.buffers())
            or len(row) != 1
        ):
            return None
        layers: list[_Layer] = []
        for part in module:
            kind = _KINDS.get(type(part))
            if kind is None or _has_hooks(part) or not kind.supports(part, dims):
                return None
            layer = kind(part)
            if layers and isinstance(before := layers[-1], _Convolution) and kind is _MaxPool:
                layers[-1] = _PooledConvolution(before, layer)
            else:
                layers.append(layer)
            dims = 2 if kind is _Flatten else dims
        parameters = list(module.parameters())
        own = [parameter for layer in layers for parameter in layer.parameters]
        # The same parameters in the same order, none of them shared and none frozen.
        same = len(own) == len(parameters) and all(
            a is b and b.requires_grad for a, b in zip(own, parameters, strict=True)
        )
        return cls(layers, *row.values()) if same and own and dims == 2 else None

    def __call__(self, x: Tensor, labels: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the loss of a batch and its gradient with respect to ``model``.

        The gradient is valid until the next call; ``x`` may be changed.
        """
        with torch.inference_mode():
            for layer in self._layers:
                x = layer.forward(x)
            log_p = _log_softmax(x, 1, False)
            loss, weight = _nll_loss(log_p, labels, None, _MEAN, _IGNORED_LABEL)
            gradient = _nll_loss_backward(
                torch.ones_like(loss), log_p, labels, None, _MEAN, _IGNORED_LABEL, weight
            )
            gradient = _log_softmax_backward(gradient, log_p, 1, log_p.dtype)
            for place in reversed(range(len(self._layers))):
                gradient = self._layers[place].backward(
                    gradient, place == 0, self._gradients[place]
                )
        return loss, [self._gradient]


class _Layer(Protocol):
    parameters: list[Tensor]

    def forward(self, x: Tensor) -> Tensor: ...

    def backward(self, gradient: Tensor, first: bool, into: Sequence[Tensor]) -> Tensor:
        """Turn the loss's gradient with respect to the output into that with respect to the input.

        The gradients of the parameters are written into ``into``. The ``first`` layer may
        return anything, as the gradient with respect to the data is not needed.
        """


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


class _Convolution:
    def __init__(self, module: Any) -> None:
        self._weight, self._bias = module.weight, module.bias
        self.parameters = [module.weight, *([] if module.bias is None else [module.bias])]
        self._options = (
            module.stride,
            module.padding,
            module.dilation,
            False,
            [0, 0],
            module.groups,
        )
        self._channels = [module.out_channels]

    @staticmethod
    def supports(module: Any, dims: int) -> bool:
        return dims == 4 and module.padding_mode == "zeros" and not isinstance(module.padding, str)

    def forward(self, x: Tensor) -> Tensor:
        self._x = x
        output: Tensor = _convolution(x, self._weight, self._bias, *self._options)
        return output

    def backward(self, gradient: Tensor, first: bool, into: Sequence[Tensor]) -> Tensor:
        wanted = [not first, True, False]  # gradients of the input, the weight and the bias
        in_input, in_weight, _ = _convolution_backward(
            gradient, self._x, self._weight, self._channels, *self._options, wanted
        )
        into[0].copy_(in_weight)
        if len(into) > 1:
            torch.sum(gradient, (0, 2, 3), out=into[1])
        return in_input  # type: ignore[no-any-return]


class _Linear:
    def __init__(self, module: Any) -> None:
        self._weight, self._bias = self.parameters = [module.weight, module.bias]

    @staticmethod
    def supports(module: Any, dims: int) -> bool:
        return dims == 2 and module.bias is not None

    def forward(self, x: Tensor) -> Tensor:
        self._x = x
        return torch.addmm(self._bias, x, self._weight.t())

    def backward(self, gradient: Tensor, first: bool, into: Sequence[Tensor]) -> Tensor:
        torch.mm(gradient.t(), self._x, out=into[0])
        torch.sum(gradient, 0, out=into[1])
        return gradient if first else gradient.mm(self._weight)


class _MaxPool:
    def __init__(self, module: Any) -> None:
        self.parameters: list[Tensor] = []
        size, stride = _pair(module.kernel_size), _pair(module.stride)
        padding, dilation = _pair(module.padding), _pair(module.dilation)
        self._options = (size, stride, padding, dilation, module.ceil_mode)

    @staticmethod
    def supports(module: Any, dims: int) -> bool:
        return dims == 4 and not module.return_indices

    def forward(self, x: Tensor) -> Tensor:
        self._x = x
        output: Tensor
        output, self._indices = _max_pool(x, *self._options)
        return output

    def backward(self, gradient: Tensor, first: bool, into: Sequence[Tensor]) -> Tensor:
        in_input: Tensor = _max_pool_backward(gradient, self._x, *self._options, self._indices)
        return in_input


class _PooledConvolution:
    """A convolution and the max-pooling after it.

    The backward pass of the pooling hands each entry of the gradient to one pixel, so the gradient
    has the same sum (that of the bias) before and after it. Before, it is a fraction of the size.
    """

    def __init__(self, convolution: _Convolution, pool: _MaxPool) -> None:
        self.parameters = convolution.parameters
        self._convolution, self._pool = convolution, pool

    def forward(self, x: Tensor) -> Tensor:
        return self._pool.forward(self._convolution.forward(x))

    def backward(self, gradient: Tensor, first: bool, into: Sequence[Tensor]) -> Tensor:
        if len(into) > 1:
            torch.sum(gradient, (0, 2, 3), out=into[1])
        gradient = self._pool.backward(gradient, False, ())
        return self._convolution.backward(gradient, first, into[:1])


class _Relu:
    def __init__(self, module: Any) -> None:
        self.parameters: list[Tensor] = []

    @staticmethod
    def supports(module: Any, dims: int) -> bool:
        return True

    def forward(self, x: Tensor) -> Tensor:
        # In place: this changes nothing that an earlier layer needs for its backward pass.
        self._output = x.relu_()
        return self._output

    def backward(self, gradient: Tensor, first: bool, into: Sequence[Tensor]) -> Tensor:
        in_input: Tensor = _relu_backward(gradient, self._output, 0)
        return in_input


class _Flatten:
    def __init__(self, module: Any) -> None:
        self.parameters: list[Tensor] = []

    @staticmethod
    def supports(module: Any, dims: int) -> bool:
        return bool(module.start_dim == 1 and module.end_dim == -1)

    def forward(self, x: Tensor) -> Tensor:
        self._shape = x.shape
        images = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
        self._format = torch.channels_last if images else torch.contiguous_format
        return x.flatten(1)

    def backward(self, gradient: Tensor, first: bool, into: Sequence[Tensor]) -> Tensor:
        return gradient.view(self._shape).contiguous(memory_format=self._format)


def _pair(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else [value, value]


_KINDS: dict[type[nn.Module], Any] = {
    nn.Conv2d: _Convolution,
    nn.Linear: _Linear,
    nn.MaxPool2d: _MaxPool,
    nn.ReLU: _Relu,
    nn.Flatten: _Flatten,
}
