"""Which modules have compiled gradients; what is in the way of the others is named."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from mll_flower.tasks.models import build_model
from mll_flower.training._compiled.layers import Unsupported, check_layers
from mll_flower.training._compiled.stages import Convolution, Linear, read_stack


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


class Net(nn.Module):
    """A network as tutorials write it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 12)
        self.fc2 = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(functional.relu(self.conv1(x)))
        x = self.pool(functional.relu(self.conv2(x)))
        return self.fc2(functional.relu(self.fc1(self.flat(x))))

    def flat(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 16 * 5 * 5)


class Functions(Net):
    """The same by functions and methods."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(self.conv2(x).relu_(), kernel_size=(2, 2), stride=2)
        return self.fc2(functional.relu(self.fc1(self.flat(x)), inplace=True))


class BySize(Functions):
    def flat(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.size(0), -1)


class ByShape(Functions):
    def flat(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape((x.shape[0], 400))


class Flattened(Functions):
    def flat(self, x: torch.Tensor) -> torch.Tensor:
        return torch.flatten(x, 1)


class Dropping(nn.Module):
    """As PyTorch's example for MNIST."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(36, 8), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.conv1(x))
        x = self.dropout1(functional.max_pool2d(functional.relu(self.conv2(x)), 2))
        x = self.fc2(self.dropout2(functional.relu(self.fc1(torch.flatten(x, 1)))))
        return functional.log_softmax(x, dim=1)


class DroppingFunctions(Dropping):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.conv2(functional.relu(self.conv1(x)))), 2)
        x = torch.flatten(functional.dropout(x, 0.25, self.training), 1)
        x = functional.dropout(self.fc1(x), training=self.training, inplace=True)
        return self.fc2(functional.relu(x)).log_softmax(-1)


@pytest.mark.parametrize("make", [Dropping, DroppingFunctions])
def test_dropout_and_log_softmax_end_a_stage(make: Callable[[], nn.Module]) -> None:
    module = make()
    assert read_stack(module, (1, 10, 10)) == (
        Convolution(1, 10, 10, 3, 3, 0, True, relu=True),
        Convolution(3, 8, 8, 4, 3, 0, True, 2, True, 0.25),
        Linear(36, 8, True, True, 0.5),
        Linear(8, 10, True, log_softmax=True),
    )
    check_layers(module, (1, 10, 10))


