"""Absent workers (late, gone, or with an unusable reply): the average is right without them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from mll_flower import DeadlineGrid, HubNetwork, MultiLevelStrategy, RoundReport
from tests.support.arrays import record
from tests.support.flower_grid import Nodes, client_app, run, unpack

WEIGHTS = [3, 1, 2, 4]
START = {"x": np.full(3, 10.0), "y": np.full((2, 2), 10.0)}


def app_with(bad: Callable[[ArrayRecord], RecordDict], rounds: tuple[int, ...] = (2,)) -> ClientApp:
    """Workers that add their number plus one; in these rounds worker 1 sends a bad reply."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context) -> Message:
        k = int(context.node_config["partition-id"])
        moved = {n: a + k + 1 for n, a in unpack(message.content["arrays"]).items()}
        metrics = MetricRecord({"num-examples": WEIGHTS[k], "loss": 1.0})
        content = RecordDict({"arrays": record(moved), "metrics": metrics})
        if k == 1 and message.content["config"]["round"] in rounds:
            content = bad(record(moved))
        return Message(content, reply_to=message)

    return app


def reply(arrays: ArrayRecord | None, **metrics) -> RecordDict:
    content = RecordDict({"metrics": MetricRecord({"loss": 1.0, **metrics})})
    if arrays is not None:
        content["arrays"] = arrays
    return content


def with_array(arrays: ArrayRecord, name: str, array) -> RecordDict:
    arrays[name] = array if isinstance(array, Array) else Array(np.asarray(array))
    return reply(arrays, **{"num-examples": 1})


def without_array(arrays: ArrayRecord, name: str) -> RecordDict:
    del arrays[name]
    return reply(arrays, **{"num-examples": 1})


def two_models(arrays: ArrayRecord) -> RecordDict:
    content = reply(arrays, **{"num-examples": 1})
    content["more"] = arrays
    return content


def two_metrics(arrays: ArrayRecord) -> RecordDict:
    content = reply(arrays, **{"num-examples": 1})
    content["more"] = MetricRecord({"num-examples": 5})
    return content


def fails(arrays: ArrayRecord) -> RecordDict:
    raise RuntimeError("out of memory")


def mislabelled(arrays: ArrayRecord, **claims) -> RecordDict:
    """An array whose bytes are not what it claims."""
    data = Array(np.array([1.0])).data
    array = Array(
        **{"dtype": "float64", "shape": (3,), "stype": "numpy.ndarray", "data": data, **claims}
    )
    return with_array(arrays, "x", array)


BAD: dict[str, tuple[Callable[[ArrayRecord], RecordDict], str, str]] = {
    "no weight": (lambda a: reply(a), "no-weight", "'num-examples' is None"),
    "negative weight": (lambda a: reply(a, **{"num-examples": -3}), "no-weight", "is -3"),
    "NaN weight": (lambda a: reply(a, **{"num-examples": np.nan}), "no-weight", "is nan"),
    "infinite weight": (lambda a: reply(a, **{"num-examples": np.inf}), "no-weight", "is inf"),
    "list of weights": (lambda a: reply(a, **{"num-examples": [1, 2]}), "no-weight", r"\[1, 2\]"),
    "no metrics": (lambda a: RecordDict({"arrays": a}), "no-weight", "is None"),
    "two MetricRecords": (two_metrics, "no-weight", "2 MetricRecords"),
    "no model": (lambda a: reply(None, **{"num-examples": 1}), "no-model", "0 ArrayRecords"),
    "two models": (two_models, "no-model", "2 ArrayRecords"),
    "another key": (
        lambda a: with_array(a, "z", np.ones(1)),
        "wrong-shape",
        r"not expected \['z'\]",
    ),
    "a missing key": (lambda a: without_array(a, "x"), "wrong-shape", r"missing \['x'\]"),
    "another shape": (lambda a: with_array(a, "x", np.ones(4)), "wrong-shape", r"shape \(4,\)"),
    "a shape that would broadcast": (
        lambda a: with_array(a, "x", np.ones(1)),
        "wrong-shape",
        r"\(1,\), expected \(3,\)",
    ),
    "another dtype": (
        lambda a: with_array(a, "x", np.ones(3, np.int64)),
        "wrong-shape",
        "int64, expected float64",
    ),
    "bytes of another shape": (mislabelled, "wrong-shape", "holds 1 float64"),
    "bytes that are no array": (
        lambda a: mislabelled(a, data=b"not a NumPy array, but long enough"),
        "wrong-shape",
        "cannot be read",
    ),
    "no bytes": (lambda a: mislabelled(a, data=b""), "wrong-shape", "cannot be read"),
    "another serialisation": (lambda a: mislabelled(a, stype="pickle"), "wrong-shape", "pickle"),
    "NaN": (lambda a: with_array(a, "x", [1, np.nan, 1]), "not-finite", "NaN or an infinity"),
    "infinity": (lambda a: with_array(a, "y", np.full((2, 2), -np.inf)), "not-finite", "infinity"),
    "an exception": (fails, "raised", "out of memory"),
}


