"""The deadline that is learnt from arrival times, on made-up rounds."""

import random

import pytest

from mll_flower.grids.auto_deadline import GROWTH, PATIENCE, RESERVE, AutoDeadline


def play(deadline: AutoDeadline, times: dict[int, float | None], rounds: int = 1) -> list[float]:
    """Play rounds in which workers need these seconds (None: for ever); return the deadlines."""
    given = []
    for _ in range(rounds):
        given.append(deadline.seconds)
        arrived = {w: t for w, t in times.items() if t is not None and t <= deadline.seconds}
        deadline.observe(times, arrived)
    return given


def test_steady_workers_get_their_time_and_a_reserve() -> None:
    deadline = AutoDeadline(3.0, 60.0)
    assert play(deadline, {0: 6.0, 1: 7.0}, 10)[0] == 60.0, "nothing is known in the first round"
    assert deadline.seconds == 7.0 + RESERVE


def test_times_that_vary_widen_the_deadline() -> None:
    noise = random.Random(1)
    steady, shaky = AutoDeadline(3.0, 300.0), AutoDeadline(3.0, 300.0)
    for _ in range(20):
        steady.observe([0], {0: 20.0})
        shaky.observe([0], {0: 20.0 + noise.uniform(-5, 5)})
    assert shaky.seconds > steady.seconds + 5
    assert shaky.seconds > 25.0, "a time that it has seen"


def test_one_slow_first_round_is_forgotten() -> None:
    deadline = AutoDeadline(3.0, 60.0)
    play(deadline, {0: 50.0})
    play(deadline, {0: 5.0}, 5)
    assert deadline.seconds == 5.0 + RESERVE


def test_one_slow_worker_is_waited_for() -> None:
    deadline = AutoDeadline(3.0, 60.0)
    times: dict[int, float | None] = {0: 5.0, 1: 5.0, 2: 5.0, 3: 20.0}
    assert all(given > 20.0 for given in play(deadline, times, 15))


def test_a_worker_that_becomes_slower_is_caught_up_with() -> None:
    deadline = AutoDeadline(3.0, 100.0)
    play(deadline, {0: 5.0, 1: 5.0}, 10)
    missed = [given for given in play(deadline, {0: 5.0, 1: 25.0}, 20) if given < 25.0]
    assert 0 < len(missed) <= 2 * PATIENCE
    assert play(deadline, {0: 5.0, 1: 25.0}, 5)[-1] >= 25.0


def test_growing_times_are_followed() -> None:
    deadline = AutoDeadline(3.0, 100.0)
    missed = 0
    for round in range(60):
        needed = 5.0 + 0.5 * round
        missed += needed > deadline.seconds
        play(deadline, {0: needed})
    assert missed <= 6
    assert 30.0 < deadline.seconds < 60.0


def test_a_dead_worker_costs_a_few_longer_rounds_and_no_more() -> None:
    deadline = AutoDeadline(3.0, 100.0)
    play(deadline, {0: 6.0, 1: 6.0}, 10)
    usual = deadline.seconds
    given = play(deadline, {0: 6.0, 1: None}, 12)
    assert given[: PATIENCE + 1] == pytest.approx([usual * GROWTH**n for n in range(PATIENCE + 1)])
    assert given[PATIENCE + 1 :] == [usual] * (12 - PATIENCE - 1)
    play(deadline, {0: 6.0, 1: 6.0})
    assert play(deadline, {0: 6.0, 1: None}, 2)[1] > usual, "it counts again once it has arrived"


def test_a_worker_that_is_asked_no_more_is_forgotten() -> None:
    deadline = AutoDeadline(3.0, 100.0)
    play(deadline, {0: 6.0, 1: 30.0}, 10)
    play(deadline, {0: 6.0})
    assert deadline.seconds == 6.0 + RESERVE


def test_an_early_error_says_nothing_and_one_at_the_deadline_is_a_miss() -> None:
    deadline = AutoDeadline(3.0, 100.0)
    play(deadline, {0: 6.0, 1: 20.0}, 10)
    usual = deadline.seconds
    assert deadline.observe([0, 1], {0: 6.0}, {1: 0.5}) == usual
    assert deadline.observe([0, 1], {0: 6.0}, {1: usual}) == GROWTH * usual


def test_all_workers_absent_keeps_what_was_learnt() -> None:
    deadline = AutoDeadline(3.0, 50.0)
    play(deadline, {0: 6.0, 1: 6.0}, 10)
    usual = deadline.seconds
    play(deadline, {0: None, 1: None}, 20)
    assert deadline.seconds == usual
    assert deadline.observe([], {}) == usual, "a round in which nobody was connected"


def test_workers_that_never_arrive_get_the_longest_deadline() -> None:
    assert play(AutoDeadline(3.0, 50.0), {0: None}, 20) == [50.0] * 20


def test_bounds_hold() -> None:
    deadline = AutoDeadline(12.0, 30.0)
    play(deadline, {0: 1.0}, 5)
    assert deadline.seconds == 12.0
    play(deadline, {0: 29.0}, 10)
    assert deadline.seconds == 30.0


@pytest.mark.parametrize(("least", "most"), [(0.0, 5.0), (6.0, 5.0), (1.0, float("inf"))])
def test_bad_bounds_are_named(least: float, most: float) -> None:
    with pytest.raises(ValueError, match=f"least={least}, most={most}"):
        AutoDeadline(least, most)
