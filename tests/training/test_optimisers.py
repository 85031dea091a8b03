"""The optimisers move as torch.optim does, to the bit, and start afresh in every round."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mll_flower.config import OPTIMISERS as KNOWN
from mll_flower.training.optimisers import OPTIMISERS, AdamW
from tests.support.torch_modules import OddNet, make_engine, make_task, plain_loop, same

TORCH = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}


def test_the_run_config_knows_every_optimiser() -> None:
    assert tuple(OPTIMISERS) == KNOWN


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sgd", {}),
        ("sgd", {"momentum": 0.9, "weight_decay": 0.1}),
        ("adamw", {}),
        ("adamw", {"weight_decay": 0.1}),
    ],
    ids=str,
)
def test_steps_are_those_of_torch(name: str, options: dict[str, float]) -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in ((5, 3), (4,), ())]
    ours = [tensor.clone() for tensor in start]
    theirs = [tensor.clone().requires_grad_() for tensor in start]
    values = {"momentum": 0.0, "weight_decay": 0.0, **options}
    optimiser = OPTIMISERS[name](ours, **values)
    for _ in range(2):  # the second round starts from no state, as a new optimiser does
        optimiser.reset()
        twin = TORCH[name](theirs, lr=0.01, **{"weight_decay": 0.0, **options})
        for step in range(7):
            gradients = [torch.randn(t.shape, generator=generator) for t in start]
            unused = 1 if step % 3 == 1 else None  # a tensor that the loss does not use
            given = [None if i == unused else g for i, g in enumerate(gradients)]
            optimiser.move(given, 0.01)
            for tensor, gradient in zip(theirs, given, strict=True):
                tensor.grad = gradient
            twin.step()
            for mine, tensor in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(mine.numpy(), tensor.detach().numpy())


def test_adamw_has_no_momentum() -> None:
    with pytest.raises(ValueError, match=r"momentum=0\.9: AdamW has none"):
        AdamW([torch.zeros(2)], 0.9, 0.0)


@pytest.mark.parametrize("model", ["logistic", "mlp", "cnn", OddNet], ids=str)
def test_the_engine_trains_with_adamw(model, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(model)
    engine = make_engine(task, optimiser="adamw", weight_decay=0.01)
    flat = engine.initial()
    loss = engine.train(flat, 2, 5, 6, 0.01)
    monkeypatch.setattr(torch.optim, "SGD", torch.optim.AdamW)  # in the twin of the engine
    state, mean = plain_loop(task, engine.initial(), 2, 5, 6, 0.01, weight_decay=0.01)
    assert loss == pytest.approx(mean, rel=1e-5)
    for name, array in engine.layout.arrays(flat).items():
        np.testing.assert_allclose(array, state[name].numpy(), rtol=1e-4, atol=1e-6)
    again = engine.initial()
    engine.train(engine.initial(), 1, 1, 3, 0.5)  # another worker's moments leave no trace
    engine.train(again, 2, 5, 6, 0.01)
    assert same(again, flat)
