"""Models and the task that ties them to data."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from mll_flower.tasks import Task
from mll_flower.tasks.data import Dataset
from mll_flower.tasks.models import binary_labels, build_model, known_models

SHAPES = [(1, 28, 28), (1, 8, 8), (3, 32, 32)]


def small_task(model: str, rows: int = 50, classes: int = 10, shape: int = 8) -> Task:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 1, shape, shape)).astype(np.float32)
    y = np.sort(rng.integers(0, classes, rows))
    return Task(Dataset("own", "own", x, y, x[::-1].copy(), y[::-1].copy(), classes), model, 3)


def same(a: nn.Module, b: nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return list(left) == list(right) and all(torch.equal(left[k], right[k]) for k in left)


@pytest.mark.parametrize("name", known_models())
@pytest.mark.parametrize("shape", SHAPES)
def test_models_give_one_output_a_class(name: str, shape: tuple[int, int, int]) -> None:
    model = build_model(name, shape, 7, seed=0)
    assert model.training
    output = model(torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)))
    assert output.shape == (2, 1 if name == "logistic" else 7)
    assert torch.isfinite(output).all()
    output.sum().backward()
    assert all(p.grad is not None and p.device.type == "cpu" for p in model.parameters())


@pytest.mark.parametrize("name", known_models())
def test_models_start_from_the_seed_alone(name: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build_model(name, (1, 8, 8), 10, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert same(first, build_model(name, (1, 8, 8), 10, seed=5))
    assert same(first, build_model(name, (1, 8, 8), 10, seed=6)) == (name == "logistic")
    assert all(torch.isfinite(value).all() for value in first.state_dict().values())


def test_cnn_is_the_papers() -> None:
    """Its layers written out, and torch's own initial values for them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        expected = nn.Sequential(
            nn.Conv2d(1, 10, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(10, 20, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(20 * 7 * 7, 100),
            nn.ReLU(),
            nn.Linear(100, 26),
        )
    model = build_model("cnn", (1, 28, 28), 26, seed=11)
    for own, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(own, other)
    x = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(x), expected(x))


def test_resnet18_keeps_32x32_through_its_stem() -> None:
    model = build_model("resnet18", (3, 32, 32), 10, seed=0)
    # He et al.'s network with a 3x3 stem: 11,173,962 parameters for 10 classes.
    assert sum(p.numel() for p in model.parameters()) == 11_173_962
    sizes = []
    model.get_submodule("layer1").register_forward_hook(
        lambda _module, inputs, _output: sizes.append(inputs[0].shape[1:])
    )
    model.eval()(torch.zeros(1, 3, 32, 32))
    assert sizes == [(64, 32, 32)]
    state = model.state_dict()
    assert torch.equal(state["bn1.weight"], torch.ones(64))
    assert torch.equal(state["bn1.running_var"], torch.ones(64))
    assert torch.equal(state["bn1.running_mean"], torch.zeros(64))
    assert state["bn1.num_batches_tracked"] == 0
    # fan-out of the stem: 64 channels x 9 weights
    assert state["layer1.0.conv1.weight"].std() == pytest.approx(math.sqrt(2 / 576), rel=0.02)


def test_logistic_is_one_weight_vector_that_starts_at_zero() -> None:
    model = build_model("logistic", (1, 28, 28), 10, seed=4)
    assert [tuple(p.shape) for p in model.parameters()] == [(1, 784), (1,)]
    assert all(not p.any() for p in model.parameters())


@pytest.mark.parametrize("classes", [2, 3, 5, 10, 26])
def test_binary_labels_split_classes_at_half(classes: int) -> None:
    y = np.arange(classes)
    expected = [0 if k < classes / 2 else 1 for k in y]
    assert binary_labels(y, classes).tolist() == expected
    tensor = binary_labels(torch.from_numpy(y), classes)
    assert tensor.tolist() == expected
    assert tensor.dtype == torch.int64


@pytest.mark.parametrize(
    ("name", "shape", "classes", "message"),
    [
        ("cnm", (1, 8, 8), 10, "unknown model 'cnm': use one of logistic, mlp, cnn, resnet18"),
        ("cnn", (64,), 10, "takes images of shape"),
        ("cnn", (1, 3, 8), 10, "at least 4x4"),
        ("resnet18", (8, 8), 10, "takes images of shape"),
        ("mlp", (), 10, "not the shape of an example"),
        ("mlp", (4,), 1, "at least 2 classes, not 1"),
    ],
)
def test_impossible_models(name: str, shape: tuple[int, ...], classes: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(name, shape, classes, 0)


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


def test_class_loss_is_the_cross_entropy() -> None:
    task = small_task("mlp", classes=3)
    output = torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.0, 3.0]], dtype=torch.float64)
    y = torch.tensor([1, 0])
    shares = np.exp(output.numpy())[[0, 1], [1, 0]] / np.exp(output.numpy()).sum(axis=1)
    assert float(task.loss(output, y)) == pytest.approx(-np.log(shares).mean(), rel=1e-12)
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
    model.get_submodule("layer1").eval()  # as when some layers are frozen
    modes = [part.training for part in model.modules()]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    task.evaluate(model, batch_size=20)
    assert [part.training for part in model.modules()] == modes
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    first = task.evaluate(model.eval(), batch_size=50)
    assert task.evaluate(model.train(), batch_size=50) == first  # batch statistics play no part
    assert all(p.grad is None for p in model.parameters())


def test_limit_spreads_over_sorted_rows() -> None:
    task = small_task("logistic", rows=100)
    model = task.new_model()
    x, y = task.data.x_test[::10], task.data.y_test[::10]
    part = Task(Dataset("own", "own", x, y, x, y, 10), "logistic", 0)
    assert task.evaluate(model, limit=10) == part.evaluate(model)
    assert task.evaluate(model, limit=1000) == task.evaluate(model)
    for wrong in ({"limit": 0}, {"batch_size": 0}, {"split": "val"}):
        with pytest.raises(ValueError):
            task.evaluate(model, **wrong)  # type: ignore[arg-type]


def test_tensors_share_the_arrays_memory() -> None:
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


def test_logistic_gets_pixels_in_0_to_1(tmp_path: Path) -> None:
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
