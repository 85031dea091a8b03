"""What Flower's own tests of its strategies check, with MultiLevelStrategy(hubs=1) around them.

Flower tests the strategies in ``serverapp/strategy/*_test.py``. Here each behaviour is checked
with the strategy as the inner strategy of one hub, or with the hub's own average where the test is
about FedAvg's, through ``configure_train`` and ``aggregate_train``. Left out, and why:

=====================================  =========================================================
Flower's test                          why it is left out
=====================================  =========================================================
fedavgm, setting ``current_arrays``    the hub gives its model to the strategy at every round;
by hand                                the same starting model is given through the hub instead
fedopt, ``_compute_deltat_and_mt``     a private function that raises for other keys or shapes:
raises                                 such a reply never gets that far, its worker is absent
                                       (checked here)
bulyan, ``aggregate_n_closest_...``    a private function of Bulyan, which the hub only calls
strategy_utils, ``config_to_str``      text of Flower's log, not a strategy's behaviour
strategy_utils, replies that do not    FedAvg raises and ends the run; a hub goes on without them
fit together raise                     (checked here: absent worker, or metrics left out)
strategy_utils, records under other    FedAvg raises if replies name their records differently; a
names raise                            hub takes the only record of its kind (checked here)
=====================================  =========================================================
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedMedian,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
    Strategy,
)

from mll_flower import MultiLevelStrategy, RoundReport
from mll_flower.grids.in_process import InProcessGrid

KEY = "num-examples"


def content(arrays: Sequence[np.ndarray], **metrics) -> RecordDict:
    model = ArrayRecord([np.asarray(array) for array in arrays])
    return RecordDict({"arrays": model, "metrics": MetricRecord(metrics)})


class Rounds:
    """One hub, its strategy, and replies to its messages that are made by hand."""

    def __init__(self, inner: Strategy | None, start: Sequence[np.ndarray], **options) -> None:
        self.reports: list[RoundReport] = []
        self.strategy = MultiLevelStrategy(
            hubs=1, inner_strategy=inner, on_round=self.reports.append, **options
        )
        self.arrays = ArrayRecord([np.asarray(array) for array in start])
        self.number = 0

    def play(self, replies: Sequence[RecordDict]) -> tuple[list[np.ndarray], MetricRecord | None]:
        """Play a round with one worker per reply; return the model and the metrics."""
        self.number += 1
        grid = InProcessGrid(ClientApp(), len(replies), {})
        asked = list(self.strategy.configure_train(self.number, self.arrays, ConfigRecord(), grid))
        assert len(asked) == len(replies)
        asked.sort(key=lambda message: message.metadata.dst_node_id)
        answers = [Message(r, reply_to=m) for r, m in zip(replies, asked, strict=True)]
        model, metrics = self.strategy.aggregate_train(self.number, answers)
        assert model is not None
        self.arrays = model
        return [array.numpy() for array in model.values()], metrics

    @property
    def absent(self) -> list[str]:
        return [str(absent.cause) for absent in self.reports[-1].hubs[0].absent]


# --- fedavgm ---


@pytest.mark.parametrize("momentum", [0.0, 1e-9])
@pytest.mark.parametrize("rounds", [1, 2])
def test_momentum_of_almost_zero_is_the_weighted_mean(momentum: float, rounds: int) -> None:
    rng = np.random.default_rng(0)
    models = [[rng.normal(size=(2, 3)), rng.normal(size=4)] for _ in range(2)]
    inner = FedAvgM(server_learning_rate=1.0 + 1e-9, server_momentum=momentum)
    hub = Rounds(inner, [np.zeros((2, 3)), np.zeros(4)])
    for _ in range(rounds):
        found, _ = hub.play([content(models[k], **{KEY: k + 1}) for k in range(2)])
    for layer, array in enumerate(found):
        expected = (models[0][layer] + 2 * models[1][layer]) / 3
        np.testing.assert_allclose(array, expected, atol=1e-6)


# --- Arrays without dimensions, in every strategy ---


@pytest.mark.parametrize(
    ("inner", "values", "expected"),
    [
        (None, [1.0, 3.0], 7 / 3),
        (FedAvgM(server_learning_rate=1.0 + 1e-9), [1.0, 3.0], 7 / 3),
        (FedMedian(), [1.0, 3.0, 2.0], 2.0),
        (FedTrimmedAvg(beta=0.25), [0.5, 1.0, 2.0, 100.0], 1.5),
        (FedAdagrad(), [1.0, 3.0], None),
        (FedAdam(), [1.0, 3.0], None),
        (FedYogi(), [1.0, 3.0], None),
    ],
)
def test_scalars_stay_scalars(inner, values: list[float], expected: float | None) -> None:
    hub = Rounds(inner, [np.array(0.0)])
    (scalar,), _ = hub.play([content([np.array(v)], **{KEY: k + 1}) for k, v in enumerate(values)])
    assert scalar.shape == ()
    assert np.isfinite(scalar)
    assert scalar != 0
    if expected is not None:
        np.testing.assert_allclose(scalar, expected, rtol=1e-6)


# --- fedmedian, fedtrimmedavg, krum, multikrum ---

COLUMNS = np.array([[1.0, 0.2, 0.5, 1.0], [0.2, 0.5, 1.0, 0.2], [0.5, 1.0, 0.2, 0.5]])


def test_the_median_of_each_entry() -> None:
    hub = Rounds(FedMedian(), [np.zeros(4)])
    (median,), _ = hub.play([content([row], **{KEY: 5 + k}) for k, row in enumerate(COLUMNS)])
    assert median.tolist() == [0.5] * 4


def test_the_largest_and_smallest_are_trimmed() -> None:
    hub = Rounds(FedTrimmedAvg(beta=0.25), [np.zeros(4)])
    rows = [np.full(4, 0.5), *COLUMNS]
    (mean,), _ = hub.play([content([row], **{KEY: 1 + k}) for k, row in enumerate(rows)])
    assert mean.tolist() == [0.5] * 4


@pytest.mark.parametrize(
    ("inner", "values", "expected"),
    [
        (Krum(num_malicious_nodes=1), [0.2, 0.7, 1.0], 0.7),
        (MultiKrum(num_malicious_nodes=1, num_nodes_to_select=2), [0.2, 0.5, 1.0], 0.35),
    ],
)
def test_krum_selects_models_that_are_close(inner, values, expected: float) -> None:
    hub = Rounds(inner, [np.zeros(4)])
    (selected,), _ = hub.play([content([np.full(4, v)], **{KEY: 5}) for v in values])
    assert selected.tolist() == [expected] * 4


# --- fedopt: replies that do not fit the model ---


@pytest.mark.parametrize("kind", [FedAdagrad, FedAdam, FedYogi])
@pytest.mark.parametrize("layers", [[(7, 3)] * 5, [(7, 5)] * 4])
def test_a_model_of_other_keys_or_shapes_is_absent(kind, layers) -> None:
    rng = np.random.default_rng(1)
    hub = Rounds(kind(), [np.zeros((7, 3))] * 4)
    fitting = content([rng.normal(size=(7, 3)) for _ in range(4)], **{KEY: 1})
    other = content([rng.normal(size=shape) for shape in layers], **{KEY: 1})
    model, _ = hub.play([fitting, other])
    assert hub.absent == ["wrong-shape"]
    assert all(array.shape == (7, 3) and np.isfinite(array).all() for array in model)


# --- strategy_utils: averages ---


@pytest.mark.parametrize("shape", [(7, 3), ()])
def test_models_are_averaged_by_any_weight(shape) -> None:
    rng = np.random.default_rng(2)
    weights = [0.25, 0.4, 0.35]
    models = [[rng.normal(size=shape) for _ in range(4)] for _ in weights]
    hub = Rounds(None, [np.zeros(shape)] * 4, weighted_by_key="weight")
    found, _ = hub.play([content(m, weight=w) for m, w in zip(models, weights, strict=True)])
    for layer, array in enumerate(found):
        expected = np.average([m[layer] for m in models], axis=0, weights=weights)
        assert array.shape == shape
        np.testing.assert_allclose(array, expected, rtol=1e-12)


def test_metrics_are_averaged_without_their_weight() -> None:
    weights, lists = [0.25, 0.4, 0.35], [[1.0, 2.0], [3.0, 5.0], [0.5, 0.0]]
    hub = Rounds(None, [np.zeros(2)], weighted_by_key="weight")
    replies = [
        content([np.ones(2)], a=1, b=2.0 * k, c=values, weight=w)
        for k, (w, values) in enumerate(zip(weights, lists, strict=True))
    ]
    _, metrics = hub.play(replies)
    assert metrics is not None
    assert set(metrics) == {"a", "b", "c"}
    assert metrics["a"] == pytest.approx(1.0)
    assert metrics["b"] == pytest.approx(2 * (0.4 + 2 * 0.35))
    assert metrics["c"] == pytest.approx(np.average(lists, axis=0, weights=weights).tolist())


# --- strategy_utils: replies that do not fit together ---


def model() -> ArrayRecord:
    return ArrayRecord([np.ones((7, 3))])


BAD = {
    "a weight that is a list": (
        RecordDict({"arrays": model(), "metrics": MetricRecord({"weight": [0.1]})}),
        "no-weight",
    ),
    "no weight": (
        RecordDict({"arrays": model(), "metrics": MetricRecord({"loss": 0.1})}),
        "no-weight",
    ),
    "no metrics": (RecordDict({"arrays": model()}), "no-weight"),
    "two models": (RecordDict({"arrays": model(), "more": model()}), "no-model"),
    "two MetricRecords": (
        RecordDict(
            {
                "arrays": model(),
                "metrics": MetricRecord({"weight": 0.1}),
                "more": MetricRecord({"loss": 0.1}),
            }
        ),
        "no-weight",
    ),
    "other array names": (
        RecordDict(
            {
                "arrays": ArrayRecord({"b": Array(np.ones((7, 3)))}),
                "metrics": MetricRecord({"weight": 0.1}),
            }
        ),
        "wrong-shape",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_reply_that_fedavg_cannot_validate_is_an_absent_worker(case: str) -> None:
    bad, cause = BAD[case]
    hub = Rounds(None, [np.zeros((7, 3))], weighted_by_key="weight", absent="renormalise")
    (found,), _ = hub.play([content([np.full((7, 3), 5.0)], weight=0.3), bad])
    assert hub.absent == [cause]
    assert found.tolist() == np.full((7, 3), 5.0).tolist()


def test_records_may_have_any_name() -> None:
    hub = Rounds(None, [np.zeros((7, 3))], weighted_by_key="weight")
    one = RecordDict({"model": model(), "mine": MetricRecord({"weight": 1, "loss": 2.0})})
    other = content([np.full((7, 3), 3.0)], weight=1, loss=4.0)
    (found,), metrics = hub.play([one, other])
    assert hub.absent == []
    assert found.tolist() == np.full((7, 3), 2.0).tolist()
    assert metrics == {"loss": 3.0}


def test_other_metrics_are_left_out_and_the_model_is_averaged() -> None:
    hub = Rounds(None, [np.zeros((7, 3))], weighted_by_key="weight")
    one = content([np.ones((7, 3))], weight=1, loss=2.0, accuracy=0.5)
    other = content([np.full((7, 3), 3.0)], weight=1, loss=4.0)
    (found,), metrics = hub.play([one, other])
    assert found.tolist() == np.full((7, 3), 2.0).tolist()
    assert metrics == {"loss": 3.0}
