"""Verdicts on claims, from numbers that are known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mll_flower.sweeps.setups import Claim
from mll_flower.sweeps.verdicts import (
    FAILS,
    HOLDS,
    MOST_SEEDS,
    OPEN,
    judge,
    outlook,
    seeds_needed,
)

LABELS = {name: name for name in "abcd"}


def verdict(kind: str, values: dict[str, list[float]], **more: Any) -> str:
    claim = Claim("", kind, **{"left": ("a",), "right": ("b",), **more})
    return judge(claim, values, LABELS).verdict


def test_lower_and_higher() -> None:
    clear = {"a": [1.0, 1.1, 0.9], "b": [2.0, 2.05, 1.95]}
    assert verdict("lower", clear) == HOLDS
    assert verdict("higher", clear) == FAILS
    # The seeds disagree on the sign.
    assert verdict("lower", {"a": [1.0, 2.0, 1.5], "b": [2.0, 1.0, 1.6]}) == OPEN
    # Seeds are paired: they differ by far more than the set-ups do, but always in the same way.
    assert verdict("lower", {"a": [1.0, 5.0, 9.0], "b": [1.1, 5.1, 9.11]}) == HOLDS
    # Just below and above the 97.5 % quantile of Student's t with one degree of freedom,
    # 12.706: margins 1 and x have mean (1 + x) / 2 and standard error |1 - x| / 2.
    bound = (12.706 - 1) / (12.706 + 1)
    assert verdict("lower", {"a": [0.0, 0.0], "b": [1.0, bound - 0.001]}) == OPEN
    assert verdict("lower", {"a": [0.0, 0.0], "b": [1.0, bound + 0.001]}) == HOLDS


def test_one_seed_or_a_nan_resolves_nothing() -> None:
    assert verdict("lower", {"a": [1.0], "b": [2.0]}) == OPEN
    assert verdict("lower", {"a": [1.0, math.nan], "b": [2.0, 2.0]}) == OPEN


def test_nearer_and_similar() -> None:
    values = {"a": [1.1, 1.2, 1.1], "b": [2.0, 2.0, 2.0], "c": [1.0, 1.1, 1.0]}
    assert verdict("nearer", values, target="c") == HOLDS
    assert verdict("nearer", {**values, "c": [2.1, 2.1, 2.1]}, target="c") == FAILS
    group: dict[str, list[float]] = {
        "a": [1, 1, 1],
        "b": [3, 3.1, 3],
        "c": [1.1, 1.05, 1.1],
        "d": [0.9, 1, 0.9],
    }
    assert verdict("similar", group, left=("a", "c", "d")) == HOLDS
    assert verdict("similar", {**group, "d": [9, 9, 9]}, left=("a", "c", "d")) == FAILS


def test_within_noise_compares_a_change_with_the_spread_of_the_seeds() -> None:
    plain = [1.0, 1.2, 0.8]
    assert verdict("within-noise", {"a": [1.01, 1.2, 0.79], "b": plain}) == HOLDS
    assert verdict("within-noise", {"a": [1.5, 1.7, 1.3], "b": plain}) == FAILS
    assert verdict("within-noise", {"a": [1.0, 1.5, 0.8], "b": plain}) == OPEN
    assert verdict("within-noise", {"a": [1.0], "b": [1.0]}) == OPEN


def test_above_counts_test_images() -> None:
    claim = Claim("", "above", ("a",), metric="accuracy", threshold=0.6)
    verdicts = {a: judge(claim, {"a": [a]}, LABELS, 10_000).verdict for a in (0.65, 0.605, 0.55)}
    assert verdicts == {0.65: HOLDS, 0.605: OPEN, 0.55: FAILS}


def test_an_open_claim_says_how_many_seeds_would_resolve_it() -> None:
    claim = Claim("", "lower", ("a",), ("b",))
    margins = np.array([1.0, -0.4, 0.9])
    open_one = judge(claim, {"a": [0, 0, 0], "b": margins.tolist()}, LABELS)
    number = seeds_needed(open_one.margin, open_one.error, 3)
    assert number is not None
    assert number > 3
    assert open_one.text == f"{OPEN}: about {number} seeds would resolve it"

    # So many margins with this mean and this spread are resolved, one fewer is not.
    def verdict_of(count: int) -> str:
        spread = np.where(np.arange(count) % 2, 1.0, -1.0)
        spread = (spread - spread.mean()) / spread.std(ddof=1) * margins.std(ddof=1)
        values = {"a": [0.0] * count, "b": (margins.mean() + spread).tolist()}
        return judge(claim, values, LABELS).verdict

    assert (verdict_of(number), verdict_of(number - 1)) == (HOLDS, OPEN)


@pytest.mark.parametrize(
    ("margins", "text"),
    [
        ([1.0, -1.0], f"the margin is at zero: its sign would need more than {MOST_SEEDS} seeds"),
        ([1.0, -0.99], f"the margin is at zero: its sign would need more than {MOST_SEEDS} seeds"),
        ([1.0], "one seed shows no spread"),
        ([1.0, math.nan], "a run diverged"),
    ],
)
def test_outlooks_without_a_number_of_seeds(margins: list[float], text: str) -> None:
    claim = Claim("", "lower", ("a",), ("b",))
    verdict = judge(claim, {"a": [0.0] * len(margins), "b": margins}, LABELS)
    assert verdict.text == f"{OPEN}: {text}"
    assert outlook(None, None, 3) == "a run diverged"
