"""`Hub.average` on replies made by hand: weights, absent workers, inner strategies."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.supercore.task_identity import TaskIdentity

from mll_flower.models.layout import Layout
from mll_flower.models.subnetwork_average import AbsentRule
from mll_flower.strategies.hub import Hub
from tests.support.arrays import record

START = {"x": np.array([10.0, 20.0]), "n": np.array([4], dtype=np.int64)}
NODES = [11, 12, 13]


@pytest.fixture(autouse=True)
def identity() -> None:
    """Set what Flower's runtime sets in a process that makes messages."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID


def new_hub(
    weights: Iterable[float] | None = None,
    absent: AbsentRule = "keep",
    inner_strategy: Strategy | None = None,
) -> Hub:
    """A hub of three workers; without weights it learns these from replies."""
    layout = Layout.of(START)
    key = "num-examples" if weights is None else None
    hub = Hub(layout, layout.flatten(START), key, absent, inner_strategy)
    hub.nodes = list(NODES)
    if weights is not None:
        hub.weights = dict(zip(NODES, weights, strict=True))
    return hub


def reply(node: int, x: float, n: int = 4, weight: float | None = None) -> Message:
    """The reply of a worker whose array x is filled with one value."""
    arrays = record({"x": np.full(2, float(x)), "n": np.array([n])})
    metrics = MetricRecord({} if weight is None else {"num-examples": weight})
    return answer(node, RecordDict({"arrays": arrays, "metrics": metrics}))


def answer(node: int, content: RecordDict | Error) -> Message:
    asked = Message(RecordDict(), node, "train")
    return Message(content, reply_to=asked)


def failed(node: int) -> Message:
    return answer(node, Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "out of memory"))


def model_of(hub: Hub) -> tuple[list[float], int]:
    arrays = hub.layout.arrays(hub.model)
    return arrays["x"].tolist(), int(arrays["n"][0])


def causes(hub_round) -> dict[int, str]:
    return {absent.node: str(absent.cause) for absent in hub_round.absent}


# --- The weighted average ---


def test_models_are_averaged_by_weight_and_integers_rounded_back() -> None:
    hub = new_hub([1, 2, 5])
    result = hub.average(1, [reply(11, 8, 1), reply(12, 16, 2), reply(13, 24, 9)])
    assert [arrival.node for arrival in result.arrived] == NODES
    assert not result.absent
    # (1 + 2 * 2 + 5 * 9) / 8 = 6.25
    assert model_of(hub) == ([(8 + 2 * 16 + 5 * 24) / 8] * 2, 6)
    assert hub.layout.arrays(hub.model)["n"].dtype == np.int64


def test_the_order_of_replies_changes_no_bit() -> None:
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=3), rng.uniform(size=3)
    replies = [reply(n, x, weight=w) for n, x, w in zip(NODES, values, weights, strict=True)]
    one, other = new_hub(), new_hub()
    one.average(1, replies)
    result = other.average(1, replies[::-1])
    assert [arrival.node for arrival in result.arrived] == NODES
    assert one.model["float64"].tobytes() == other.model["float64"].tobytes()
    # The mean of unknown weights is a sum too: the same order of weights, the same bits.
    assert list(one.weights) == list(other.weights) == NODES
    assert one.weight_of(99) == other.weight_of(99)


@pytest.mark.parametrize(("absent", "x"), [("keep", 11.25), ("renormalise", 15.0)])
def test_a_worker_that_was_not_asked_has_no_part(absent: AbsentRule, x: float) -> None:
    # Node 12 is not asked and node 13 fails: the shares are 1/4 and 3/4.
    hub = new_hub([1, 100, 3], absent)
    hub.model["float64"][:] = 10
    result = hub.average(1, [reply(11, 15), failed(13)])
    assert causes(result) == {13: "raised"}
    assert model_of(hub)[0] == [x, x]


@pytest.mark.parametrize("absent", ["keep", "renormalise"])
@pytest.mark.parametrize("asked", [[], [11, 13]])
def test_without_a_usable_reply_the_hub_keeps_its_model(absent: AbsentRule, asked) -> None:
    hub = new_hub([1, 2, 3], absent)
    before = hub.model
    result = hub.average(1, [failed(node) for node in asked])
    assert hub.model is before
    assert not result.arrived
    assert list(causes(result)) == asked


