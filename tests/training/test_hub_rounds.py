"""Rounds of a hub equal one training per worker and a weighted sum; absent workers in them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mll_flower.algorithm.coins import step_count
from mll_flower.models.layout import Flat
from mll_flower.models.subnetwork_average import AbsentRule
from mll_flower.models.sums import sum_models
from mll_flower.training.engine import Engine
from mll_flower.training.hub_rounds import run_rounds
from tests.support.torch_modules import WORKERS, BatchNormNet, make_engine, make_task, same

SHARES = [1 / 8, 1 / 4, 1 / 8, 1 / 4, 1 / 16, 3 / 16]


def steps_of(worker: int, round: int) -> int:
    return step_count(5, worker, round, 4, 0.4)


def one_by_one(engine: Engine, flat: Flat, workers: list[int], rounds: list[int]) -> Flat:
    """The same rounds with one `train` per worker, as with one SuperNode per worker."""
    hub = flat
    for round in rounds:
        models = []
        for worker in workers:
            model = {d: v.copy() for d, v in hub.items()}
            engine.train(model, worker, round, steps_of(worker, round), 0.1)
            models.append(model)
        hub = sum_models(models, SHARES)
    return hub


@pytest.mark.parametrize("model", ["cnn", "logistic", BatchNormNet])
def test_rounds_equal_separate_trainings_and_weighted_sum(model: object) -> None:
    task = make_task(model)
    workers, rounds = [3, 0, 5, 1, 4, 2], [4, 5, 6]
    engine, other = make_engine(task), make_engine(task)
    start = engine.initial()
    result = engine.run_hub(start, workers, SHARES, rounds, steps_of, [0.1] * 3)
    assert same(start, engine.initial())
    assert same(result.flat, one_by_one(other, other.initial(), workers, rounds))
    expected = [[steps_of(i, r) for i in workers] for r in rounds]
    assert 0 in np.ravel(expected)
    np.testing.assert_array_equal(result.steps, expected)
    np.testing.assert_array_equal(np.isnan(result.losses), result.steps == 0)
    assert result.absent == []
    as_array = engine.run_hub(start, workers, SHARES, rounds, expected, [0.1] * 3)
    assert same(as_array.flat, result.flat)
    np.testing.assert_array_equal(as_array.losses, result.losses)


def test_rounds_can_be_cut_anywhere() -> None:
    engine = make_engine(make_task("logistic"))
    workers = list(range(WORKERS))
    whole = engine.run_hub(engine.initial(), workers, SHARES, [0, 1, 2], steps_of, [0.1, 0.2, 0.3])
    half = engine.run_hub(engine.initial(), workers, SHARES, [0, 1], steps_of, [0.1, 0.2])
    rest = engine.run_hub(half.flat, workers, SHARES, [2], steps_of, [0.3])
    assert same(rest.flat, whole.flat)


def test_batchnorm_keeps_dtypes_and_averages_counters() -> None:
    engine = make_engine(make_task(BatchNormNet))
    counts = [[3, 0, 1]]
    result = engine.run_hub(engine.initial(), [0, 1, 2], [1, 1, 2], [0], counts, [0.1])
    arrays = engine.layout.arrays(result.flat)
    assert {d: v.dtype for d, v in result.flat.items()} == {
        "float32": np.float32,
        "int64": np.int64,
    }
    assert arrays["norm.num_batches_tracked"].shape == ()
    assert arrays["norm.num_batches_tracked"] == round((3 + 0 + 2 * 1) / 4)
    assert not np.allclose(arrays["norm.running_mean"], 0)
    assert engine.layout.mismatch(arrays) is None


def engine_with_a_bad_worker(model: str) -> Engine:
    """An engine whose worker 1 has only rows of NaN."""
    task = make_task(model)
    task.data.x_train[:10] = np.nan
    shards = [np.arange(10, 40), np.arange(10), np.arange(40, 80), np.arange(80, 120)]
    return Engine(task, shards, batch_size=5, seed=11)


@pytest.mark.parametrize("model", ["cnn", "logistic"])
@pytest.mark.parametrize("rule", ["keep", "renormalise"])
def test_a_worker_whose_model_is_not_finite_is_absent(model: str, rule: str) -> None:
    engine = engine_with_a_bad_worker(model)
    start = engine.initial()
    result = engine.run_hub(start, [0, 1, 2], [1, 2, 1], [3], [[2, 2, 2]], [0.1], rule)
    assert result.absent == [(1, 3, "its model has a NaN or an infinity")]
    np.testing.assert_array_equal(result.steps, [[2, 0, 2]])
    assert math.isnan(result.losses[0, 1])
    assert np.isfinite(result.losses[0, [0, 2]]).all()
    models = []
    for worker in (0, 2):
        models.append(engine.initial())
        engine.train(models[-1], worker, 3, 2, 0.1)
    if rule == "keep":
        assert same(result.flat, sum_models([*models, start], [0.25, 0.25, 0.5]))
    else:
        assert same(result.flat, sum_models(models, [0.5, 0.5]))


def test_a_bad_worker_that_takes_no_step_is_not_absent() -> None:
    engine = engine_with_a_bad_worker("cnn")
    result = engine.run_hub(engine.initial(), [0, 1], [1, 1], [0], [[1, 0]], [0.1])
    assert result.absent == []


def test_a_hub_whose_workers_are_all_absent_keeps_its_model() -> None:
    engine = engine_with_a_bad_worker("cnn")
    start = engine.initial()
    for rule in ("keep", "renormalise"):
        result = engine.run_hub(start, [1], [0.3], [0, 1], [[2], [2]], [0.1, 0.1], rule)
        assert same(result.flat, start)
        assert result.flat["float32"] is not start["float32"]
        assert [(worker, round) for worker, round, _ in result.absent] == [(1, 0), (1, 1)]


class Refuses(nn.Module):
    """Raises on rows of NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        if torch.isnan(x).any():
            raise RuntimeError("bad rows")
        return self.out(x.flatten(1))