class Parts(nn.Module):
    """The same in parts, one of which is a list that a loop goes through."""

    def __init__(self) -> None:
        super().__init__()
        pool = nn.MaxPool2d(2)
        self.features = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), pool),
            nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(), pool),
        )
        self.head = nn.ModuleList([nn.Linear(400, 12), nn.ReLU(), nn.Identity(), nn.Linear(12, 10)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(x).flatten(start_dim=1)
        for layer in self.head:
            x = layer(x)
        return x


class OwnSequential(nn.Sequential):
    pass


class OwnStart(Net):
    """Conditions in methods that the forward does not use."""

    def __init__(self) -> None:
        super().__init__()
        for part in self.modules():
            self.start(part)

    def start(self, part: nn.Module) -> None:
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)

    def flat(self, x: torch.Tensor) -> torch.Tensor:
        return self.flattened(x)

    @staticmethod
    def flattened(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)


def own_sequential() -> nn.Module:
    net = Net()
    first = (net.conv1, nn.ReLU(), nn.MaxPool2d(2), net.conv2, nn.ReLU(), nn.MaxPool2d(2))
    return OwnSequential(*first, nn.Flatten(), net.fc1, nn.ReLU(), net.fc2)


@pytest.mark.parametrize(
    "make", [Net, Functions, BySize, ByShape, Flattened, Parts, own_sequential, OwnStart]
)
def test_a_network_may_be_written_in_any_way(make: Callable[[], nn.Module]) -> None:
    module = make()
    module.eval()
    assert read_stack(module, (3, 32, 32)) == (
        Convolution(3, 32, 32, 6, 5, 0, True, 2, True),
        Convolution(6, 14, 14, 16, 5, 0, True, 2, True),
        Linear(400, 12, True, True),
        Linear(12, 10, True),
    )
    assert not any(part.training for part in module.modules())


class Residual(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.conv1(x))
        return self.fc2(self.fc1(self.flat(self.pool(self.conv2(x)))) + 1)


class Branching(Net):
    def flat(self, x: torch.Tensor) -> torch.Tensor:
        if len(self._modules) > 3:
            return x.view(-1, 400)
        return x


def now_and_then(x: torch.Tensor) -> torch.Tensor:
    return x if random.random() < 0.5 else torch.relu(x)


class Helped(Net):
    def flat(self, x: torch.Tensor) -> torch.Tensor:
        return now_and_then(x).view(-1, 400)


class Inner(Net):
    def flat(self, x: torch.Tensor) -> torch.Tensor:
        return (lambda y: now_and_then(y))(x).view(-1, 400)


class Kept(Net):
    def __init__(self) -> None:
        super().__init__()
        self.after = now_and_then

    def flat(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(x).view(-1, 400)


class Bound(Kept):
    def __init__(self) -> None:
        super().__init__()
        self.after = partial(now_and_then)


class Chosen(Net):
    def flat(self, x: torch.Tensor) -> torch.Tensor:
        return random.choice([torch.relu, torch.relu_])(x).view(-1, 400)


class Described(Net):
    @property
    def columns(self) -> int:
        return 400 if self.training else 200

    def flat(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, self.columns)


def closed_over() -> nn.Module:
    after = now_and_then

    class Closed(Net):
        def flat(self, x: torch.Tensor) -> torch.Tensor:
            return after(x).view(-1, 400)

    return Closed()


class PartlyFrozen(Net):
    def flat(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return x.view(-1, 400)


class OwnModes(Net):
    def train(self, mode: bool = True) -> OwnModes:
        super().train(mode)
        self.conv1.requires_grad_(not mode)
        return self


class Modes(Net):
    after = (torch.relu, lambda x: x)

    def flat(self, x: torch.Tensor) -> torch.Tensor:
        return self.after[self.training](x.view(-1, 400))


class Guessing(Net):
    """Plain as long as it is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.after = iter([torch.relu] * 4 + [torch.neg] * 9)

    def flat(self, x: torch.Tensor) -> torch.Tensor:
        return next(self.after)(x).view(-1, 400)


class Noisy(Net):
    """Dropout in evaluations, too."""

    def flat(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x.view(-1, 400), 0.5)


class Reversed(Net):
    """Dropout in evaluations alone."""

    def flat(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x.view(-1, 400), 0.5, not self.training)


class Reordered(Net):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = self._modules.pop("conv1")


class Unused(Net):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(3, 3)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(3 * 32 * 32, 3 * 32 * 32), nn.Linear(3 * 32 * 32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(self.layer(x.flatten(1))))


class TwoResults(Net):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = super().forward(x)
        return y, y


class TwoInputs(Net):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + y


class Wide(Net):
    def flat(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 200)


class OwnBatch(Net):
    def flat(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(3, -1)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Residual, "operation 'add' of its forward"),
        (Branching, "Branching.flat has a condition"),
        (Helped, "now_and_then has a condition"),
        (Inner, "now_and_then has a condition"),
        (Bound, "now_and_then has a condition"),
        (Kept, "now_and_then has a condition"),
        (closed_over, "now_and_then has a condition"),
        (Chosen, "Random.choice has a condition"),
        (Described, "Described.columns has a condition"),
        (PartlyFrozen, "PartlyFrozen.flat has a condition or a with block"),
        (OwnModes, "OwnModes has a method 'train' of its own"),
        (Modes, "differs between training and evaluation"),
        (Noisy, "operation 'dropout' of its forward"),
        (Reversed, "operation 'dropout' of its forward"),
        (Reordered, "in the order of their definition"),
        (Twice, "not used once each"),
        (Unused, "in the order of their definition"),
        (TwoResults, "returns something else than its last result"),
        (TwoInputs, "operation 'add' of its forward"),
        (Wide, "does not flatten all dimensions"),
        (OwnBatch, "operation 'view' of its forward"),
    ],
)
def test_a_forward_that_does_more_is_left_to_autograd(
    kind: Callable[[], nn.Module], reason: str
) -> None:
    with pytest.raises(Unsupported, match=reason):
        read_stack(kind(), (3, 32, 32))


def test_a_forward_is_tried() -> None:
    check_layers(Net(), (3, 32, 32))
    guessing = Guessing()
    read_stack(guessing, (3, 32, 32))
    with pytest.raises(Unsupported, match="its output is not that of its layers"):
        check_layers(guessing, (3, 32, 32))


class Detached(Net):
    """Not trained before its linear layers, which torch.fx does not see."""

    def flat(self, x: torch.Tensor) -> torch.Tensor:
        return switched(lambda: x.view(-1, 400))


def switched(compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    torch._C._set_grad_enabled(False)
    result = compute()
    torch._C._set_grad_enabled(True)
    return result


class Untrained(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return switched(lambda: super(Untrained, self).forward(x))


@pytest.mark.parametrize("kind", [Detached, Untrained])
def test_its_gradient_is_tried_too(kind: type[nn.Module]) -> None:
    module = kind()
    read_stack(module, (3, 32, 32))
    with pytest.raises(Unsupported, match="its gradient is not that of its layers"):
        check_layers(module, (3, 32, 32))
    with torch.no_grad():
        check_layers(Net(), (3, 32, 32))


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
        (lambda: nn.Linear(4, 2), "Linear.forward uses the parameter 'weight' beside its layers"),
        (lambda: nn.Sequential(), "the last layer is not Linear"),
        (lambda: nn.Sequential(nn.Flatten()), "the last layer is not Linear"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2), nn.ReLU()), "the last layer"),
        (lambda: numbers(nn.Dropout()), r"layer '1' \(Dropout\): no compiled code for it at this"),
        (lambda: numbers(nn.AlphaDropout()), r"layer '1' \(AlphaDropout\): no compiled code"),
        (
            lambda: numbers(nn.Linear(16, 16), nn.Dropout(), nn.ReLU(), nn.Dropout()),
            r"layer '4' \(Dropout\): it is the second dropout at this place",
        ),
        (
            lambda: images(nn.Conv2d(1, 4, 1), nn.Dropout(), nn.MaxPool2d(2)),
            r"layer '2' \(MaxPool2d\): a pool must come before dropout",
        ),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2), nn.Dropout()), "the last layer"),
        (
            lambda: numbers(nn.Linear(16, 16), nn.LogSoftmax(1)),
            "a layer comes after the log-softmax",
        ),
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2), nn.LogSoftmax(0)),
            r"layer '2' \(LogSoftmax\): it is not that of the classes",
        ),
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2), nn.LogSoftmax(1), nn.ReLU()),
            "the last layer is not Linear",
        ),
        (lambda: images(nn.Conv2d(1, 1, 1), nn.LogSoftmax(1)), r"layer '1' \(LogSoftmax\)"),
        (
            lambda: numbers(nn.Linear(16, 16), nn.Dropout()).eval(),
            "it has dropout, and parts that are in evaluation mode",
        ),
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