@pytest.mark.parametrize("absent", ["keep", "renormalise"])
@pytest.mark.parametrize("case", BAD)
def test_a_reply_that_cannot_be_averaged_is_an_absent_worker(case: str, absent: str) -> None:
    bad, cause, why = BAD[case]
    reports: list[RoundReport] = []
    strategy = MultiLevelStrategy(
        hubs=2, q=9, absent=absent, on_round=reports.append, fraction_evaluate=0.0
    )
    with Nodes(app_with(bad), 4) as nodes:
        run(strategy, nodes, START, 2)
    (missing,) = reports[1].hubs[1].absent
    assert missing.cause == cause
    assert pytest.raises(ValueError, match=why).matches(ValueError(missing.why))
    assert not reports[1].hubs[0].absent
    # Hub 0 has the workers 0 and 2 (weights 3 and 2), hub 1 the workers 1 and 3 (1 and 4).
    first = 10 + (3 * 1 + 2 * 3) / 5, 10 + (1 * 2 + 4 * 4) / 5
    z0 = first[0] + (3 * 1 + 2 * 3) / 5
    z1 = first[1] + 4 * (4 / 5 if absent == "keep" else 1)
    np.testing.assert_allclose(strategy.hubs[0].model["float64"], z0, rtol=1e-12)
    np.testing.assert_allclose(strategy.hubs[1].model["float64"], z1, rtol=1e-12)
    np.testing.assert_allclose(strategy.shares(), [0.5, 0.5])


@pytest.mark.parametrize("absent", ["keep", "renormalise"])
def test_an_unknown_weight_counts_as_the_mean_of_the_known_ones(absent: str) -> None:
    # Worker 1 never sends a weight; worker 3 has 4, so worker 1 counts as 4 too.
    strategy = MultiLevelStrategy(hubs=2, q=9, absent=absent, fraction_evaluate=0.0)
    with Nodes(app_with(lambda a: reply(a), (1,)), 4) as nodes:
        run(strategy, nodes, START, 1)
    expected = 10 + 4 * (0.5 if absent == "keep" else 1)
    np.testing.assert_allclose(strategy.hubs[1].model["float64"], expected)
    np.testing.assert_allclose(strategy.shares(), [5 / 13, 8 / 13])


@pytest.mark.parametrize("absent", ["keep", "renormalise"])
def test_a_hub_without_any_reply_keeps_its_model_and_its_share(absent: str) -> None:
    def train(partition, arrays, config):
        if partition % 2 and config["round"] != 2:
            raise RuntimeError("gone")
        return {"x": arrays["x"] + 1.0}, {"num-examples": 100}

    shares = []
    strategy = MultiLevelStrategy(hubs=2, absent=absent, q=9, fraction_evaluate=0.0)
    strategy.on_round = lambda report: shares.append(strategy.shares().tolist())
    with Nodes(client_app(train), 4) as nodes:
        result = run(strategy, nodes, {"x": np.zeros(2)}, 3)
    assert [hub.model["float64"].tolist() for hub in strategy.hubs] == [[3, 3], [1, 1]]
    assert shares == [[0.5, 0.5]] * 3  # in round 1 no weight of hub 1 was known yet
    np.testing.assert_allclose(unpack(result.arrays)["x"], 2.0)


