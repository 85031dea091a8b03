"""What claims compare: the last values of curves, or the means over a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mll_flower.sweeps.curves import Curve, compared, verdicts
from mll_flower.sweeps.setups import Claim, Setup
from mll_flower.sweeps.verdicts import HOLDS, OPEN


class Run:
    """A run's evaluations at given slots."""

    def __init__(self, slots: list[float], losses: list[float]) -> None:
        self._slots, self._losses = np.array(slots, float), np.array(losses, float)

    def series(self, axis: str, metric: str) -> tuple[Any, Any]:
        assert (axis, metric) == ("slots", "loss")
        return self._slots, self._losses


def curve(slots: list[float], losses: list[float], seed: int = 0) -> Curve:
    run: Any = Run(slots, losses)
    return Curve(seed, run, np.zeros(len(slots)))


def test_the_mean_is_over_slots_and_not_over_evaluations() -> None:
    # 1 until slot 10, then down to 0 in the next 10: a mean of 0.75, however it is evaluated.
    few = curve([0, 10, 20], [1, 1, 0])
    many = curve([0, 10, 12, 14, 16, 18, 20], [1, 1, 0.8, 0.6, 0.4, 0.2, 0])
    for found in (few, many):
        assert found.mean_until(20, "loss") == pytest.approx(0.75)
    # A slot between two evaluations, the first, and one that the run has not reached.
    assert few.mean_until(15, "loss") == pytest.approx((10 + 5 * 0.75) / 15)
    assert few.mean_until(0, "loss") == 1
    assert few.mean_until(40, "loss") == pytest.approx((15 + 20 * 0) / 40)


def test_a_claim_says_which_of_the_two_it_compares() -> None:
    curves = {
        "quick": [curve([0, 1, 10], [1, 0.1 + s, 0.1 + s], k) for k, s in enumerate((0, 0.02))],
        "slow": [curve([0, 1, 10], [1, 0.9, 0.1 - s], k) for k, s in enumerate((0, 0.02))],
    }
    last = Claim("", "lower", ("quick",), ("slow",))
    mean = Claim("", "lower", ("quick",), ("slow",), value="mean")
    assert compared(last, curves["slow"], 10) == pytest.approx([0.1, 0.08])
    assert compared(mean, curves["slow"], 10) == pytest.approx([0.545, 0.536])
    setups = [Setup(name, name, {}) for name in curves]
    found = verdicts(setups, [last, mean], curves, 10)
    assert [verdict.verdict for verdict in found] == [OPEN, HOLDS]
