"""The sub-network average: shares, absent workers, and models that are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mll_flower.models.layout import Flat, Layout
from mll_flower.models.subnetwork_average import (
    ABSENT_RULES,
    AVERAGE_NOT_FINITE,
    NOT_FINITE,
    AbsentRule,
    SubnetworkAverage,
    WorkerAbsent,
    absent_factors,
    subnetwork_average,
)
from mll_flower.models.sums import RecordSum, RunningSum, is_finite, weighted_sum
from tests.support.arrays import mixed_model

BOTH = pytest.mark.parametrize("rule", ABSENT_RULES)


def one(value: float) -> Flat:
    return {"float64": np.array([value])}


def average(
    sent: float,
    weights: list[float],
    model_of: Callable[[int], Flat],
    rule: AbsentRule,
) -> SubnetworkAverage:
    return subnetwork_average(
        one(sent), weights, model_of, rule, new_sum=RunningSum, finite=is_finite
    )


def among(*values: float | None) -> Callable[[int], Flat]:
    """Models of workers; None for one that is absent."""

    def model_of(place: int) -> Flat:
        value = values[place]
        if value is None:
            raise WorkerAbsent(f"worker {place} is late")
        return one(value)

    return model_of


@given(
    values=st.lists(st.one_of(st.none(), st.floats(-9, 9)), min_size=1, max_size=6),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
@BOTH
def test_equals_its_equation(rule: AbsentRule, values: list[float | None], data) -> None:
    weights = data.draw(
        st.lists(st.floats(0.1, 9), min_size=len(values), max_size=len(values)), label="weights"
    )
    sent = 3.5
    found = average(sent, weights, among(*values), rule)
    here = [(w, x) for w, x in zip(weights, values, strict=True) if x is not None]
    away = sum(w for w, x in zip(weights, values, strict=True) if x is None)
    assert set(found.absent) == {i for i, x in enumerate(values) if x is None}
    if not here:
        assert found.model is None
        return
    if rule == "keep":
        expected = (sum(w * x for w, x in here) + away * sent) / sum(weights)
    else:
        expected = sum(w * x for w, x in here) / sum(w for w, _ in here)
    assert found.model is not None
    assert math.isclose(found.model["float64"][0], expected, rel_tol=1e-12, abs_tol=1e-12)


@BOTH
def test_records_and_flat_models_give_the_same_bits(rule: AbsentRule) -> None:
    models = [mixed_model(seed) for seed in range(4)]
    layout = Layout.of(models[0])
    sent = mixed_model(9)
    weights = [1.0, 2.5, 0.5, 3.0]

    def of_records(place: int):
        if place == 2:
            raise WorkerAbsent("late")
        return models[place]

    def of_flats(place: int) -> Flat:
        return layout.flatten(of_records(place))

    def is_finite_record(record) -> bool:
        return is_finite(layout.flatten(record))

    by_record = subnetwork_average(
        sent, weights, of_records, rule, new_sum=lambda: RecordSum(layout), finite=is_finite_record
    )
    by_flat = subnetwork_average(
        layout.flatten(sent), weights, of_flats, rule, new_sum=RunningSum, finite=is_finite
    )
    assert by_record.absent == by_flat.absent == {2: "late"}
    assert by_record.model is not None
    assert by_flat.model is not None
    for dtype, vector in by_record.model.items():
        assert vector.tobytes() == by_flat.model[dtype].tobytes()


@BOTH
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_worker_that_spoils_the_average_is_absent(rule: AbsentRule, bad: float) -> None:
    found = average(8.0, [1.0, 2.0, 1.0], among(4.0, bad, 12.0), rule)
    assert found.absent == {1: NOT_FINITE}
    assert found.model is not None
    assert found.model["float64"][0] == 8.0


@BOTH
def test_finite_models_with_an_infinite_average_change_nothing(rule: AbsentRule) -> None:
    huge = {"float16": np.array([60000], np.float16)}
    found = subnetwork_average(
        huge, [1, 1], lambda place: huge, rule, new_sum=_Doubling, finite=is_finite
    )
    assert found.model is None
    assert found.absent == dict.fromkeys((0, 1), AVERAGE_NOT_FINITE)


class _Doubling(RunningSum):
    """A sum that overflows although its terms do not."""

    def add(self, model: Flat, factor: float) -> None:
        with np.errstate(over="ignore"):
            super().add(model, 2 * factor)


def test_models_are_asked_for_once_unless_something_is_wrong() -> None:
    asked: list[int] = []

    def model_of(place: int) -> Flat:
        asked.append(place)
        return one(place)

    average(0.0, [1, 1, 1], model_of, "keep")
    assert asked == [0, 1, 2]


def test_absent_share_stays_with_the_hubs_model() -> None:
    # Worker 1 of weights 1, 2, 5 is absent; the hub sent 100.
    factors, kept = absent_factors([1, 2, 5], [True, False, True], "keep")
    assert (factors, kept) == ([1 / 8, 5 / 8], 2 / 8)
    models = [np.array([8.0]), np.array([16.0]), np.array([100.0])]
    assert weighted_sum(models, [*factors, kept])[0] == 1 + 10 + 25


def test_absent_renormalise_divides_by_the_arrived() -> None:
    factors, kept = absent_factors([1, 2, 5], [True, False, True], "renormalise")
    assert (factors, kept) == ([1 / 6, 5 / 6], 0.0)


@pytest.mark.parametrize("rule", ["keep", "renormalise"])
def test_the_rules_agree_when_all_arrived_and_when_nobody_did(rule) -> None:
    assert absent_factors([1, 2, 5], [True] * 3, rule) == ([1 / 8, 2 / 8, 5 / 8], 0.0)
    assert absent_factors([1, 2, 5], [False] * 3, rule) == ([], 1.0)


@pytest.mark.parametrize("rule", ABSENT_RULES)
def test_workers_that_weigh_nothing(rule: AbsentRule) -> None:
    assert absent_factors([0, 3, 1], [True] * 3, rule) == ([0, 0.75, 0.25], 0)
    # If nobody who arrived weighs anything, the hub's model stays.
    assert absent_factors([0, 0], [True, True], rule) == ([0, 0], 1)
    assert absent_factors([0, 5], [True, False], rule) == ([0], 1)


def test_every_worker_has_arrived_or_not() -> None:
    with pytest.raises(ValueError):
        absent_factors([1, 2, 5], [True])


def test_an_unknown_rule_is_an_error() -> None:
    with pytest.raises(ValueError, match="absent='drop': choose one of keep, renormalise"):
        absent_factors([1], [True], "drop")  # type: ignore[arg-type]
