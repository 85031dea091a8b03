"""Compiled gradients and outputs are those of torch, the same bits everywhere, and never astray.

Trajectories drift apart with any rounding, so gradients are compared, not trained models.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from mll_flower.native.machine_code import AVX2, why_unavailable
from mll_flower.tasks.models import build_model, in_mode
from mll_flower.training.process import torch_threads

if why_unavailable() is not None:
    pytest.skip(f"nothing can be compiled here: {why_unavailable()}", allow_module_level=True)

from mll_flower.training._compiled.network import CompiledNetwork, CompiledOutputs
from mll_flower.training._compiled.outputs import CompiledModule
from mll_flower.training._compiled.stages import Stage, read_stack

ROWS = 60


def odd() -> nn.Module:
    """Stages of all kinds, with sizes that fill neither vectors nor tiles."""
    return nn.Sequential(
        nn.Conv2d(3, 7, 3),
        nn.ReLU(),
        nn.Conv2d(7, 9, 2, padding=1, bias=False),
        nn.ReLU(),
        nn.MaxPool2d((3, 3)),
        nn.Conv2d(9, 22, 1),
        nn.MaxPool2d(2, stride=2),
        nn.Flatten(),
        nn.Linear(22, 18),
        nn.ReLU(inplace=True),
        nn.Linear(18, 3, bias=False),
    )


def few_channels() -> nn.Module:
    """Convolutions whose kernels are too short for the listing of entries that are not zero."""
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 5, 3, padding=2), nn.MaxPool2d(2)),
        *(nn.Conv2d(5, 6, 2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 4)),
    )


def colours() -> nn.Module:
    """Few channels but wide kernels, the first on the data; rows end within a vector."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 17, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(17 * 2, 10)),
    )


