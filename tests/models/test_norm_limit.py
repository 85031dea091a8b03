"""Limits for norms: numbers, and multiples of a running median."""

from __future__ import annotations

import math

import pytest

from mll_flower.models.norm_limit import NormLimit


def test_a_number_is_the_limit() -> None:
    limit = NormLimit(2.5)
    limit.remember([1e9] * 99, limit.bound())
    assert limit.bound([7.0]) == 2.5


def test_a_multiple_is_of_the_median_of_what_was_seen_and_is_present() -> None:
    limit = NormLimit("5x")
    assert limit.bound() == math.inf
    assert limit.bound(stand_in=2.0) == 10.0
    assert limit.bound([1.0, 2.0, 1e30]) == 10.0
    assert limit.bound([0.0, 3.0, math.inf]) == 15.0  # who took no step says nothing
    limit.remember([1.0, 1.0, 1.0], 5.0)
    assert limit.bound([1e30, 1e30]) == 5.0
    assert NormLimit(" 1.5 x").bound([2.0]) == 3.0


def test_large_norms_count_as_the_limit_so_that_growth_is_accepted_in_the_end() -> None:
    limit = NormLimit("2x", keep=8)
    limit.remember([1.0] * 8, 2.0)
    bounds = []
    for _ in range(12):
        bounds.append(limit.bound())
        limit.remember([1e30], bounds[-1])
    assert bounds[:4] == [2.0] * 4
    assert 2.0 < bounds[-1] <= 16.0  # and never at once


@pytest.mark.parametrize(
    "given", [0, -1, math.nan, math.inf, True, "5", "x", "1x", "-3x", None, [5]]
)
def test_anything_else_is_an_error_with_the_remedy(given) -> None:
    with pytest.raises(ValueError, match=r'max_update_norm=.*: give a positive number.*"5x"'):
        NormLimit(given, "max_update_norm")
