"""`PlainStack` gives the gradients of autograd, and leaves to autograd what is not a plain stack.

The gradients are equal to the bit, except for those of convolutions' biases, which are summed in
another order.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from mll_flower.tasks.models import build_model
from mll_flower.training._fast.plain_stack import PlainStack


def stack_of(module: nn.Module, dims: int) -> PlainStack | None:
    row: dict[str, Tensor] = {}
    for parameter in module.parameters():
        dtype = str(parameter.dtype)
        row[dtype] = torch.cat([row.get(dtype, parameter.new_empty(0)), parameter.flatten()])
    return PlainStack.of(module, {dtype: vector.detach() for dtype, vector in row.items()}, dims)


def images(channels: int, size: int, last: bool) -> Tensor:
    x = torch.randn(6, channels, size, size, generator=torch.Generator().manual_seed(1))
    return x.contiguous(memory_format=torch.channels_last) if last else x


def wide() -> nn.Sequential:
    """Layers with options that are not the defaults."""
    return nn.Sequential(
        nn.Conv2d(4, 6, (3, 2), stride=2, padding=(2, 1), dilation=(1, 2), groups=2, bias=False),
        nn.ReLU(inplace=True),
        nn.MaxPool2d((3, 2), stride=(2, 1), padding=1, ceil_mode=True),
        nn.Conv2d(6, 3, 1),
        nn.MaxPool2d(3, stride=1, padding=1, dilation=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3 * 4 * 6, 5),
    )


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("make", "channels", "size"),
    [
        (lambda: build_model("cnn", (1, 12, 12), 5, 0), 1, 12),
        (lambda: build_model("mlp", (2, 5, 5), 5, 0), 2, 5),
        (wide, 4, 10),
        (lambda: nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(50, 5)), 2, 5),
    ],
)
def test_same_as_autograd(
    make: Callable[[], nn.Module], channels: int, size: int, last: bool
) -> None:
    torch.manual_seed(0)
    module = make()
    x, y = images(channels, size, last), torch.tensor([0, 1, 2, 3, 4, 0])
    expected = functional.cross_entropy(module(x.clone()), y)
    gradients = torch.autograd.grad(expected, list(module.parameters()))
    stack = stack_of(module, 4)
    assert stack is not None
    for _ in range(2):
        loss, [vector] = stack(x.clone(memory_format=torch.preserve_format), y)
        found = [
            part.view(gradient.shape).clone()
            for part, gradient in zip(
                vector.split([gradient.numel() for gradient in gradients]), gradients, strict=True
            )
        ]
        vector.fill_(torch.nan)  # the second call must write every entry
    assert torch.equal(loss, expected.detach())
    convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
    biases = [id(part.bias) for part in convolutions]
    for parameter, a, b in zip(module.parameters(), found, gradients, strict=True):
        if id(parameter) in biases:
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(a, b)


class OwnSequential(nn.Sequential):
    """May do anything in its ``forward``."""


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Linear(3, 2))
    module[1].weight.requires_grad_(False)
    return module


def tied() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(3, 3), nn.Linear(3, 3))
    module[2].weight = module[1].weight
    return module


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    module[1].register_forward_hook(lambda *args: None)
    return module


def buffered() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    module.register_buffer("rounds", torch.zeros(2))
    return module


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(4, 2),
        lambda: nn.Sequential(),
        lambda: nn.Sequential(nn.Flatten()),
        lambda: OwnSequential(nn.Linear(4, 2)),
        lambda: nn.Sequential(nn.Linear(4, 2, bias=False)),
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.Linear(3, 2)),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten()),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular")),
        lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 2))),
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2).double()),
        frozen,
        tied,
        hooked,
        buffered,
    ],
)
def test_anything_else_is_left_to_autograd(make: Callable[[], nn.Module]) -> None:
    assert all(stack_of(make(), dims) is None for dims in (2, 4))


def test_each_layer_takes_batches_of_certain_dimensions() -> None:
    rows = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    assert stack_of(rows, 2) is not None
    # A linear layer over the last dimension of images: autograd can do it, `PlainStack` cannot.
    mixed = nn.Sequential(nn.Linear(4, 3), nn.Flatten(), nn.Linear(12, 2))
    assert stack_of(mixed, 4) is None
    assert stack_of(nn.Sequential(nn.Conv2d(1, 2, 3)), 4) is None
