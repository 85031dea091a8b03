"""Evaluation by the engine equals evaluation of a module that was loaded with the model."""

from __future__ import annotations

import pytest
import torch

from mll_flower.training._compiled.outputs import CompiledModule
from tests.support.torch_modules import BatchNormNet, make_engine, make_task


@pytest.mark.parametrize("model", ["cnn", "logistic", BatchNormNet])
def test_the_given_model_is_evaluated(model: object) -> None:
    task = make_task(model)
    engine = make_engine(task)
    flat = engine.initial()
    engine.train(flat, 0, 0, 20, 0.1)
    module = task.new_model()
    arrays = engine.layout.arrays(flat)
    module.load_state_dict({k: torch.from_numpy(v) for k, v in arrays.items()})
    for threads in (1, None):
        assert engine.evaluate(flat, "train", threads=threads) == pytest.approx(
            task.evaluate(module, "train"), rel=1e-5
        )
    assert engine.evaluate(flat, limit=7) == pytest.approx(task.evaluate(module, limit=7), rel=1e-5)
    assert engine.evaluate(engine.initial()) != engine.evaluate(flat)


@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_machine_code_evaluates_what_it_trains(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    forward = CompiledModule.forward

    def counted(self: CompiledModule, x: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(CompiledModule, "forward", counted)
    made = make_engine(make_task("cnn"), engine=engine)
    made.evaluate(made.initial(), batch_size=10, limit=25)
    assert calls == ([10, 10, 5] if made.gradient_engine == "compiled" else [])
