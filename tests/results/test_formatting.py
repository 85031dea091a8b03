"""Numbers as people write them."""

from __future__ import annotations

import math

import pytest

from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.theory import Problem, bound
from mll_flower.results.formatting import (
    BOUND_TERMS,
    format_bytes,
    format_count,
    format_duration,
    format_number,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "not finite"),
        (0.123456, "0.1235"),
        (3.0, "3"),
        (12345, "12\u202f345"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (7.04e6, "7.04 MB"),
        (2e9, "2 GB"),
        (3e15, "3000 TB"),
    ],
)
def test_bytes(count: float, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.234, "1.23 s"), (60, "1 min 0 s"), (125, "2 min 5 s"), (7260, "2 h 1 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_counts() -> None:
    assert [format_count(n, "hub") for n in (0, 1, 1200)] == ["0 hubs", "1 hub", "1,200 hubs"]


def test_every_term_of_the_bound_has_a_meaning() -> None:
    assert set(BOUND_TERMS) == set(bound(HubNetwork.build(hubs=1), 0.0, 1, 1, 0.1, Problem()))
