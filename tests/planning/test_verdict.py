"""Verdicts: who is best, whether the data decide, and what is gained over waiting."""

from __future__ import annotations

import math

import pytest

from mll_flower.planning.candidates import Candidate
from mll_flower.planning.pilots import Curve
from mll_flower.planning.plan_file import Goal
from mll_flower.planning.verdict import Interval, judge_finals


def candidate(tau: int, waits: bool = False) -> Candidate:
    return Candidate("ring", ((0, 1), (1, 2), (0, 2)), "metropolis", tau, 1, waits)


def curve(seconds: float, value: float = 0.9, reached: bool = True, bytes: float = 1e6) -> Curve:
    return Curve((0.0, seconds), (0.0, bytes), (0.1, value), (0.1, value), (0, 5), reached, 0.1)


TARGET = Goal(target=0.9)


def test_the_interval_is_students() -> None:
    interval = Interval.of([1.0, 2.0, 3.0])
    # t of two degrees of freedom is 4.303; the error of the mean is 1 / sqrt(3).
    assert interval.mean == 2
    assert interval.half == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    assert math.isnan(Interval.of([1.0]).half)


def test_a_clear_winner_and_the_gain_over_waiting() -> None:
    finals = {
        candidate(4): [curve(200), curve(210), curve(190)],
        candidate(8): [curve(100), curve(101), curve(99)],
        candidate(8, waits=True): [curve(300, bytes=5e5), curve(303), curve(297)],
    }
    verdict = judge_finals(finals, TARGET, falls=False)
    assert [row.candidate.tau for row in verdict.rows] == [8, 4, 8]
    assert verdict.decided
    assert verdict.gain is not None
    assert (verdict.gain.mean, verdict.gain.half) == pytest.approx((3.0, 0.0), abs=1e-9)
    text = " ".join(verdict.sentences)
    assert "Recommended: ring tau=8 q=1, 1 min 40 s to the target, 1 MB." in text
    assert "Runner-up: ring tau=4 q=1, 3 min 20 s to the target, 1 MB (100 % more time" in text
    assert "Waiting (ring tau=8 q=1 waiting) takes 3 ± " in text
    assert "do not decide" not in text


def test_what_may_be_chance_does_not_decide() -> None:
    finals = {
        candidate(4): [curve(100), curve(120), curve(110)],
        candidate(8): [curve(105), curve(119), curve(112)],
    }
    verdict = judge_finals(finals, TARGET, falls=False)
    assert not verdict.decided
    assert verdict.gain is None
    assert "do not decide between the two: the difference may be chance" in verdict.sentences[1]
    assert "Seed by seed it takes 1.99 ± " in verdict.sentences[1]


def test_the_difference_seed_by_seed_decides() -> None:
    """Seeds differ more than settings do; one of them has seeds that the other has not."""
    seconds = [100, 130, 90, 160, 120]
    finals = {
        candidate(4): [curve(s) for s in seconds],
        candidate(8): [curve(s + 5 + s / 100) for s in seconds] + [curve(200)],
    }
    verdict = judge_finals(finals, TARGET, falls=False)
    assert verdict.rows[0].candidate == candidate(4)
    assert verdict.decided
    assert not judge_finals({c: f[:1] for c, f in finals.items()}, TARGET, falls=False).decided


def test_traffic_decides_where_times_do_not_differ() -> None:
    finals = {
        candidate(4): [curve(100, bytes=2e6), curve(120, bytes=2.1e6), curve(110, bytes=1.9e6)],
        candidate(8): [curve(105), curve(119), curve(112)],
    }
    verdict = judge_finals(finals, TARGET, falls=False)
    assert verdict.rows[0].candidate == candidate(8)
    assert verdict.decided_by == "traffic"
    assert "The times do not differ beyond chance; the traffic decides." in verdict.sentences[1]


def test_one_seed_never_decides() -> None:
    verdict = judge_finals({candidate(4): [curve(1)], candidate(8): [curve(9)]}, TARGET, False)
    assert not verdict.decided
    assert "one seed only" in verdict.sentences[1]


def test_arriving_goes_before_being_fast() -> None:
    finals = {
        candidate(4): [curve(10), curve(500, 0.8, reached=False)],
        candidate(8): [curve(400), curve(401)],
        candidate(16): [curve(500, 0.85, reached=False), curve(500, 0.85, reached=False)],
        candidate(2, waits=True): [curve(600, 0.7, reached=False)] * 2,
    }
    verdict = judge_finals(finals, TARGET, falls=False)
    assert [row.candidate.tau for row in verdict.rows] == [8, 4, 16, 2]
    assert "at least 1.5" in verdict.sentences[-1]


def test_a_budget_is_judged_by_the_measure_at_its_end() -> None:
    finals = {
        candidate(4): [curve(100, 0.5, False), curve(100, 0.52, False)],
        candidate(8): [curve(100, 0.3, False), curve(100, 0.32, False)],
        candidate(8, waits=True): [curve(100, 0.9, False), curve(100, 0.92, False)],
    }
    goal = Goal(seconds=100)
    rising, falling = (judge_finals(finals, goal, falls) for falls in (False, True))
    assert rising.rows[0].candidate.waits
    assert rising.gain is not None
    assert rising.gain.mean == pytest.approx(-0.4)
    assert falling.rows[0].candidate == candidate(8)
    assert falling.gain is not None
    assert falling.gain.mean == pytest.approx(0.6)