# --- Replies that cannot be used ---


def unusable(kind: str) -> Message:
    """A reply of node 12 with one fault."""
    arrays = record(START)
    metrics = MetricRecord({"num-examples": 2})
    if kind == "dtype":
        arrays["x"] = Array(np.zeros(2, dtype=np.int64))
    elif kind == "unreadable":
        arrays["x"] = Array("float64", (2,), "numpy.ndarray", b"not an array")
    elif kind == "size":
        arrays["x"] = Array("float64", (2,), "numpy.ndarray", Array(np.zeros(3)).data)
    elif kind == "NaN":
        arrays["x"] = Array(np.array([1.0, np.nan]))
    elif kind == "weight":
        metrics["num-examples"] = -1
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    if kind == "no model":
        content = RecordDict({"metrics": metrics})
    return answer(12, content)


FAULTS = {
    "no model": ("no-model", "0 ArrayRecords"),
    "dtype": ("wrong-shape", "dtype int64, expected float64"),
    "unreadable": ("wrong-shape", "'x' cannot be read"),
    "size": ("wrong-shape", "holds 3 float64"),
    "NaN": ("not-finite", "NaN or an infinity"),
    "weight": ("no-weight", "'num-examples' is -1"),
}


@pytest.mark.parametrize("inner_strategy", [None, FedAvg()], ids=["average", "inner strategy"])
@pytest.mark.parametrize("absent", ["keep", "renormalise"])
@pytest.mark.parametrize("kind", FAULTS)
def test_an_unusable_reply_is_absent(kind: str, absent: AbsentRule, inner_strategy) -> None:
    hub = new_hub(absent=absent, inner_strategy=inner_strategy)
    hub.weights = {12: 2}  # from an earlier round
    hub.model["float64"][:] = 10
    result = hub.average(1, [reply(11, 30, weight=1), unusable(kind), reply(13, 20, weight=1)])
    (gone,) = result.absent
    cause, why = FAULTS[kind]
    assert (gone.node, gone.cause) == (12, cause)
    assert why in gone.why
    assert [arrival.node for arrival in result.arrived] == [11, 13]
    expected = (30 + 20 + 2 * 10) / 4 if absent == "keep" else 25
    assert model_of(hub)[0] == pytest.approx([expected] * 2)


def test_causes_do_not_mix() -> None:
    """A reply that cannot be read keeps its cause when another one turns out to hold a NaN."""
    hub = new_hub([1, 1, 1])
    result = hub.average(1, [reply(11, np.inf), failed(12), reply(13, 12)])
    assert causes(result) == {11: "not-finite", 12: "raised"}
    assert model_of(hub)[0] == pytest.approx([(2 * 10 + 12) / 3, (2 * 20 + 12) / 3])


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_an_average_that_overflows_is_not_used() -> None:
    largest = np.finfo(np.float64).max
    hub = new_hub([1, 2, 2])  # shares that are not exact: their sum, rounded, exceeds 1
    result = hub.average(1, [reply(node, largest) for node in NODES])
    assert causes(result) == dict.fromkeys(NODES, "not-finite")
    assert "their average is not" in result.absent[0].why
    assert model_of(hub)[0] == [10, 20]


# --- Weights ---


def test_weights_are_learned_from_replies() -> None:
    hub = new_hub()
    assert hub.weight == 3.0  # nothing is known: all weigh 1
    hub.average(1, [reply(11, 0, weight=6), failed(12), failed(13)])
    assert hub.weights == {11: 6}
    assert hub.weight == 18.0  # the others count as the mean of the known ones
    hub.average(2, [reply(11, 0, weight=2), reply(12, 0, weight=4), failed(13)])
    assert [hub.weight_of(node) for node in NODES] == [2, 4, 3]


