"""Slots: coins, simulated clocks, and budgets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mll_flower.algorithm.coins import batch_rng, coins, slots_until, step_count
from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.schedule import Round, check_periods, rounds
from mll_flower.training.budgets import StepBudget, TimeBudget, budget
from tests.support.random_networks import rates

seeds = st.integers(0, 2**64 - 1)
workers = st.integers(0, 2**31 - 1)
numbers = st.integers(0, 2**32 - 1)
quick = settings(max_examples=60, deadline=None)


@given(seed=seeds, worker=workers, round=numbers, tau=st.integers(1, 50), p=rates)
@quick
def test_coins_depend_on_seed_worker_and_round_alone(seed, worker, round, tau, p) -> None:
    first = coins(seed, worker, round, tau, p)
    # Other draws in between change nothing, and a longer round starts with the same coins.
    batch_rng(seed, worker, round).random(1000)
    coins(seed, worker ^ 1, round, tau, p)
    np.testing.assert_array_equal(coins(seed, worker, round, 2 * tau, p)[:tau], first)
    assert step_count(seed, worker, round, tau, p) == first.sum()


def test_every_coordinate_gives_other_coins() -> None:
    streams = {
        coins(seed, worker, round, 64, 0.5).tobytes()
        for seed in range(5)
        for worker in range(5)
        for round in range(5)
    }
    assert len(streams) == 125


def test_batches_do_not_follow_the_coins() -> None:
    tosses = coins(7, 3, 2, 4000, 0.5).astype(float)
    draws = batch_rng(7, 3, 2).random(4000)
    assert abs(np.corrcoef(tosses, draws)[0, 1]) < 0.06
    assert batch_rng(7, 3, 2).random() == draws[0]
    assert batch_rng(7, 3, 3).random() != draws[0]


@pytest.mark.parametrize("p", [0.1, 0.55, 0.9])
def test_step_counts_are_binomial(p: float) -> None:
    tau, n = 32, 4000
    counts = [step_count(1, worker, round, tau, p) for worker in range(40) for round in range(100)]
    assert abs(np.mean(counts) - tau * p) < 5 * np.sqrt(tau * p * (1 - p) / n)
    assert np.var(counts) == pytest.approx(tau * p * (1 - p), rel=0.15)


def test_a_rate_of_one_takes_every_slot() -> None:
    assert step_count(1, 2, 3, 17, 1.0) == 17
    assert coins(1, 2, 3, 17, 1.0).all()
    assert slots_until(1, 2, 3, 17, 1.0) == 17


@given(seed=seeds, worker=workers, round=numbers, steps=st.integers(1, 40), p=st.floats(0.05, 1.0))
@quick
def test_slots_until_counts_the_coins_of_one_long_stream(seed, worker, round, steps, p) -> None:
    needed = slots_until(seed, worker, round, steps, p)
    taken = slot = 0
    for coin in coins(seed, worker, round, 20_000, p):
        slot += 1
        taken += coin
        if taken == steps:
            break
    assert needed == slot
    assert step_count(seed, worker, round, needed, p) == steps
    assert step_count(seed, worker, round, needed - 1, p) < steps


def test_slots_until_takes_tau_over_p_on_average() -> None:
    tau, p, n = 8, 0.4, 2000
    needed = [slots_until(5, worker, 1, tau, p) for worker in range(n)]
    assert abs(np.mean(needed) - tau / p) < 5 * np.sqrt(tau * (1 - p)) / p / np.sqrt(n)


def test_deadline_rounds_last_tau_slots() -> None:
    network = HubNetwork.build(hubs=3, workers_per_hub=2, rates=0.3)
    found = list(rounds(network, tau=8, q=3, slots=59, seed=1))
    assert [r.number for r in found] == [1, 2, 3, 4, 5, 6, 7]
    assert [r.slot for r in found] == [8, 16, 24, 32, 40, 48, 56]
    assert [r.mixes for r in found] == [False, False, True, False, False, True, False]
    for r in found:
        np.testing.assert_array_equal(r.start, [r.slot - 8] * 3)
        np.testing.assert_array_equal(r.end, [r.slot] * 3)


def test_a_round_that_ends_with_the_last_slot_counts() -> None:
    network = HubNetwork.build(hubs=2)
    assert len(list(rounds(network, tau=8, q=1, slots=16, seed=1))) == 2
    assert len(list(rounds(network, tau=8, q=1, slots=15, seed=1))) == 1


def test_wait_for_all_rounds_by_hand() -> None:
    network = HubNetwork.build(
        workers_per_hub=[2, 1, 3], graph="path", rates=[0.5, 1, 1, 0.2, 0.9, 0.7]
    )
    tau, q, seed = 5, 3, 11
    now = [0, 0, 0]
    found = list(rounds(network, tau, q, slots=400, seed=seed, wait_for_all=True))
    assert len(found) > 6
    for number, r in enumerate(found, start=1):
        end = []
        for hub in range(3):
            longest = max(
                slots_until(seed, int(i), number, tau, network.p[i]) for i in network.members(hub)
            )
            end.append(now[hub] + longest)
        assert isinstance(r, Round)
        assert (r.number, r.mixes) == (number, number % q == 0)
        np.testing.assert_array_equal(r.start, now)
        np.testing.assert_array_equal(r.end, end)
        # Hubs run on at their own pace, until a mixing that all of them wait for.
        now = [max(end)] * 3 if r.mixes else end
    assert any(len(set(r.start.tolist())) > 1 for r in found)
    assert found[-1].slot <= 400


def test_wait_for_all_at_full_rate_is_the_deadline_clock() -> None:
    network = HubNetwork.build(hubs=2, workers_per_hub=3, rates=1.0)
    waiting = [r.slot for r in rounds(network, 4, 2, 40, seed=1, wait_for_all=True)]
    assert waiting == [r.slot for r in rounds(network, 4, 2, 40, seed=1)]


def test_check_periods_takes_numpy_integers() -> None:
    check_periods(np.int64(3), 1)


def test_step_budget_goes_round_and_reads_no_batch_too_many() -> None:
    read = []

    def load():
        for batch in "abc":
            read.append(batch)
            yield batch

    class Loader:
        def __iter__(self):
            return load()

    given = StepBudget(5)
    assert list(given.pace(Loader())) == list("abcab")
    assert given.taken == 5
    assert read == list("abcab")


def test_step_budget_of_nothing_needs_no_data() -> None:
    given = StepBudget(0)
    assert list(given.pace([])) == []
    assert given.taken == 0


def test_a_worker_without_data_says_so() -> None:
    with pytest.raises(ValueError, match="no batches to train on"):
        list(StepBudget(1).pace([]))


def test_an_iterator_that_runs_dry_ends_the_steps() -> None:
    given = StepBudget(10)
    assert list(given.pace(iter("abc"))) == list("abc")
    assert given.taken == 3


class FakeClock:
    """Time that passes only when somebody sleeps or works."""

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def work(tau: int, slot: float, lasts) -> tuple[TimeBudget, list[float], float]:
    """Train with steps that last lasts(step) seconds; the begins, and the end."""
    clock = FakeClock(0.0)
    given = TimeBudget(tau, slot, clock=clock, sleep=clock.sleep)
    begins = []
    for _ in given.pace([None]):
        begins.append(clock.now)
        clock.now += lasts(len(begins) - 1)
    return given, begins, clock.now


@given(
    tau=st.integers(1, 200),
    slot=st.floats(0.001, 100.0),
    part=st.floats(0.0, 0.99),
)
@settings(max_examples=200, deadline=None)
def test_a_fast_worker_takes_one_step_a_slot(tau: int, slot: float, part: float) -> None:
    given, begins, end = work(tau, slot, lambda _: part * slot)
    np.testing.assert_allclose(begins, np.arange(tau) * slot, rtol=1e-9, atol=1e-9)
    assert given.taken == tau
    assert given.rate == 1
    assert end <= tau * slot * (1 + 1e-9)


@given(
    tau=st.integers(1, 40),
    # Sixteenths of slots of whole sixty-fourths: sums are exact, and so is a step's slot.
    slot=st.integers(1, 640).map(lambda n: n / 64),
    parts=st.lists(st.integers(0, 80).map(lambda n: n / 16), min_size=40, max_size=40),
)
@settings(max_examples=200, deadline=None)
def test_at_most_one_step_begins_in_a_slot(tau: int, slot: float, parts: list[float]) -> None:
    given, begins, _ = work(tau, slot, lambda step: parts[step] * slot)
    places = np.floor(np.array(begins) / slot)
    assert len(set(places.tolist())) == len(begins) == given.taken <= tau
    assert places.max() < tau


@pytest.mark.parametrize(("lasts", "steps"), [(2.0, 5), (3.0, 3), (9.0, 1), (1.5, 6)])
def test_a_slow_worker_stops_in_time(lasts: float, steps: int) -> None:
    given, _, end = work(10, 1.0, lambda _: lasts)
    assert given.taken == steps
    assert given.rate == steps / 10
    assert end <= 10


def test_a_step_that_would_end_too_late_is_not_begun() -> None:
    given, begins, _ = work(10, 1.0, lambda step: 4.0 if step == 0 else 0.5)
    # One step took 4: from slot 7 on another such step would not end in time.
    assert begins == [0, 4, 5, 6]
    assert given.rate == 0.4


def test_the_only_step_of_a_very_slow_worker() -> None:
    given, begins, _ = work(2, 1.0, lambda _: 50.0)
    assert begins == [0]
    assert given.taken == 1


def test_time_budget_on_the_real_clock() -> None:
    given = TimeBudget(3, 0.01)
    assert len(list(given.pace([None]))) == given.taken <= 3


def test_budget_of_a_config() -> None:
    timed = budget({"tau": 8, "slot-seconds": 0.5, "rate": 1.0})
    assert isinstance(timed, TimeBudget)
    assert (timed.tau, timed.slot) == (8, 0.5)
    assert budget({"steps": 6, "tau": 8}) == StepBudget(6)
    config = {"seed": 3, "worker": 2, "round": 5, "tau": 32, "rate": 0.5}
    assert budget(config) == StepBudget(step_count(3, 2, 5, 32, 0.5))


def test_budget_names_the_missing_key() -> None:
    with pytest.raises(ValueError, match="no key 'round': a budget needs"):
        budget({"seed": 3, "worker": 2, "tau": 32, "rate": 0.5})
