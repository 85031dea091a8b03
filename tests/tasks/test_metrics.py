"""Losses and metrics by name, against scikit-learn, and which of them fit a data set."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics
import torch

from mll_flower.tasks.dataset import Dataset
from mll_flower.tasks.metrics import (
    CLASS_LOSSES,
    NUMBER_LOSSES,
    NUMBER_METRICS,
    Accuracy,
    Errors,
    Own,
    as_targets,
    known_losses,
    known_metrics,
    metric_name,
    named_loss,
)
from mll_flower.tasks.task import Task

SKLEARN = {
    "mse": sklearn.metrics.mean_squared_error,
    "rmse": sklearn.metrics.root_mean_squared_error,
    "mae": sklearn.metrics.mean_absolute_error,
    "r2": sklearn.metrics.r2_score,
}


@pytest.mark.parametrize("name", NUMBER_METRICS)
@pytest.mark.parametrize("columns", [0, 1, 3])
def test_metrics_of_regression_are_those_of_scikit_learn(name: str, columns: int) -> None:
    rng = np.random.default_rng(0)
    shape = (50, columns) if columns else (50,)
    target = (1e4 + rng.normal(size=shape)).astype(np.float32)
    output = target + rng.normal(size=shape).astype(np.float32)
    measure = Errors(name)
    for rows in np.array_split(np.arange(50), 3):  # in batches of unequal size
        measure.add(torch.from_numpy(output[rows]), torch.from_numpy(target[rows]))
    assert measure.value() == pytest.approx(SKLEARN[name](target, output), rel=1e-5)


def test_accuracy_counts_every_label() -> None:
    measure = Accuracy(lambda output, target: output.argmax(1) == target)
    scores = torch.nn.functional.one_hot(torch.tensor([[0, 1], [2, 2]]), 3).permute(0, 2, 1)
    measure.add(scores, torch.tensor([[0, 1], [2, 0]]))
    assert measure.value() == 3 / 4


def test_an_own_metric_sees_all_rows_at_once() -> None:
    seen = []
    measure = Own(lambda output, target: seen.append(len(output)) or (output - target).max())
    measure.add(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0]))
    measure.add(torch.tensor([5.0]), torch.tensor([1.0]))
    assert measure.value() == 4.0
    assert seen == [3]
    nested = Own(lambda output, target: output["a"][1].sum() + target.sum())
    nested.add({"a": (torch.zeros(1), torch.ones(2))}, torch.zeros(2))
    nested.add({"a": (torch.zeros(1), torch.ones(3))}, torch.ones(3))
    assert nested.value() == 8.0


def test_one_number_per_row_may_have_a_column_and_nothing_is_broadcast() -> None:
    target = torch.zeros(4)
    assert as_targets(torch.zeros(4, 1), target).shape == (4,)
    for shape in ((4, 2), (1,), (4, 4), ()):
        with pytest.raises(ValueError, match="they must be the same"):
            named_loss("mse")(torch.zeros(shape), target)
    assert named_loss("mae")(torch.ones(4, 1), target).item() == 1.0
    assert named_loss("huber")(torch.full((4, 1), 0.5), target).item() == 0.125


def test_the_names_of_metrics() -> None:
    assert metric_name("auto", False) == "accuracy"
    assert metric_name("auto", True) == "mse"
    assert metric_name("r2", True) == "r2"
    assert metric_name("mine.py:Scores.f1", False) == "f1"
    with pytest.raises(ValueError, match="results call something else 'loss'"):
        metric_name("mine:loss", True)
    assert set(known_losses()) > {*CLASS_LOSSES, *NUMBER_LOSSES}
    assert set(known_metrics()) > {"accuracy", *NUMBER_METRICS}


@pytest.mark.parametrize(
    ("options", "regression", "message"),
    [
        ({"loss_name": "mse"}, False, "loss='mse' does not fit .* classes: use cross-entropy"),
        ({"loss_name": "cross-entropy"}, True, "numbers .regression.: use mse, mae, huber"),
        ({"metric": "mae"}, False, "metric='mae' does not fit .*: use accuracy"),
        ({"metric": "accuracy"}, True, "metric='accuracy' does not fit .*: use mse, rmse, mae, r2"),
        ({"model": "logistic", "loss_name": "mse"}, False, "'logistic' has the log loss"),
        ({"model": "logistic"}, True, "'logistic' predicts classes"),
    ],
)
def test_what_does_not_fit_the_targets_is_refused(
    options: dict[str, str], regression: bool, message: str
) -> None:
    x = np.zeros((4, 2), np.float32)
    y = np.zeros(4, np.float32 if regression else np.int64)
    data = Dataset("own", "own", x, y, x, y, 0 if regression else 2)
    task = Task(data, options.pop("model", "mlp"), 0, **options)
    with pytest.raises(ValueError, match=message):
        task.evaluate(task.new_model())


def test_a_built_in_model_learns_numbers() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    for y in (x[:, 0] * 2, x @ rng.normal(size=(3, 2)).astype(np.float32)):
        task = Task(Dataset("own", "own", x, y, x, y, 0), "mlp", 0, metric="r2")
        module = task.new_model()
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        _, before = task.evaluate(module)
        for _ in range(100):
            optimiser.zero_grad()
            task.loss(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
            optimiser.step()
        loss, after = task.evaluate(module)
        assert before < 0.5 < 0.9 < after
        assert loss < 0.5
