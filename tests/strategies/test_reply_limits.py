"""How far a hub believes its workers: weights, updates and sizes of replies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp.strategy import FedAvg, FedMedian, Krum, Strategy
from flwr.supercore.task_identity import TaskIdentity

from mll_flower.models.layout import Layout
from mll_flower.models.subnetwork_average import AbsentRule
from mll_flower.strategies.hub import Hub
from mll_flower.strategies.multi_level import MultiLevelStrategy
from mll_flower.strategies.reply_limits import ReplyLimits
from mll_flower.strategies.robust import robust_strategy
from tests.strategies.test_hub import NODES, START, answer, causes, model_of, reply
from tests.support.arrays import record


@pytest.fixture(autouse=True)
def identity() -> None:
    """Set what Flower's runtime sets in a process that makes messages."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID


def hub_with(
    absent: AbsentRule = "keep",
    inner: Strategy | None = None,
    key: str | None = "num-examples",
    **limits: Any,
) -> Hub:
    layout = Layout.of(START)
    hub = Hub(layout, layout.flatten(START), key, absent, inner, ReplyLimits(**limits))
    hub.nodes = list(NODES)
    return hub


def with_metrics(node: int, x: float, **metrics: Any):
    arrays = record({"x": np.full(2, float(x)), "n": np.array([4])})
    named = MetricRecord({name.replace("_", "-"): value for name, value in metrics.items()})
    return answer(node, RecordDict({"arrays": arrays, "metrics": named}))


# --- Weights ---


@pytest.mark.parametrize("weight", [100.5, 1e10, 1e308, 10**300])
@pytest.mark.parametrize("inner", [None, FedAvg])
def test_a_worker_weighs_at_most_max_examples(weight: float, inner) -> None:
    hub = hub_with(max_examples=100, inner=inner and inner())
    hub.average(1, [reply(11, 0, weight=100), reply(12, 8, weight=weight)])
    assert model_of(hub)[0] == pytest.approx([4, 4])
    assert hub.weights == {11: 100, 12: 100}
    assert hub.weight == 300  # the third, unknown one is taken for a usual one


@pytest.mark.parametrize("weight", [1e308, 10**300, 10**400])
def test_without_a_limit_a_weight_beyond_all_sums_is_none(weight: float) -> None:
    hub = hub_with()
    result = hub.average(1, [reply(11, 0, weight=2), reply(12, 8, weight=weight)])
    assert causes(result) == {12: "no-weight"}
    assert hub.weights == {11: 2}
    assert math.isfinite(hub.weight)