def test_a_worker_that_raises_is_absent_with_its_reason() -> None:
    task = make_task(Refuses)
    task.data.x_train[:10] = np.nan
    engine = Engine(task, [np.arange(10), np.arange(10, 120)], batch_size=5, seed=11)
    result = engine.run_hub(engine.initial(), [0, 1], [1, 1], [0], [[2, 2]], [0.1])
    assert result.absent == [(0, 0, "RuntimeError: bad rows")]
    flat = engine.initial()
    engine.train(flat, 1, 0, 2, 0.1)
    assert same(result.flat, sum_models([flat, engine.initial()], [0.5, 0.5]))
    flat = engine.initial()
    with pytest.raises(RuntimeError, match="bad rows"):
        engine.train(flat, 0, 0, 2, 0.1)
    assert same(flat, engine.initial())


def fake_train(flat: Flat, worker: int, round: int, steps: int, rate: float) -> tuple[float, Flat]:
    """Add (worker + 1) * steps * rate to the model; worker 1 fails in round 7."""
    if (worker, round) == (1, 7):
        raise OSError("disk full")
    return float(worker), {"float64": flat["float64"] + (worker + 1) * steps * rate}


@pytest.mark.parametrize(
    ("rule", "expected"),
    # Round 7: workers 0 and 2 add 2 and 6 with shares 1/4 and 1/4; the share 1/2 is the absent
    # worker's. Round 8, at twice the rate: the three add 4, 8 and 12.
    [("keep", 0.25 * 2 + 0.25 * 6 + 8), ("renormalise", (2 + 6) / 2 + 8)],
)
def test_a_worker_that_fails_in_one_round_is_back_in_the_next(
    rule: AbsentRule, expected: float
) -> None:
    start, steps = {"float64": np.array([0.0])}, np.array([[2, 2, 2], [2, 2, 2]])
    result = run_rounds(start, [0, 1, 2], [1, 2, 1], [7, 8], steps, [1.0, 2.0], fake_train, rule)
    assert result.flat["float64"] == pytest.approx(expected)
    assert result.absent == [(1, 7, "OSError: disk full")]
    np.testing.assert_array_equal(result.steps, [[2, 0, 2], [2, 2, 2]])
    np.testing.assert_array_equal(result.losses, [[0, math.nan, 2], [0, 1, 2]])
    np.testing.assert_array_equal(steps, 2)
    assert start["float64"] == 0


def test_error_messages_name_the_wrong_arguments() -> None:
    engine = make_engine(make_task())
    with pytest.raises(ValueError, match="2 workers with 1 shares"):
        engine.run_hub(engine.initial(), [0, 1], [1], [0], [[1, 1]], [0.1])
    with pytest.raises(ValueError, match="worker 9"):
        engine.run_hub(engine.initial(), [9], [1], [0], [[1]], [0.1])
