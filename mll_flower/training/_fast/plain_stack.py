"""Gradients of a plain stack of layers, without autograd.

The kernels are those that autograd calls, in the same order and with the same bits; what is
left out is its graph, which costs a twelfth of a step of the paper's CNN. One is another: the
slope in a convolution's bias is summed by torch, before the pool if there is one. That takes a
tenth of the time of the convolution's own kernel and may differ from it in the last bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

# By their full names: to find an overload takes longer than a small kernel.
_convolve = torch.ops.aten.convolution.default
_convolve_back = torch.ops.aten.convolution_backward.default
_pool = torch.ops.aten.max_pool2d_with_indices.default
_pool_back = torch.ops.aten.max_pool2d_with_indices_backward.default
_relu_back = torch.ops.aten.threshold_backward.default
_log_softmax = torch.ops.aten._log_softmax.default
_log_softmax_back = torch.ops.aten._log_softmax_backward_data.default
_nll = torch.ops.aten.nll_loss_forward.default
_nll_back = torch.ops.aten.nll_loss_backward.default
_MEAN, _IGNORED = 1, -100  # cross_entropy's defaults, as the kernels call them


class _Layer(Protocol):
    parameters: list[Tensor]

    def forward(self, x: Tensor) -> Tensor: ...

    def backward(self, slope: Tensor, first: bool, slopes: Sequence[Tensor]) -> Tensor:
        """Take the slope of the loss in the output, give that in the input.

        Those in the parameters are written into ``slopes``. The first layer need not give the
        slope in its input.
        """


class Stack:
    """Gives the mean cross-entropy of a batch and its gradient.

    Parameters
    ----------
    layers : list of _Layer
        From the first to the last.
    """

    def __init__(self, layers: list[_Layer]) -> None:
        self._layers = layers

    @classmethod
    def of(cls, module: nn.Module, dims: int) -> Stack | None:
        """Give the stack that a module is for batches of so many dimensions.

        None if it is not plainly one: autograd takes whatever this does not.
        """
        if (
            type(module) is not nn.Sequential
            or _hooks(module)
            or any(True for _ in module.buffers())
        ):
            return None
        layers: list[_Layer] = []
        for part in module:
            kind = _KINDS.get(type(part))
            if kind is None or _hooks(part) or not kind.takes(part, dims):
                return None
            layer = kind(part)
            if layers and isinstance(before := layers[-1], _Convolution) and kind is _MaxPool:
                layers[-1] = _PooledConvolution(before, layer)
            else:
                layers.append(layer)
            dims = 2 if kind is _Flatten else dims
        parameters = list(module.parameters())
        own = [parameter for layer in layers for parameter in layer.parameters]
        # The same parameters in the same order, none twice and none frozen.
        same = len(own) == len(parameters) and all(
            a is b and b.requires_grad for a, b in zip(own, parameters, strict=True)
        )
        return cls(layers) if same and own and dims == 2 else None

    def gradient(self, x: Tensor, labels: Tensor, slopes: Sequence[Tensor]) -> Tensor:
        """Give the loss; ``x`` may be changed.

        Its slopes in the parameters are written into ``slopes``, in the parameters' order.
        """
        for layer in self._layers:
            x = layer.forward(x)
        chances = _log_softmax(x, 1, False)
        loss, weight = _nll(chances, labels, None, _MEAN, _IGNORED)
        slope = _nll_back(torch.ones_like(loss), chances, labels, None, _MEAN, _IGNORED, weight)
        slope = _log_softmax_back(slope, chances, 1, chances.dtype)
        end = len(slopes)
        for place in reversed(range(len(self._layers))):
            layer = self._layers[place]
            start = end - len(layer.parameters)
            slope = layer.backward(slope, place == 0, slopes[start:end])
            end = start
        return loss  # type: ignore[no-any-return]


def _hooks(part: nn.Module) -> bool:
    return bool(
        part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
    )


class _Convolution:
    def __init__(self, part: Any) -> None:
        self._weight, self._bias = part.weight, part.bias
        self.parameters = [part.weight, *([] if part.bias is None else [part.bias])]
        self._how = (part.stride, part.padding, part.dilation, False, [0, 0], part.groups)
        self._channels = [part.out_channels]

    @staticmethod
    def takes(part: Any, dims: int) -> bool:
        return dims == 4 and part.padding_mode == "zeros" and not isinstance(part.padding, str)

    def forward(self, x: Tensor) -> Tensor:
        self._x = x
        made: Tensor = _convolve(x, self._weight, self._bias, *self._how)
        return made

    def backward(self, slope: Tensor, first: bool, slopes: Sequence[Tensor]) -> Tensor:
        wanted = [not first, True, False]
        before, weight, _ = _convolve_back(
            slope, self._x, self._weight, self._channels, *self._how, wanted
        )
        slopes[0].copy_(weight)
        if len(slopes) > 1:
            torch.sum(slope, (0, 2, 3), out=slopes[1])
        return before  # type: ignore[no-any-return]


class _Linear:
    def __init__(self, part: Any) -> None:
        self._weight, self._bias = self.parameters = [part.weight, part.bias]

    @staticmethod
    def takes(part: Any, dims: int) -> bool:
        return dims == 2 and part.bias is not None

    def forward(self, x: Tensor) -> Tensor:
        self._x = x
        return torch.addmm(self._bias, x, self._weight.t())

    def backward(self, slope: Tensor, first: bool, slopes: Sequence[Tensor]) -> Tensor:
        torch.mm(slope.t(), self._x, out=slopes[0])
        torch.sum(slope, 0, out=slopes[1])
        return slope if first else slope.mm(self._weight)


class _MaxPool:
    def __init__(self, part: Any) -> None:
        self.parameters: list[Tensor] = []
        size, stride = _pair(part.kernel_size), _pair(part.stride)
        padding, dilation = _pair(part.padding), _pair(part.dilation)
        self._how = (size, stride, padding, dilation, part.ceil_mode)

    @staticmethod
    def takes(part: Any, dims: int) -> bool:
        return dims == 4 and not part.return_indices

    def forward(self, x: Tensor) -> Tensor:
        self._x = x
        made: Tensor
        made, self._places = _pool(x, *self._how)
        return made

    def backward(self, slope: Tensor, first: bool, slopes: Sequence[Tensor]) -> Tensor:
        before: Tensor = _pool_back(slope, self._x, *self._how, self._places)
        return before


class _PooledConvolution:
    """A convolution and the pool after it.

    The pool passes every slope on to one place: what it takes has the sum of what it gives,
    and is a fraction of the size.
    """

    def __init__(self, convolution: _Convolution, pool: _MaxPool) -> None:
        self.parameters = convolution.parameters
        self._convolution, self._pool = convolution, pool

    def forward(self, x: Tensor) -> Tensor:
        return self._pool.forward(self._convolution.forward(x))

    def backward(self, slope: Tensor, first: bool, slopes: Sequence[Tensor]) -> Tensor:
        if len(slopes) > 1:
            torch.sum(slope, (0, 2, 3), out=slopes[1])
        slope = self._pool.backward(slope, False, ())
        return self._convolution.backward(slope, first, slopes[:1])


class _Relu:
    def __init__(self, part: Any) -> None:
        self.parameters: list[Tensor] = []

    @staticmethod
    def takes(part: Any, dims: int) -> bool:
        return True

    def forward(self, x: Tensor) -> Tensor:
        # In place: no layer here needs what it gave.
        self._y = x.relu_()
        return self._y

    def backward(self, slope: Tensor, first: bool, slopes: Sequence[Tensor]) -> Tensor:
        before: Tensor = _relu_back(slope, self._y, 0)
        return before


class _Flatten:
    def __init__(self, part: Any) -> None:
        self.parameters: list[Tensor] = []

    @staticmethod
    def takes(part: Any, dims: int) -> bool:
        return bool(part.start_dim == 1 and part.end_dim == -1)

    def forward(self, x: Tensor) -> Tensor:
        self._shape = x.shape
        images = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
        self._format = torch.channels_last if images else torch.contiguous_format
        return x.flatten(1)

    def backward(self, slope: Tensor, first: bool, slopes: Sequence[Tensor]) -> Tensor:
        return slope.view(self._shape).contiguous(memory_format=self._format)


def _pair(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else [value, value]


_KINDS: dict[type[nn.Module], Any] = {
    nn.Conv2d: _Convolution,
    nn.Linear: _Linear,
    nn.MaxPool2d: _MaxPool,
    nn.ReLU: _Relu,
    nn.Flatten: _Flatten,
}