def test_if_all_are_absent_from_a_round_it_changes_nothing() -> None:
    def train(partition, arrays, config):
        if config["round"] == 2:
            raise RuntimeError("all broken")
        return {name: array + 1 for name, array in arrays.items()}, {"num-examples": 1}

    with Nodes(client_app(train), 4) as nodes:
        strategy = MultiLevelStrategy(hubs=2, fraction_evaluate=0.0)
        result = run(strategy, nodes, START, 2)
    for name, array in START.items():
        np.testing.assert_array_equal(unpack(result.arrays)[name], array + 1)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_an_average_that_overflows_is_not_used() -> None:
    # A tenth of the largest half-precision number is rounded up, so that ten of them overflow.
    largest = float(np.finfo(np.float16).max)
    reports: list[RoundReport] = []

    def train(partition, arrays, config):
        value = largest if config["round"] == 1 else 2
        return {"x": np.full(2, value, np.float16)}, {"num-examples": 1}

    strategy = MultiLevelStrategy(hubs=1, on_round=reports.append, fraction_evaluate=0.0)
    with Nodes(client_app(train), 10) as nodes:
        models: list[list[float]] = []
        run(
            strategy,
            nodes,
            {"x": np.ones(2, np.float16)},
            2,
            evaluate_fn=lambda number, arrays: models.append(unpack(arrays)["x"].tolist()),
        )
    assert models == [[1, 1], [1, 1], [2, 2]]
    assert [a.cause for a in reports[0].hubs[0].absent] == ["not-finite"] * 10


class Slow:
    """Training in which worker 0 waits in round 2 until it is released."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def __call__(self, partition, arrays, config):
        if partition == 0 and config["server-round"] == 2:
            self.release.wait(30)
            return {"x": arrays["x"] - 1000.0}, {"num-examples": 5}
        return {"x": arrays["x"] + partition}, {"num-examples": 5}


def test_plain_fedavg_gets_rounds_that_end_on_time() -> None:
    slow = Slow()
    with Nodes(client_app(slow), 3) as nodes:
        began = time.monotonic()
        result = FedAvg(fraction_evaluate=0.0).start(
            DeadlineGrid(nodes.grid, 0.5), record({"x": np.zeros(2)}), num_rounds=2
        )
        lasted = time.monotonic() - began
        slow.release.set()
    # Round 1: the mean of 0, 1, 2; round 2, without worker 0: the mean of 1 and 2.
    np.testing.assert_allclose(unpack(result.arrays)["x"], 1 + 1.5)
    assert lasted < 15  # worker 0 waits for 30 s


@pytest.mark.parametrize(("absent", "expected"), [("keep", 1 + 1.0), ("renormalise", 1 + 1.5)])
def test_a_late_worker_is_absent_and_its_reply_is_never_averaged(absent, expected) -> None:
    slow = Slow()
    reports: list[RoundReport] = []
    models = []

    def after(report: RoundReport) -> None:
        reports.append(report)
        models.append(strategy.hubs[0].model["float64"].copy())
        if report.number == 2:
            slow.release.set()
            time.sleep(0.3)

    strategy = MultiLevelStrategy(
        hubs=1, deadline=0.5, absent=absent, on_round=after, fraction_evaluate=0.0
    )
    with Nodes(client_app(slow), 3) as nodes:
        run(strategy, nodes, {"x": np.zeros(2)}, 4)
    (missing,) = reports[1].hubs[0].absent
    assert missing.cause in ("late", "expired")  # "expired" if the SuperLink notices first
    np.testing.assert_allclose(models[1], expected)
    assert not reports[3].hubs[0].absent
    np.testing.assert_allclose(models[3] - models[2], 1.0)
    assert all(np.all(m >= 0) for m in models)  # the late reply would pull it far below zero


def test_the_shorter_of_two_deadlines_counts() -> None:
    slow = Slow()
    strategy = MultiLevelStrategy(hubs=1, deadline=0.4, fraction_evaluate=0.0)
    with Nodes(client_app(slow), 3) as nodes:
        began = time.monotonic()
        strategy.start(DeadlineGrid(nodes.grid, 60), record({"x": np.zeros(2)}), num_rounds=2)
        lasted = time.monotonic() - began
        slow.release.set()
    assert lasted < 15


def test_a_worker_that_leaves_a_network_is_absent() -> None:
    network = HubNetwork.build(workers_per_hub=[2, 2], weights=[1.0, 3.0, 1.0, 1.0])
    reports: list[RoundReport] = []
    strategy = MultiLevelStrategy(network, q=9, deadline=0.5, fraction_evaluate=0.0)
    with Nodes(client_app(lambda p, a, c: ({"x": a["x"] + 1}, {})), 4) as nodes:

        def after(report: RoundReport) -> None:
            reports.append(report)
            if report.number == 1:
                nodes.stop(1)

        strategy.on_round = after
        run(strategy, nodes, {"x": np.zeros(2)}, 2)
    assert [a.node for a in reports[1].hubs[0].absent] == [nodes.ids[1]]
    np.testing.assert_allclose(strategy.hubs[0].model["float64"], 1 + 1 / 4)
    np.testing.assert_allclose(strategy.hubs[1].model["float64"], 2.0)
