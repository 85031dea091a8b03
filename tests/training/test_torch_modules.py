"""Training of unusual modules: dropout, tied or frozen parameters, buffers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mll_flower.training.engine import Engine
from tests.support.torch_modules import CLASSES, DropoutNet, OddNet, make_engine, make_task


def test_training_leaves_the_random_state_alone() -> None:
    engine = make_engine(make_task(DropoutNet))
    before = torch.get_rng_state()
    engine.train(engine.initial(), 0, 0, 2, 0.1)
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_differs_between_rounds_and_workers() -> None:
    """With one row of data and zero weights, only the dropped inputs can differ."""
    task = make_task(DropoutNet)
    engine = Engine(task, [np.array([0]), np.array([0])], batch_size=4, seed=0)
    seen = set()
    for worker in (0, 1):
        for round in (0, 1):
            flat = {"float32": np.zeros_like(engine.initial()["float32"])}
            engine.train(flat, worker, round, 1, 0.1)
            seen.add(flat["float32"].tobytes())
    assert len(seen) == 4


def test_tied_and_frozen_parameters_and_buffers_are_kept() -> None:
    engine = make_engine(make_task(OddNet))
    flat, start = engine.initial(), engine.initial()
    engine.train(flat, 0, 0, 3, 0.1)
    arrays, before = engine.layout.arrays(flat), engine.layout.arrays(start)
    assert "seen" not in arrays
    np.testing.assert_array_equal(arrays["first.weight"], arrays["second.weight"])
    assert not np.array_equal(arrays["first.weight"], before["first.weight"])
    np.testing.assert_array_equal(arrays["frozen"], before["frozen"])
    np.testing.assert_array_equal(arrays["unused"], before["unused"])
    assert arrays["mean"].any()


def test_a_buffer_that_changes_its_shape_is_an_error() -> None:
    class Grows(nn.Module):
        seen: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(64, CLASSES)
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.seen = torch.cat([self.seen, self.seen])
            return self.out(x.flatten(1))

    engine = make_engine(make_task(Grows))
    for _ in range(2):  # after the error the engine works as before
        with pytest.raises(ValueError, match="buffer 'seen'"):
            engine.train(engine.initial(), 0, 0, 1, 0.1)


def test_state_that_is_not_a_tensor_is_an_error() -> None:
    class WithExtraState(nn.Linear):
        def get_extra_state(self) -> str:
            return "hello"

    with pytest.raises(ValueError, match="'_extra_state' is a str"):
        make_engine(make_task(lambda: WithExtraState(64, CLASSES)))
