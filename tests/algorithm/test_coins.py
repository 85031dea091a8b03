"""Coins: which slots hold a step, and the random streams behind them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mll_flower.algorithm.coins import (
    batch_rng,
    batch_rngs,
    coins,
    slots_until,
    step_count,
    step_counts,
)
from tests.support.random_networks import rates

seeds = st.integers(0, 2**64 - 1)
workers = st.integers(0, 2**31 - 1)
numbers = st.integers(0, 2**32 - 1)
quick = settings(max_examples=60, deadline=None)


@given(seed=seeds, worker=workers, round=numbers, tau=st.integers(1, 50), p=rates)
@quick
def test_coins_depend_only_on_seed_worker_and_round(seed, worker, round, tau, p) -> None:
    first = coins(seed, worker, round, tau, p)
    # Other draws in between change nothing, and a longer round starts with the same coins.
    batch_rng(seed, worker, round).random(1000)
    coins(seed, worker ^ 1, round, tau, p)
    np.testing.assert_array_equal(coins(seed, worker, round, 2 * tau, p)[:tau], first)
    assert step_count(seed, worker, round, tau, p) == first.sum()


def test_another_seed_worker_or_round_gives_other_coins() -> None:
    streams = {
        coins(seed, worker, round, 64, 0.5).tobytes()
        for seed in range(5)
        for worker in range(5)
        for round in range(5)
    }
    assert len(streams) == 125


def test_batches_are_independent_of_the_coins() -> None:
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


def test_at_rate_one_every_slot_has_a_step() -> None:
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


@given(
    seed=seeds,
    some_workers=st.lists(workers, min_size=1, max_size=5),
    some_rounds=st.lists(numbers, min_size=1, max_size=4),
    tau=st.integers(1, 20),
    data=st.data(),
)
@quick
def test_step_counts_are_those_of_single_workers(
    seed, some_workers, some_rounds, tau, data
) -> None:
    p = [data.draw(st.one_of(rates, st.just(1.0))) for _ in some_workers]
    together = step_counts(seed, some_workers, some_rounds, tau, p)
    apart = [
        [
            step_count(seed, worker, round, tau, rate)
            for worker, rate in zip(some_workers, p, strict=True)
        ]
        for round in some_rounds
    ]
    np.testing.assert_array_equal(together, apart)


@given(seed=seeds, visits=st.lists(st.tuples(workers, numbers), min_size=1, max_size=6))
@quick
def test_the_cheap_generators_give_the_numbers_of_batch_rng(seed, visits) -> None:
    rngs = batch_rngs(seed)
    for worker, round in visits:
        cheap, usual = rngs(worker, round), batch_rng(seed, worker, round)
        # Numbers of several kinds: the shared generator must not keep a half-used random word.
        assert cheap.integers(0, 7, dtype=np.uint32) == usual.integers(0, 7, dtype=np.uint32)
        np.testing.assert_array_equal(cheap.random(5), usual.random(5))
        np.testing.assert_array_equal(cheap.integers(0, 1000, 3), usual.integers(0, 1000, 3))