@pytest.mark.parametrize("absent", ["keep", "renormalise"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_rejected_reply_does_not_change_the_weight(absent: AbsentRule, bad: float) -> None:
    hub, expected = hub_with(absent), hub_with(absent)
    for each in (hub, expected):
        each.average(1, [reply(node, 1, weight=2) for node in NODES])
    good = [reply(11, 4, weight=2), reply(13, 6, weight=4)]
    result = hub.average(2, [good[0], reply(12, bad, weight=1e90), good[1]])
    assert causes(result) == {12: "not-finite"}
    assert hub.weights == {11: 2, 12: 2, 13: 4}
    # As if it had sent nothing at all.
    good = [reply(11, 4, weight=2), reply(13, 6, weight=4)]
    expected.average(2, [good[0], reply(12, 3), good[1]])
    assert hub.model["float64"].tobytes() == expected.model["float64"].tobytes()


def test_a_rejected_reply_of_a_new_worker_brings_no_weight() -> None:
    hub = hub_with(max_update_norm=100.0)
    result = hub.average(1, [reply(11, 4, weight=2), reply(12, 1e6, weight=9)])
    assert causes(result) == {12: "too-large"}
    assert hub.weights == {11: 2}


def test_if_no_average_can_be_used_no_weight_changes() -> None:
    hub = hub_with()
    result = hub.average(1, [reply(11, math.nan, weight=7)])
    assert causes(result) == {11: "not-finite"}
    assert hub.weights == {}
    assert hub.weight == 3  # three workers of the usual weight


# --- Updates ---


@pytest.mark.parametrize("limit", [60.0, "5x"])
@pytest.mark.parametrize("inner", [None, FedAvg])
@pytest.mark.parametrize("x", [1e4, 1e30, -1e200, 1e308])
def test_an_update_above_the_limit_is_absent(limit, inner, x: float) -> None:
    hub = hub_with(max_update_norm=limit, inner=inner and inner())
    result = hub.average(
        1, [reply(11, 14, weight=1), reply(12, x, weight=1), reply(13, 16, weight=1)]
    )
    assert causes(result) == {12: "too-large"}
    assert "its update has norm" in result.absent[0].why
    assert repr(limit) in result.absent[0].why
    # Its share stays with the hub's model.
    assert model_of(hub)[0] == pytest.approx([(14 + 10 + 16) / 3, (14 + 20 + 16) / 3])


def test_the_median_holds_over_rounds_and_those_who_take_no_step_do_not_count() -> None:
    hub = hub_with(max_update_norm="3x", key=None)
    for round in range(1, 5):
        hub.model = hub.layout.flatten(START)
        hub.average(round, [reply(11, 14), reply(12, 16)])
    hub.model = hub.layout.flatten(START)
    still = answer(12, RecordDict({"arrays": record(START), "metrics": MetricRecord()}))
    result = hub.average(5, [reply(11, 90), still])
    assert causes(result) == {11: "too-large"}


def test_limits_that_are_not_reached_change_no_bit() -> None:
    rng = np.random.default_rng(3)
    values, weights = rng.normal(size=3), rng.uniform(size=3)
    hubs = (
        hub_with(),
        hub_with(max_examples=10, max_update_norm=1e6, max_metrics=5, max_reply_bytes=10**6),
    )
    for hub in hubs:
        pairs = zip(NODES, values, weights, strict=True)
        hub.average(1, [reply(n, x, weight=w) for n, x, w in pairs])
    assert hubs[0].model["float64"].tobytes() == hubs[1].model["float64"].tobytes()


# --- Sizes ---


def test_too_many_metrics_are_absent() -> None:
    hub = hub_with(max_metrics=3)
    many = with_metrics(12, 8, num_examples=1, loss=[0.1] * 3)
    result = hub.average(1, [with_metrics(11, 4, num_examples=1, a=1, b=2), many])
    assert causes(result) == {12: "too-large"}
    assert "4 values in its metrics" in result.absent[0].why


def test_too_many_bytes_are_absent() -> None:
    hub = hub_with(max_reply_bytes=10_000)
    big = reply(12, 8, weight=1)
    big.content["more"] = ConfigRecord({"text": "x" * 10_001})
    result = hub.average(1, [reply(11, 4, weight=1), big])
    assert causes(result) == {12: "too-large"}


def test_an_array_with_more_bytes_than_its_shape_has_use_for_is_not_read() -> None:
    hub = hub_with()
    odd = reply(12, 8, weight=1)
    x = odd.content["arrays"]["x"]
    odd.content["arrays"]["x"] = Array(x.dtype, x.shape, x.stype, x.data + bytes(10**6))
    result = hub.average(1, [reply(11, 4, weight=1), odd])
    assert causes(result) == {12: "wrong-shape"}
    assert "expected at most" in result.absent[0].why


# --- Metrics of the wrong type, with an inner strategy ---


@pytest.mark.parametrize("make", [FedAvg, FedMedian, Krum])
@pytest.mark.parametrize("loss", [[1.0, 2.0], math.nan, None])
def test_odd_metrics_do_not_end_an_inner_strategy(make, loss) -> None:
    hub = hub_with(inner=make())
    metrics = {} if loss is None else {"loss": loss}
    odd = with_metrics(12, 6, num_examples=1, **metrics)
    result = hub.average(
        1,
        [
            with_metrics(11, 6, num_examples=1, loss=1.0),
            odd,
            with_metrics(13, 6, num_examples=1, loss=1.0),
        ],
    )
    assert not result.absent
    assert model_of(hub)[0] == [6, 6]


@pytest.mark.parametrize("weight", [None, math.nan, [1.0], -1, 1e308])
def test_an_inner_strategy_that_needs_a_weight_goes_without_those_who_send_none(weight) -> None:
    hub = hub_with(inner=FedAvg(), key=None)  # the hub itself weighs all equally
    metrics = {} if weight is None else {"num_examples": weight}
    result = hub.average(
        1, [with_metrics(11, 4, num_examples=1), with_metrics(12, 8, loss=1.0, **metrics)]
    )
    assert causes(result) == {12: "no-weight"}


def test_an_inner_strategy_believes_no_weight_above_the_limit_either() -> None:
    hub = hub_with(inner=FedAvg(), key=None, max_examples=2)
    hub.average(1, [with_metrics(11, 4, num_examples=2), with_metrics(12, 8, num_examples=1e90)])
    assert model_of(hub)[0] == pytest.approx([6, 6])


def test_records_of_other_names_do_not_end_an_inner_strategy() -> None:
    hub = hub_with(inner=FedAvg())
    arrays = ArrayRecord(
        {n: Array(np.asarray(a)) for n, a in {**START, "x": np.full(2, 8.0)}.items()}
    )
    odd = RecordDict({"mine": arrays, "numbers": MetricRecord({"num-examples": 1})})
    result = hub.average(1, [reply(11, 4, weight=1), answer(12, odd), reply(13, 6, weight=1)])
    assert not result.absent
    assert model_of(hub)[0] == [6, 6]


# --- Robust strategies inside a hub ---


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedmedian", {}),
        ("fedtrimmedavg", {"beta": 0.2}),
        ("krum", {"num_malicious_nodes": 1}),
        ("multikrum", {"num_malicious_nodes": 1, "num_nodes_to_select": 3}),
        ("bulyan", {"num_malicious_nodes": 1}),
    ],
)
@pytest.mark.parametrize("lie", [1e6, -1e30])
def test_a_robust_strategy_bears_a_worker_that_lies(name: str, options: Any, lie: float) -> None:
    hub = hub_with(inner=robust_strategy(name, **options)(0))
    hub.nodes = list(range(1, 8))
    honest = [reply(node, 6 + node / 10, weight=1) for node in range(1, 7)]
    result = hub.average(1, [*honest, reply(7, lie, weight=1)])
    assert not result.absent
    assert all(6 <= x <= 7 for x in model_of(hub)[0])


# --- Arguments ---


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("max_examples", 0),
        ("max_examples", math.inf),
        ("max_examples", "many"),
        ("max_update_norm", -1.0),
        ("max_update_norm", "5"),
        ("max_metrics", 0),
        ("max_metrics", 1.5),
        ("max_reply_bytes", -1),
    ],
)
def test_limits_are_checked_before_anything_starts(argument: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=f"{argument}="):
        MultiLevelStrategy(hubs=2, **{argument: value})
