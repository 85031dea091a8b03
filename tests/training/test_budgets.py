"""Budgets: how many steps a worker takes in a round, and when each of them begins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mll_flower.algorithm.coins import step_count
from mll_flower.training.budgets import DeadlineBudget, StepBudget, TimeBudget, budget


def test_step_budget_repeats_the_batches_and_reads_only_those_it_uses() -> None:
    read = []

    def load():
        for batch in "abc":
            read.append(batch)
            yield batch

    class Loader:
        def __iter__(self):
            return load()

    the_budget = StepBudget(5)
    assert list(the_budget.pace(Loader())) == list("abcab")
    assert the_budget.taken == 5
    assert read == list("abcab")


def test_step_budget_of_zero_needs_no_data() -> None:
    the_budget = StepBudget(0)
    assert list(the_budget.pace([])) == []
    assert the_budget.taken == 0


def test_a_worker_without_data_is_an_error() -> None:
    with pytest.raises(ValueError, match="no batches to train on"):
        list(StepBudget(1).pace([]))


def test_an_iterator_that_can_be_read_once_ends_the_steps() -> None:
    the_budget = StepBudget(10)
    assert list(the_budget.pace(iter("abc"))) == list("abc")
    assert the_budget.taken == 3


class FakeClock:
    """A clock that advances only when the test sleeps or works."""

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def work(tau: int, slot: float, seconds_of) -> tuple[TimeBudget, list[float], float]:
    """Take steps of seconds_of(step) seconds; return the budget, when steps began, the end."""
    clock = FakeClock(0.0)
    the_budget = TimeBudget(tau, slot, clock=clock, sleep=clock.sleep)
    begins = []
    for _ in the_budget.pace([None]):
        begins.append(clock.now)
        clock.now += seconds_of(len(begins) - 1)
    return the_budget, begins, clock.now


@given(
    tau=st.integers(1, 200),
    slot=st.floats(0.001, 100.0),
    part=st.floats(0.0, 0.99),
)
@settings(max_examples=200, deadline=None)
def test_a_fast_worker_takes_one_step_per_slot(tau: int, slot: float, part: float) -> None:
    the_budget, begins, end = work(tau, slot, lambda _: part * slot)
    np.testing.assert_allclose(begins, np.arange(tau) * slot, rtol=1e-9, atol=1e-9)
    assert the_budget.taken == tau
    assert the_budget.rate == 1
    assert end <= tau * slot * (1 + 1e-9)


@given(
    tau=st.integers(1, 40),
    # Multiples of powers of two: sums are exact, so each step's slot is known exactly.
    slot=st.integers(1, 640).map(lambda n: n / 64),
    parts=st.lists(st.integers(0, 80).map(lambda n: n / 16), min_size=40, max_size=40),
)
@settings(max_examples=200, deadline=None)
def test_at_most_one_step_begins_in_a_slot(tau: int, slot: float, parts: list[float]) -> None:
    the_budget, begins, _ = work(tau, slot, lambda step: parts[step] * slot)
    slots = np.floor(np.array(begins) / slot)
    assert len(set(slots.tolist())) == len(begins) == the_budget.taken <= tau
    assert slots.max() < tau


@pytest.mark.parametrize(("seconds", "steps"), [(2.0, 5), (3.0, 3), (9.0, 1), (1.5, 6)])
def test_a_slow_worker_stops_in_time(seconds: float, steps: int) -> None:
    the_budget, _, end = work(10, 1.0, lambda _: seconds)
    assert the_budget.taken == steps
    assert the_budget.rate == steps / 10
    assert end <= 10


def test_a_step_that_would_end_too_late_is_not_begun() -> None:
    the_budget, begins, _ = work(10, 1.0, lambda step: 4.0 if step == 0 else 0.5)
    # One step took 4 seconds: after 6 seconds another such step would end too late.
    assert begins == [0, 4, 5, 6]
    assert the_budget.rate == 0.4


def test_a_very_slow_worker_takes_one_step() -> None:
    the_budget, begins, _ = work(2, 1.0, lambda _: 50.0)
    assert begins == [0]
    assert the_budget.taken == 1


@pytest.mark.parametrize(("until", "steps"), [(100.0, 5), (6.0, 3), (5.9, 2), (0.0, 1)])
def test_a_deadline_budget_begins_no_step_that_would_end_after_its_deadline(
    until: float, steps: int
) -> None:
    clock = FakeClock(0.0)
    the_budget = DeadlineBudget(10, 1.0, clock=clock, sleep=clock.sleep, until=until)
    for _ in the_budget.pace([None]):
        clock.now += 2.0
    assert the_budget.taken == steps


def test_time_budget_on_the_real_clock() -> None:
    the_budget = TimeBudget(3, 0.01)
    assert len(list(the_budget.pace([None]))) == the_budget.taken <= 3


def test_the_config_decides_the_kind_of_budget() -> None:
    timed = budget({"tau": 8, "slot-seconds": 0.5, "rate": 1.0})
    assert isinstance(timed, TimeBudget)
    assert (timed.tau, timed.slot) == (8, 0.5)
    assert budget({"steps": 6, "tau": 8}) == StepBudget(6)
    config = {"seed": 3, "worker": 2, "round": 5, "tau": 32, "rate": 0.5}
    assert budget(config) == StepBudget(step_count(3, 2, 5, 32, 0.5))


def test_budget_names_the_missing_key() -> None:
    with pytest.raises(ValueError, match="no key 'round': a budget needs"):
        budget({"seed": 3, "worker": 2, "tau": 32, "rate": 0.5})