class Written(nn.Module):
    """A class with a ``forward``, as tutorials write it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 5)
        self.pool = nn.MaxPool2d(2)
        self.hidden, self.out = nn.Linear(4 * 3 * 4, 9), nn.Linear(9, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(functional.relu(self.conv(x)))
        return self.out(torch.relu(self.hidden(x.view(-1, 48))))


def rows_of_numbers() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 40), nn.Linear(40, 2))


def dropping() -> nn.Module:
    """Dropout behind all kinds of stages: before a border, before and after a flattening."""
    return nn.Sequential(
        *(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Dropout(0.3)),
        *(nn.Conv2d(3, 17, 3, padding=1), nn.MaxPool2d(2), nn.Dropout(0.5), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(17 * 12, 20), nn.Dropout(0.1)),
        *(nn.Linear(20, 9), nn.ReLU(), nn.Dropout(0.2), nn.Linear(9, 4), nn.LogSoftmax(1)),
    )


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "cnn": (lambda: build_model("cnn", (1, 12, 12), 26, 0), (1, 12, 12), 26),
    "odd": (odd, (3, 9, 9), 3),
    "few channels": (few_channels, (1, 11, 10), 4),
    "colours": (colours, (3, 16, 20), 10),
    "written": (Written, (3, 10, 12), 5),
    "dropping": (dropping, (2, 8, 10), 4),
    "numbers": (rows_of_numbers, (5,), 2),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def mixed(bits: np.ndarray) -> np.ndarray:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        bits = (bits ^ (bits >> np.uint32(shift))) * np.uint32(factor)
    return bits


def dropout_factors(stages: tuple[Stage, ...], rows: int, noise: int) -> list[np.ndarray]:
    """What each dropout multiplies its (rows, ...) inputs with: the readable twin."""
    low, high = np.uint32(noise % 2**32), np.uint32(noise >> 32)
    found = []
    for number, stage in enumerate(stages):
        if stage.dropout:
            size = math.prod(stage.output_shape)
            group, lane = np.divmod(np.arange(rows)[:, None], 16)
            entry = ((group * size + np.arange(size)) * 16 + lane).astype(np.uint32)
            bits = mixed(mixed(entry + low + np.uint32(number * 0x9E3779B9 % 2**32)) ^ high)
            factors = np.where(bits < stage.dropout * 2**32, 0, 1 / (1 - stage.dropout))
            found.append(factors.reshape(rows, *stage.output_shape))
    return found


class Times(nn.Module):
    def __init__(self, factor: np.ndarray) -> None:
        super().__init__()
        self.factor = torch.from_numpy(factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor.to(x.dtype)


class Case:
    """A network, random data, and its compiled gradients."""

    def __init__(self, name: str, batch: int = 20, **options) -> None:
        make, shape, classes = CASES[name]
        torch.manual_seed(0)
        self.module = make()
        self.x, self.y = torch.randn(ROWS, *shape), torch.randint(classes, (ROWS,))
        self.batch, self.options = batch, options
        self.rows = torch.randint(ROWS, (batch,))
        self.noise = 0

    def stages(self) -> tuple[Stage, ...]:
        return read_stack(self.module, tuple(self.x.shape[1:]))

    def compiled(self, model: np.ndarray | None = None) -> CompiledNetwork:
        if model is None:
            parameters = [p.detach().numpy().ravel() for p in self.module.parameters()]
            model = np.concatenate(parameters)
        x, y = self.x.numpy(), self.y.numpy()
        return CompiledNetwork(self.stages(), x, y, self.batch, model, **self.options)

    def autograd(self, dtype: torch.dtype = torch.float32) -> tuple[float, list[np.ndarray]]:
        module = copy.deepcopy(self.module).to(dtype)
        factors = iter(dropout_factors(self.stages(), self.batch, self.noise))
        for name, layer in module.named_children():
            if isinstance(layer, nn.Dropout):
                setattr(module, name, Times(next(factors)))
        output = module(self.x[self.rows].to(dtype))
        loss = functional.cross_entropy(output, self.y[self.rows])
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        return loss.item(), [gradient.numpy().ravel() for gradient in gradients]


def split(vector: np.ndarray, like: list[np.ndarray]) -> list[np.ndarray]:
    return np.split(vector, np.cumsum([part.size for part in like])[:-1])


def worst(found: np.ndarray, expected: list[np.ndarray]) -> float:
    """The largest error of any tensor, relative to its largest entry."""
    pairs = zip(split(found, expected), expected, strict=True)
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in pairs)


@pytest.mark.parametrize("batch", [1, 5, 16, 33, 64])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_autograd(name: str, batch: int) -> None:
    case = Case(name, batch)
    network = case.compiled()
    errors = []
    for _ in range(9):
        case.rows = torch.randint(ROWS, (batch,))
        loss, gradients = case.autograd()
        network.gradient.fill(math.nan)  # every entry must be written
        assert network(case.rows.numpy()) == pytest.approx(loss, rel=1e-5)
        errors.append(worst(network.gradient, gradients))
    # The median: where two entries of a pool are nearly equal, rounding decides between them.
    assert np.median(errors) < 1e-5


@pytest.mark.parametrize("noise", [1, 2**32, 0x0123456789ABCDEF, 2**63 - 1])
def test_dropout_takes_away_what_the_noise_says(noise: int) -> None:
    case = Case("dropping", 33)
    network = case.compiled()
    without = network(case.rows.numpy())
    case.noise = noise
    loss, gradients = case.autograd()
    assert network(case.rows.numpy(), noise) == pytest.approx(loss, rel=1e-5)
    assert loss != pytest.approx(without, rel=1e-3)
    assert worst(network.gradient, gradients) < 1e-5


@pytest.mark.parametrize("probability", [0.0, 1e-3, 0.5, 0.999, 1.0])
def test_as_much_is_dropped_as_is_asked_for(probability: float) -> None:
    # With weights of 1 and inputs of 1, a logit is the mean of the factors.
    size = 5000
    module = nn.Sequential(nn.Linear(1, size), nn.Dropout(probability), nn.Linear(size, 2))
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), (1, 0, 1 / size, 0), strict=True):
            parameter.fill_(value)
    x, y = np.ones((64, 1), np.float32), np.zeros(64, np.int64)
    model = np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])
    network = CompiledNetwork(read_stack(module, (1,)), x, y, 64, model)
    means = []
    for noise in np.random.default_rng(0).integers(2**63, size=20).tolist():
        network(np.arange(64), noise)
        # The gradient of a last weight is the mean over samples of factor times slope, -1/2.
        means.append(-2 * network.gradient[2 * size : 3 * size].mean())
    expected = 1.0 if probability < 1 else 0.0
    spread = math.sqrt(probability / max(1 - probability, 1e-9) / (64 * size))
    assert np.mean(means) == pytest.approx(expected, abs=4 * spread / math.sqrt(20) + 1e-5)
    # Steps are independent of one another.
    assert np.std(means) == pytest.approx(spread if expected else 0.0, rel=0.6, abs=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_as_near_to_double_precision_as_autograd(name: str) -> None:
    case, ours, theirs = Case(name), [], []
    network = case.compiled()
    for _ in range(9):
        case.rows = torch.randint(ROWS, (case.batch,))
        _, exact = case.autograd(torch.float64)
        network(case.rows.numpy())
        ours.append(worst(network.gradient, exact))
        theirs.append(worst(np.concatenate(case.autograd()[1]), exact))
    assert np.median(ours) < 2 * np.median(theirs) + 1e-7


@pytest.mark.parametrize("name", ["cnn", "odd", "few channels", "dropping"])
def test_the_bits_do_not_depend_on_the_vector_length(name: str) -> None:
    """On a CPU with AVX-512 both codes run; on others both are compiled for AVX2."""
    found = []
    for options in ({}, {"cpu": AVX2}):
        case = Case(name, 33, **options)
        network = case.compiled()
        found.append((network(case.rows.numpy()), network.gradient.tobytes()))
    assert found[0] == found[1]


def test_the_bits_depend_on_neither_addresses_nor_earlier_batches() -> None:
    case = Case("cnn", 20)
    network = case.compiled()
    expected = network(case.rows.numpy()), network.gradient.tobytes()
    memory = np.zeros(network.gradient.size + 3, np.float32)
    memory[3:] = np.concatenate([p.detach().numpy().ravel() for p in case.module.parameters()])
    other = case.compiled(memory[3:])
    other(np.arange(20))
    assert (other(case.rows.numpy()), other.gradient.tobytes()) == expected


@pytest.mark.parametrize("options", [{}, {"cpu": AVX2}])
@pytest.mark.parametrize("name", CASES)
def test_nothing_outside_its_memory_is_read_or_written(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fences: list[np.ndarray] = []

    def fenced(size: int) -> np.ndarray:
        """Zeros between NaN: one that is read would be in the result."""
        memory = np.full(size + 8192, np.nan, np.float32)
        memory[4096:-4096] = 0
        fences.append(memory)
        return memory[4096:-4096]

    case = Case(name, 33, **options)
    network = case.compiled()
    monkeypatch.setattr("mll_flower.training._compiled.network._aligned_zeros", fenced)
    parameters = [p.detach().numpy().ravel() for p in case.module.parameters()]
    model = fenced(network.gradient.size)
    model[:] = np.concatenate(parameters)
    data = fenced(case.x.numel()).reshape(case.x.shape)
    data[...] = case.x.numpy()
    case.x = torch.from_numpy(data)
    case.rows[0] = ROWS - 1  # whose numbers end where the fence begins
    case.rows[-1] = 0
    expected = network(case.rows.numpy()), network.gradient.tobytes()
    within = case.compiled(model)
    assert (within(case.rows.numpy()), within.gradient.tobytes()) == expected
    assert len(fences) == 4
    for memory in fences:
        assert np.isnan(memory[:4096]).all()
        assert np.isnan(memory[-4096:]).all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("tensor", range(8))
def test_parameters_that_are_not_finite_spread_as_in_torch(value: float, tensor: int) -> None:
    case = Case("cnn", 20)
    with torch.no_grad():
        list(case.module.parameters())[tensor].view(-1)[0] = value
    loss, expected = case.autograd()
    network = case.compiled()
    assert network(case.rows.numpy()) == pytest.approx(loss, rel=1e-5, nan_ok=True)
    for mine, theirs in zip(split(network.gradient, expected), expected, strict=True):
        assert np.isfinite(mine).all() == np.isfinite(theirs).all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("name", CASES)
def test_data_that_are_not_finite_spread_as_in_torch(name: str, value: float) -> None:
    case = Case(name, 20)
    case.x[case.rows[3]].view(-1)[2] = value
    loss, expected = case.autograd()
    network = case.compiled()
    found = network(case.rows.numpy())
    assert math.isfinite(found) == math.isfinite(loss)
    for mine, theirs in zip(split(network.gradient, expected), expected, strict=True):
        assert np.isfinite(mine).all() == np.isfinite(theirs).all()


def test_very_unlike_logits() -> None:
    case = Case("numbers", 20)
    with torch.no_grad():
        list(case.module.parameters())[-1].copy_(torch.tensor([500.0, -500.0]))
    loss, expected = case.autograd()
    network = case.compiled()
    assert network(case.rows.numpy()) == pytest.approx(loss, rel=1e-6)
    assert worst(network.gradient, expected) < 1e-5


@pytest.mark.parametrize("row", [-1, ROWS, -(2**62), 2**62])
def test_rows_that_do_not_exist_are_an_error(row: int) -> None:
    network = Case("numbers", 20).compiled()
    rows = np.arange(20)
    rows[19] = row
    network.gradient.fill(7)
    with pytest.raises(IndexError, match=f"they must be from 0 to {ROWS - 1}"):
        network(rows)
    assert (network.gradient == 7).all()


@pytest.mark.parametrize("label", [-100, -1, 2, 2**32])
def test_labels_that_are_no_class_are_an_error(label: int) -> None:
    case = Case("numbers", 20)
    case.y[case.rows[0]] = label
    with pytest.raises(IndexError, match="with labels from 0 to 1"):
        case.compiled()(case.rows.numpy())


@pytest.mark.parametrize(
    "rows",
    [
        np.arange(19),
        np.arange(20, dtype=np.int32),
        np.arange(40)[::2],
        np.arange(20).reshape(4, 5),
        np.frombuffer(b"x" + np.arange(20).tobytes(), np.int64, 20, 1),
    ],
    ids=["short", "int32", "strided", "matrix", "unaligned"],
)
def test_rows_of_another_kind_are_an_error(rows: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"rows is .* it must be int64"):
        Case("numbers", 20).compiled()(rows)


def test_data_of_another_kind_are_an_error() -> None:
    case = Case("numbers", 20)
    stages, model = read_stack(case.module, (5,)), np.zeros(260, np.float32)
    x, y = case.x.numpy(), case.y.numpy()
    CompiledNetwork(stages, x, y, 20, model)
    for bad in (
        (x.astype(np.float64), y, 20, model),
        (np.asfortranarray(x), y, 20, model),
        (x, y[1:], 20, model),
        (x, y.astype(np.int32), 20, model),
        (x, y, 0, model),
        (x, y, 20, model[1:]),
        (x, y, 20, np.zeros(520, np.float32)[::2]),
    ):
        with pytest.raises(ValueError, match=r"must be|at least one"):
            CompiledNetwork(stages, *bad)


@pytest.mark.parametrize("rows", [1, 16, 31, 60])
@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_torch(name: str, rows: int) -> None:
    case = Case(name)
    compiled = CompiledModule(case.module, tuple(case.x.shape[1:]))
    with in_mode(case.module, training=False):
        expected = case.module(case.x[:rows]).detach().numpy()
    found = compiled(case.x[:rows]).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_the_bits_of_outputs_depend_on_neither_threads_nor_batches_nor_the_vector_length() -> None:
    case = Case("odd")
    case.x = torch.randn(500, *case.x.shape[1:])
    shape = tuple(case.x.shape[1:])
    compiled = CompiledModule(case.module, shape)
    expected = compiled(case.x).numpy().tobytes()
    with torch_threads(3):
        assert compiled(case.x).numpy().tobytes() == expected
    parts = [compiled(part).numpy() for part in case.x.split(70)]
    assert np.concatenate(parts).tobytes() == expected
    model = np.concatenate([p.detach().numpy().ravel() for p in case.module.parameters()])
    narrow = CompiledOutputs(read_stack(case.module, shape), shape, cpu=AVX2)
    assert narrow(model, case.x.numpy()).tobytes() == expected


def test_outputs_are_those_of_the_parameters_at_the_time() -> None:
    case = Case("few channels")
    compiled = CompiledModule(case.module, tuple(case.x.shape[1:]))
    before = compiled(case.x)
    with torch.no_grad():
        case.module[-1].bias += 1  # type: ignore[index, union-attr, operator]
    torch.testing.assert_close(compiled(case.x), before + 1)


def test_examples_of_another_shape_or_dtype_are_refused() -> None:
    case = Case("numbers")
    compiled = CompiledModule(case.module, (5,))
    for wrong in (torch.zeros(3, 4), torch.zeros(3, 5, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"x is float.*it must be float32\(3, 5\)"):
            compiled(wrong)
