"""Which code computes gradients, and that both give the same up to rounding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from torch import Tensor, nn
from torch.nn import functional

from mll_flower.native.machine_code import why_unavailable
from mll_flower.training._compiled import gradients
from mll_flower.training.gradient_engine import resolve_engine
from tests.support.torch_modules import CLASSES, BatchNormNet, OwnTask, make_engine, make_task

needs_compiler = pytest.mark.skipif(
    why_unavailable() is not None, reason=f"nothing can be compiled here: {why_unavailable()}"
)


class OtherLoss(OwnTask):
    """The loss is not the cross-entropy."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return functional.multi_margin_loss(output, y)


@needs_compiler
@pytest.mark.parametrize("model", ["cnn", "mlp"])
def test_plain_stacks_are_compiled(model: str) -> None:
    task = make_task(model)
    assert [resolve_engine(c, task) for c in ("auto", "compiled")] == ["compiled"] * 2
    assert resolve_engine("autograd", task) == "autograd"


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("logistic", "a trainer of its own"),
        (BatchNormNet, "the model has buffers"),
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.GELU(), nn.Linear(8, CLASSES)),
            r"layer '2' \(GELU\)",
        ),
    ],
)
def test_everything_else_is_left_to_autograd(model: object, reason: str) -> None:
    task = make_task(model)
    assert resolve_engine("auto", task) == "autograd"
    assert make_engine(task).gradient_engine == "autograd"
    with pytest.raises(ValueError, match=f"engine='compiled' is not possible .*{reason}"):
        make_engine(task, engine="compiled")


def test_other_losses_and_labels_are_left_to_autograd() -> None:
    task = make_task("cnn")
    other = OtherLoss(task.data, "cnn", 3, lambda: task.new_model())
    assert resolve_engine("auto", other) == "autograd"
    y = task.data.y_train.copy()
    y[0] = -100  # which torch's cross-entropy ignores
    ignoring = replace(task, data=replace(task.data, y_train=y))
    assert resolve_engine("auto", ignoring) == "autograd"
    with pytest.raises(ValueError, match=f"labels go from -100 to 3, for {CLASSES} outputs"):
        resolve_engine("compiled", ignoring)


def test_a_cpu_that_cannot_is_left_to_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "why_unavailable", lambda: "the CPU has no fma")
    engine = make_engine(make_task("cnn"))
    assert engine.gradient_engine == "autograd"
    assert np.isfinite(engine.train(engine.initial(), 0, 1, 2, 0.1))
    with pytest.raises(ValueError, match="the CPU has no fma; use engine='auto'"):
        make_engine(make_task("cnn"), engine="compiled")


def test_unknown_engines_are_an_error() -> None:
    with pytest.raises(ValueError, match="engine='fast' is not known: use auto"):
        resolve_engine("fast", make_task("cnn"))


@needs_compiler
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.01}])
@pytest.mark.parametrize(("model", "channels"), [("cnn", 1), ("cnn", 3), ("mlp", 1)])
def test_both_engines_train_alike(model: str, channels: int, options: dict[str, float]) -> None:
    task = make_task(model, channels)
    trained = {}
    for name in ("autograd", "compiled"):
        engine = make_engine(task, engine=name, **options)
        flat = engine.initial()
        loss = engine.train(flat, 1, 2, 5, 0.05)
        trained[name] = (*flat.values(), loss)
    np.testing.assert_allclose(trained["compiled"][0], trained["autograd"][0], atol=1e-6)
    assert trained["compiled"][1] == pytest.approx(trained["autograd"][1], rel=1e-5)


@needs_compiler
def test_a_worker_that_diverges_has_a_model_that_is_not_finite() -> None:
    engine = make_engine(make_task("cnn"), engine="compiled")
    flat = engine.initial()
    engine.train(flat, 0, 1, 50, 1e6)
    assert not np.isfinite(flat["float32"]).all()
