"""Training at the pace of a budget takes the steps of `train`, so that a round can be replayed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mll_flower.algorithm.coins import batch_rng
from mll_flower.config import RunConfig
from mll_flower.training.budgets import DeadlineBudget, StepBudget, TimeBudget
from mll_flower.training.engine import Engine
from mll_flower.training.run_engine import run_engine


def engine(model: str, momentum: float = 0.0) -> Engine:
    config = RunConfig(model=model, batch_size=8, seed=3, momentum=momentum)
    return run_engine(config, (0, 0, 1))


class Clock:
    """A clock that moves by ``step`` when it is read, and when someone sleeps."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 100.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("rows", [1, 5, 1797, 2**33])
def test_the_first_batches_do_not_depend_on_how_many_are_drawn(rows: int) -> None:
    long = batch_rng(7, 2, 5).integers(rows, size=(20, 16))
    for steps in (1, 7, 19):
        short = batch_rng(7, 2, 5).integers(rows, size=(steps, 16))
        np.testing.assert_array_equal(long[:steps], short)


@pytest.mark.parametrize(("model", "momentum"), [("logistic", 0.0), ("logistic", 0.9), ("mlp", 0)])
@pytest.mark.parametrize("steps", [0, 1, 6])
def test_steps_at_a_pace_are_those_of_train(model: str, momentum: float, steps: int) -> None:
    made = engine(model, momentum)
    paced, plain = made.initial(), made.initial()
    budget = StepBudget(steps)
    loss = made.train_paced(paced, 1, 4, budget, 6, 0.1)
    expected = made.train(plain, 1, 4, steps, 0.1)
    assert budget.taken == steps
    assert loss == expected or (math.isnan(loss) and math.isnan(expected))
    for dtype, vector in plain.items():
        np.testing.assert_array_equal(paced[dtype], vector)


@pytest.mark.parametrize(("step", "least", "most"), [(0.01, 10, 10), (0.4, 2, 9), (3.0, 1, 1)])
def test_steps_taken_by_the_clock_can_be_replayed(step: float, least: int, most: int) -> None:
    made = engine("logistic")
    clock = Clock(step)
    budget = TimeBudget(10, 0.5, clock=clock, sleep=clock.sleep)
    paced, plain = made.initial(), made.initial()
    made.train_paced(paced, 0, 2, budget, 10, 0.1)
    assert least <= budget.taken <= most
    made.train(plain, 0, 2, budget.taken, 0.1)
    np.testing.assert_array_equal(paced["float32"], plain["float32"])


def test_a_worker_stops_before_the_deadline_of_its_hub() -> None:
    clock = Clock(0.1)
    budget = DeadlineBudget(100, 1.0, clock=clock, sleep=clock.sleep, until=clock.now + 5.5)
    end = budget.until
    for _ in budget.pace(range(100)):
        clock.now += 0.3  # seconds that the step takes
    assert clock.now <= end
    assert 4 <= budget.taken <= 6
    assert budget.rate == budget.taken / 100


def test_a_budget_without_time_gives_no_step() -> None:
    clock = Clock(0.1)
    budget = DeadlineBudget(10, 1.0, clock=clock, sleep=clock.sleep, until=clock.now - 1)
    assert list(budget.pace(range(10))) == []
    assert budget.taken == 0
