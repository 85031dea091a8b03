"""Saving the hubs' models and continuing from them, with the public types alone."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from mll_flower import MultiLevelStrategy
from tests.support.arrays import record
from tests.support.flower_grid import Nodes, client_app, fixed_weights, model, run, unpack

PAGE = Path(__file__).parents[2] / "docs" / "plugin.md"


def make() -> MultiLevelStrategy:
    return MultiLevelStrategy(hubs=3, graph="path", q=2, fraction_evaluate=0.0)


def train(partition, arrays, config):
    return fixed_weights(partition, arrays, {"server-round": config["round"]})


def test_a_run_continues_from_its_hub_models() -> None:
    with Nodes(client_app(train), 6) as nodes:
        whole = run(make(), nodes, model("float32"), 5)
        first, second = make(), make()
        run(first, nodes, model("float32"), 3)
        second.restore(first.round, first.hub_models())
        resumed = run(second, nodes, model("float32"), 2)
    assert second.round == 5
    for name, array in unpack(whole.arrays).items():
        assert array.tobytes() == unpack(resumed.arrays)[name].tobytes()


def test_the_lines_of_the_page_save_and_resume(tmp_path: Path, monkeypatch) -> None:
    text = PAGE.read_text()
    (code,) = re.findall(r"```python\n(# Save and resume\n.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    with Nodes(client_app(train), 6) as nodes:
        whole = run(make(), nodes, model("float32"), 5)
        for rounds in (3, 5):  # the second time, it continues after round 3
            names = {
                "strategy": make(),
                "grid": nodes.grid,
                "arrays": record(model("float32")),
                "num_rounds": rounds,
                "evaluate": lambda number, arrays: None,
            }
            exec(code, names)
        result = names["result"]
    assert names["strategy"].round == 5
    for name, array in unpack(whole.arrays).items():
        assert array.tobytes() == unpack(result.arrays)[name].tobytes()


def test_a_strategy_that_has_run_can_be_restored() -> None:
    strategy = make()
    with Nodes(client_app(train), 6) as nodes:
        run(strategy, nodes, model("float32"), 2)
        saved = strategy.hub_models()
        run(strategy, nodes, model("float32"), 1)
        strategy.restore(2, saved)
        again = run(strategy, nodes, model("float32"), 3)
        whole = run(make(), nodes, model("float32"), 5)
    for name, array in unpack(whole.arrays).items():
        assert array.tobytes() == unpack(again.arrays)[name].tobytes()


def test_hub_models_have_the_change_of_a_wrapper_in_them() -> None:
    saved = {}

    class Noisy(MultiLevelStrategy):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            return record({k: a.numpy() + 1000 for k, a in arrays.items()}), metrics

    strategy = Noisy(hubs=2, q=9, fraction_evaluate=0.0)

    def save(number, arrays):
        if number:
            saved["with"] = strategy.hub_models(arrays)
            saved["without"] = strategy.hub_models()

    def one(partition, arrays, config):
        return {"x": arrays["x"] + partition + 1}, {"num-examples": 1}

    with Nodes(client_app(one), 2) as nodes:
        run(strategy, nodes, {"x": np.zeros(1)}, 1, evaluate_fn=save)
    assert [m["x"].numpy()[0] for m in saved["without"]] == [1, 2]
    assert [m["x"].numpy()[0] for m in saved["with"]] == [1001, 1002]


def test_hub_models_before_the_first_round() -> None:
    with pytest.raises(RuntimeError, match="no models yet"):
        make().hub_models()


@pytest.mark.parametrize(
    ("round", "models", "error", "message"),
    [
        (-1, [model("float32")] * 3, ValueError, "round=-1"),
        (1.5, [model("float32")] * 3, TypeError, "round=1.5"),
        (1, [model("float32")] * 2, ValueError, "2 models for 3 hubs"),
    ],
)
def test_what_cannot_be_restored_is_refused(round, models, error, message: str) -> None:
    with pytest.raises(error, match=message):
        make().restore(round, [record(arrays) for arrays in models])


@pytest.mark.parametrize(
    ("model_of", "message"),
    [
        (lambda: record({"x": np.zeros(3)}), "restored models do not fit"),
        (lambda: {"float32": np.zeros(3, np.float32)}, "restored models do not fit"),
        (lambda: record({**model("float32"), "b": np.full(7, np.nan)}), "NaN or an infinity"),
    ],
)
def test_restored_models_must_be_those_of_this_run(model_of, message: str) -> None:
    strategy = make()
    strategy.restore(1, [model_of()] * 3)
    with Nodes(client_app(train), 3) as nodes, pytest.raises(ValueError, match=message):
        run(strategy, nodes, model("float32"), 1)