def test_a_new_weight_counts_in_the_same_round() -> None:
    hub = new_hub()
    hub.average(1, [reply(11, 0, weight=1), reply(12, 3, weight=1), reply(13, 0, weight=1)])
    hub.average(2, [reply(11, 0, weight=1), reply(12, 3, weight=4), reply(13, 0, weight=1)])
    assert model_of(hub)[0] == pytest.approx([2, 2])


def test_given_weights_are_not_replaced_by_those_of_replies() -> None:
    hub = new_hub([1, 1, 2])
    hub.average(1, [reply(11, 0, weight=100), reply(12, 0, weight=100), reply(13, 8)])
    assert hub.weights == {11: 1, 12: 1, 13: 2}
    assert model_of(hub)[0] == [4, 4]


def test_a_hub_that_knows_no_weight_uses_the_networks_mean() -> None:
    hub = new_hub()
    hub.usual_weight = 7.0
    assert hub.weight == 21.0
    hub.weights = {11: 2.0}
    assert hub.weight == 6.0


def test_a_hub_without_workers_keeps_its_weight() -> None:
    hub = new_hub([1, 2, 3])
    assert hub.weight == 6.0
    hub.nodes = []
    assert hub.weight == 6.0


# --- Inner strategies ---


class Recording(FedAvg):
    """Counts calls, and keeps what it is given; may return something of its own."""

    def __init__(self, result: ArrayRecord | str | None = "average") -> None:
        super().__init__()
        self.result = result
        self.calls: list[tuple[int, list[int]]] = []

    def aggregate_train(self, server_round, replies):
        given = list(replies)
        self.calls.append((server_round, [r.metadata.src_node_id for r in given]))
        for message in given:
            assert np.isfinite(message.content["arrays"]["x"].numpy()).all()
        if self.result == "average":
            return super().aggregate_train(server_round, given)
        return self.result, None


def test_an_inner_strategy_is_called_once_with_the_usable_replies_in_order() -> None:
    inner = Recording()
    hub = new_hub(inner_strategy=inner)
    replies = [reply(n, 0.0 if n == 12 else 1.0, weight=1) for n in NODES]
    hub.average(5, replies[::-1])
    assert inner.calls == [(5, NODES)]
    hub.average(6, [reply(13, 1, weight=1), reply(12, np.nan, weight=1), failed(11)])
    assert inner.calls[1:] == [(6, [13])]


def test_an_inner_strategy_is_not_called_without_a_usable_reply() -> None:
    inner = Recording()
    hub = new_hub(inner_strategy=inner)
    hub.average(1, [failed(11), reply(12, np.nan, weight=1)])
    assert not inner.calls
    assert model_of(hub)[0] == [10, 20]


@pytest.mark.parametrize(("absent", "x"), [("keep", 0.75 * 50 + 0.25 * 10), ("renormalise", 50)])
def test_absent_shares_stay_beside_the_inner_aggregate(absent: AbsentRule, x: float) -> None:
    inner = Recording(record({"x": np.full(2, 50.0), "n": np.array([4.0])}))
    hub = new_hub([1, 2, 1], absent, inner)
    hub.model["float64"][:] = 10
    hub.average(1, [reply(11, 0), reply(12, 0), failed(13)])
    assert model_of(hub)[0] == [x, x]


def test_an_inner_strategy_may_return_no_model() -> None:
    """As Bulyan does with too few replies: those that came still count as arrived."""
    hub = new_hub([1, 1, 1], inner_strategy=Recording(None))
    result = hub.average(1, [reply(11, 1), reply(12, 1), failed(13)])
    assert [arrival.node for arrival in result.arrived] == [11, 12]
    assert model_of(hub)[0] == [10, 20]


def test_an_inner_aggregate_that_is_not_finite_is_not_used() -> None:
    inner = Recording(record({"x": np.full(2, np.inf), "n": np.array([4.0])}))
    hub = new_hub([1, 1, 1], inner_strategy=inner)
    result = hub.average(1, [reply(11, 1), failed(12), reply(13, 1)])
    assert causes(result) == {11: "not-finite", 12: "raised", 13: "not-finite"}
    assert len(inner.calls) == 1
    assert model_of(hub)[0] == [10, 20]
