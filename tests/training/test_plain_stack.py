"""Gradients by hand are autograd's, and only stacks that are plainly such get them.

To the bit, but for the biases of convolutions: those are summed in another order.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from mll_flower.tasks.models import build_model
from mll_flower.training._fast.plain_stack import Stack


def images(channels: int, size: int, last: bool) -> Tensor:
    x = torch.randn(6, channels, size, size, generator=torch.Generator().manual_seed(1))
    return x.contiguous(memory_format=torch.channels_last) if last else x


def wide() -> nn.Sequential:
    """Every option of the layers that is not the default."""
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
    slopes = torch.autograd.grad(expected, list(module.parameters()))
    stack = Stack.of(module, 4)
    assert stack is not None
    with torch.inference_mode():
        found = [torch.full_like(slope, torch.nan) for slope in slopes]
        loss = stack.gradient(x.clone(memory_format=torch.preserve_format), y, found)
    assert torch.equal(loss, expected.detach())
    convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
    sums = [id(part.bias) for part in convolutions]
    for parameter, a, b in zip(module.parameters(), found, slopes, strict=True):
        if id(parameter) in sums:
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(a, b)


class Own(nn.Sequential):
    pass


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
        lambda: Own(nn.Linear(4, 2)),
        lambda: nn.Sequential(nn.Linear(4, 2, bias=False)),
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.Linear(3, 2)),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten()),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular")),
        lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 2))),
        frozen,
        tied,
        hooked,
        buffered,
    ],
)
def test_anything_else_is_left_to_autograd(make: Callable[[], nn.Module]) -> None:
    assert all(Stack.of(make(), dims) is None for dims in (2, 4))


def test_layers_take_batches_of_their_own_dimensions() -> None:
    rows = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    assert Stack.of(rows, 2) is not None
    # Over the last dimension of images: autograd can, the kernel for rows cannot.
    mixed = nn.Sequential(nn.Linear(4, 3), nn.Flatten(), nn.Linear(12, 2))
    assert Stack.of(mixed, 4) is None
    assert Stack.of(nn.Sequential(nn.Conv2d(1, 2, 3)), 4) is None
