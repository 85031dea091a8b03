"""Models: their layers, and initial values that depend on the seed alone."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from mll_flower.tasks.models import binary_labels, build_model, known_models

SHAPES = [(1, 28, 28), (1, 8, 8), (3, 32, 32)]


def same(a: nn.Module, b: nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return list(left) == list(right) and all(torch.equal(left[k], right[k]) for k in left)


@pytest.mark.parametrize("name", known_models())
@pytest.mark.parametrize("shape", SHAPES)
def test_models_give_one_output_per_class(name: str, shape: tuple[int, int, int]) -> None:
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


def test_a_model_is_built_without_sympy() -> None:
    """Torch imports it for some operations on models without storage: 30 MB in every process."""
    code = (
        "import sys; from mll_flower.tasks.models import build_model;"
        "build_model('cnn', (1, 28, 28), 10, seed=0); assert 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_cnn_is_the_one_of_the_paper() -> None:
    """Compared with its layers written out, filled with torch's own initial values."""
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


def test_the_stem_of_resnet18_keeps_32x32() -> None:
    model = build_model("resnet18", (3, 32, 32), 10, seed=0)
    # The ResNet-18 of He et al. with a 3x3 stem has 11,173,962 parameters for 10 classes.
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
def test_impossible_models_are_refused(
    name: str, shape: tuple[int, ...], classes: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(name, shape, classes, 0)
