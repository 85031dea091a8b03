"""Tasks: their loss, their evaluation, and the data that each model gets."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from mll_flower.tasks import Task
from mll_flower.tasks.data import Dataset
from mll_flower.tasks.models import build_model


def small_task(model: str, rows: int = 50, classes: int = 10, shape: int = 8) -> Task:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 1, shape, shape)).astype(np.float32)
    y = np.sort(rng.integers(0, classes, rows))
    return Task(Dataset("own", "own", x, y, x[::-1].copy(), y[::-1].copy(), classes), model, 3)


def same(a: nn.Module, b: nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return list(left) == list(right) and all(torch.equal(left[k], right[k]) for k in left)


def test_logistic_loss_is_the_log_loss() -> None:
    task = small_task("logistic")
    z = np.array([-3.0, -0.1, 0.2, 40.0, -40.0])
    y = np.array([4, 5, 9, 0, 2])
    signed = np.where(y >= 5, -z, z)
    expected = np.mean([math.log1p(math.exp(value)) for value in signed])
    output = torch.from_numpy(z)[:, None]
    labels = torch.from_numpy(y)
    assert float(task.loss(output, labels)) == pytest.approx(expected, rel=1e-12)
    assert task.correct(output, labels).tolist() == [True, False, True, False, True]


def test_the_loss_of_the_other_models_is_the_cross_entropy() -> None:
    task = small_task("mlp", classes=3)
    output = torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.0, 3.0]], dtype=torch.float64)
    y = torch.tensor([1, 0])
    p = np.exp(output.numpy())[[0, 1], [1, 0]] / np.exp(output.numpy()).sum(axis=1)
    assert float(task.loss(output, y)) == pytest.approx(-np.log(p).mean(), rel=1e-12)
    assert task.correct(output, y).tolist() == [True, False]
    assert task.correct(output, y).dtype == torch.bool


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn"])
@pytest.mark.parametrize("split", ["test", "train"])
def test_evaluate_is_exact_with_a_partial_last_batch(name: str, split: str) -> None:
    task = small_task(name)
    model = build_model("mlp", (1, 8, 8), 10, 0) if name != "logistic" else task.new_model()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    x = torch.from_numpy(task.data.x_test if split == "test" else task.data.x_train)
    y = torch.from_numpy(task.data.y_test if split == "test" else task.data.y_train)
    with torch.no_grad():
        output = model(x)
        if name == "logistic":
            target = (y >= 5).float()
            loss = functional.binary_cross_entropy_with_logits(output[:, 0], target)
            right = ((output[:, 0] > 0) == (y >= 5)).float().mean()
        else:
            loss, right = (
                functional.cross_entropy(output, y),
                (output.argmax(1) == y).float().mean(),
            )
    for batch_size in (1, 7, 49, 50, 512):
        found = task.evaluate(model, split=split, batch_size=batch_size)  # type: ignore[arg-type]
        assert found == pytest.approx((float(loss), float(right)), rel=1e-5)


def test_evaluate_leaves_the_model_as_it_was() -> None:
    task = small_task("resnet18")
    model = task.new_model()
    model.get_submodule("layer1").eval()  # as if this layer were frozen
    modes = [part.training for part in model.modules()]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    task.evaluate(model, batch_size=20)
    assert [part.training for part in model.modules()] == modes
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    first = task.evaluate(model.eval(), batch_size=50)
    assert task.evaluate(model.train(), batch_size=50) == first  # batch statistics are not used
    assert all(p.grad is None for p in model.parameters())


def test_a_limit_takes_rows_spread_over_the_split() -> None:
    task = small_task("logistic", rows=100)
    model = task.new_model()
    x, y = task.data.x_test[::10], task.data.y_test[::10]
    part = Task(Dataset("own", "own", x, y, x, y, 10), "logistic", 0)
    assert task.evaluate(model, limit=10) == part.evaluate(model)
    assert task.evaluate(model, limit=1000) == task.evaluate(model)
    for wrong in ({"limit": 0}, {"batch_size": 0}, {"split": "val"}):
        with pytest.raises(ValueError):
            task.evaluate(model, **wrong)  # type: ignore[arg-type]


def test_tensors_share_the_memory_of_the_arrays() -> None:
    task = small_task("mlp")
    x, y = task.tensors()
    assert x.data_ptr() == task.data.x_train.ctypes.data
    assert y.data_ptr() == task.data.y_train.ctypes.data


def test_task_learns_the_digits() -> None:
    task = Task.load(dataset="digits", model="mlp", seed=2)
    assert same(task.new_model(), task.new_model())
    model = task.new_model()
    x, y = task.tensors()
    before = task.evaluate(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(150):
        optimizer.zero_grad()
        task.loss(model(x), y).backward()
        optimizer.step()
    after = task.evaluate(model)
    assert before[1] < 0.3
    assert after[1] > 0.9
    assert after[0] < before[0] / 3


def test_logistic_gets_pixels_from_0_to_1(tmp_path: Path) -> None:
    x = np.full((10, 32, 32, 3), 255, np.uint8)
    np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=range(10), x_test=x, y_test=range(10))
    task = Task.load(dataset="cifar10", data_dir=str(tmp_path), model="logistic")
    assert task.data.x_train.max() == 1
    task = Task.load(dataset="cifar10", data_dir=str(tmp_path), model="cnn")
    assert task.data.x_train[0, 0, 0, 0] == pytest.approx((1 - 0.4914) / 0.2470)


def test_a_model_that_does_not_fit_its_data_fails_when_loaded(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz",
        x_train=np.zeros((4, 6)),
        y_train=[0, 1, 0, 1],
        x_test=np.zeros((1, 6)),
        y_test=[0],
    )
    with pytest.raises(ValueError, match="takes images of shape"):
        Task.load(dataset=f"npz:{tmp_path / 'a.npz'}", model="cnn")
