"""Training of unusual modules: dropout, tied or frozen parameters, buffers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mll_flower.training.engine import Engine
from tests.support.torch_modules import (
    CLASSES,
    DropoutNet,
    HiddenDropoutNet,
    OddNet,
    make_engine,
    make_task,
)


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


@pytest.mark.parametrize("engine", ["autograd", "compiled"])
def test_dropout_behind_a_hidden_layer(engine: str) -> None:
    """With one row of data, the steps of workers and rounds differ by what is dropped alone."""
    task = make_task(HiddenDropoutNet)
    rows = [np.array([0]), np.array([0])]

    def trained(worker: int, round: int, steps: int = 1) -> bytes:
        made = Engine(task, rows, batch_size=4, seed=0, engine=engine)
        flat = made.initial()
        made.train(flat, worker, round, steps, 0.1)
        return flat["float32"].tobytes()

    places = [(worker, round) for worker in (0, 1) for round in (0, 1)]
    found = [trained(*place) for place in places]
    assert len(set(found)) == 4
    assert [trained(*place) for place in places] == found
    # Each step of a round drops other entries: those of a unit that is always dropped would stay.
    made = Engine(task, rows, batch_size=4, seed=0, engine=engine)
    after = np.frombuffer(trained(0, 0, 40), np.float32)
    moved = made.layout.arrays({"float32": after})["out.weight"]
    assert (moved != made.layout.arrays(made.initial())["out.weight"]).mean() > 0.4


def test_evaluations_drop_nothing() -> None:
    task = make_task(HiddenDropoutNet)
    results = []
    for engine in ("autograd", "compiled", "compiled"):
        made = Engine(task, [np.arange(9)], batch_size=4, seed=0, engine=engine)
        results.append(made.evaluate(made.initial(), "test"))
    assert results[1] == results[2]
    assert results[1] == pytest.approx(results[0], rel=1e-5)


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
