"""Which modules have compiled gradients; what is in the way of the others is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from mll_flower.tasks.models import build_model
from mll_flower.training._compiled.stages import Convolution, Linear, Unsupported, read_stack


def test_the_stages_of_the_papers_cnn() -> None:
    assert read_stack(build_model("cnn", (1, 28, 28), 26, 0), (1, 28, 28)) == (
        Convolution(1, 28, 28, 10, 5, 2, True, 2, True),
        Convolution(10, 14, 14, 20, 5, 2, True, 2, True),
        Linear(980, 100, True, True),
        Linear(100, 26, True),
    )


def test_pool_and_relu_in_either_order_are_one_stage() -> None:
    tail = (nn.Flatten(), nn.Linear(8, 2))
    one = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), *tail)
    other = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.ReLU(), *tail)
    assert read_stack(one, (1, 6, 6)) == read_stack(other, (1, 6, 6))


class OwnSequential(nn.Sequential):
    """May do anything in its ``forward``."""


def numbers(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(16, 3))


def images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 3))


def frozen() -> nn.Module:
    module = numbers()
    module[1].weight.requires_grad_(False)
    return module


def tied() -> nn.Module:
    module = numbers(nn.Linear(16, 16), nn.Linear(16, 16))
    module[2].weight = module[1].weight
    return module


def hooked() -> nn.Module:
    module = numbers()
    module[1].register_forward_hook(lambda *args: None)
    return module


def hooked_parameter() -> nn.Module:
    module = numbers()
    module[1].bias.register_hook(lambda gradient: 2 * gradient)
    return module


def own_forward() -> nn.Module:
    module = numbers()
    module[1].forward = lambda x: x
    return module


def parametrised() -> nn.Module:
    return numbers(nn.utils.parametrizations.weight_norm(nn.Linear(16, 16)))


def buffered() -> nn.Module:
    module = numbers()
    module.register_buffer("rounds", torch.zeros(2))
    return module


def twice() -> nn.Module:
    layer = nn.Linear(16, 16)
    return numbers(layer, nn.ReLU(), layer)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.Linear(4, 2), "the model is a Linear"),
        (lambda: OwnSequential(nn.Linear(4, 2)), "the model is a OwnSequential"),
        (lambda: nn.Sequential(), "the last layer is not Linear"),
        (lambda: nn.Sequential(nn.Flatten()), "the last layer is not Linear"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2), nn.ReLU()), "the last layer"),
        (lambda: numbers(nn.Dropout()), r"layer '1' \(Dropout\): no compiled code"),
        (lambda: numbers(nn.Linear(16, 16), nn.Tanh()), r"layer '2' \(Tanh\): no compiled code"),
        (lambda: numbers(nn.ReLU()), r"layer '1' \(ReLU\): no compiled code for it at this"),
        (lambda: images(nn.MaxPool2d(1)), r"layer '0' \(MaxPool2d\)"),
        (lambda: nn.Sequential(nn.Linear(4, 3)), "put a Flatten before it"),
        (lambda: nn.Sequential(nn.Flatten(2), nn.Linear(4, 3)), "does not flatten all"),
        (lambda: images(nn.Conv2d(1, 1, 3, padding="same")), "padding is not the same"),
        (lambda: images(nn.Conv2d(1, 1, (1, 3))), "kernel is not square"),
        (lambda: images(nn.Conv2d(1, 4, 2, stride=2)), "a stride, a dilation or groups"),
        (lambda: images(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")), "'circular'"),
        (lambda: images(nn.Conv2d(1, 1, 1, padding=1)), "too large"),
        (lambda: images(nn.Conv2d(1, 1, 5)), "nothing is left"),
        (lambda: images(nn.Conv2d(2, 1, 3)), r"its input has the shape \(1, 4, 4\)"),
        (lambda: images(nn.Conv2d(1, 4, 1), nn.MaxPool2d(3, 1)), "squares side by side"),
        (lambda: images(nn.Conv2d(1, 4, 1), nn.MaxPool2d(2, padding=1)), "has padding"),
        (lambda: images(nn.Conv2d(1, 4, 1), nn.MaxPool2d(2, ceil_mode=True)), "ceil_mode"),
        (
            lambda: images(nn.Conv2d(1, 16, 1), nn.MaxPool2d(2), nn.MaxPool2d(2)),
            r"layer '2' \(MaxPool2d\): a pool must come after a convolution",
        ),
        (lambda: numbers().double(), "the parameter '1.weight' is not float32"),
        (frozen, "the parameter '1.weight' is frozen"),
        (tied, "the parameter '1.weight' is shared"),
        (twice, "the parameter '1.weight' is shared"),
        (hooked, "layer '1' has hooks"),
        (hooked_parameter, "the parameter '1.bias' has hooks"),
        (own_forward, "layer '1' has a forward"),
        (parametrised, "layer '1'"),
        (buffered, "the model has buffers"),
    ],
)
def test_anything_else_is_named(make: Callable[[], nn.Module], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        read_stack(make(), (1, 4, 4))
