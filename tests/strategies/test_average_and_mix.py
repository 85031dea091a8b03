"""Hubs that all mix alike average and mix in one pass: the bits and rules of two passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from mll_flower import MultiLevelStrategy
from mll_flower.grids.in_process import InProcessGrid
from mll_flower.models import _average_and_mix

WORKERS = 6
# More than a block, a small array, and integers, as BatchNorm has.
SIZES = {"large": (1 << 17) + 5, "small": 7}


def record(model: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in model.items()})


def new_model(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = {name: rng.standard_normal(n).astype("f4") for name, n in SIZES.items()}
    return {**arrays, "counter": np.array([seed * 3 + 1], "i8")}


def play(
    strategy: MultiLevelStrategy, reply: Callable[[int, int], Any], rounds: int = 3
) -> list[ArrayRecord]:
    """Play rounds with the replies that ``reply(round, worker)`` makes; return each u."""
    grid = InProcessGrid(ClientApp(), WORKERS, {})
    arrays, seen = record(new_model(0)), []
    for number in range(1, rounds + 1):
        replies = []
        for k, message in enumerate(strategy.configure_train(number, arrays, ConfigRecord(), grid)):
            message.metadata.__dict__["_message_id"] = str(k)
            content = reply(number, k)
            replies.append(Message(content, reply_to=message))
        aggregated, _ = strategy.aggregate_train(number, replies)
        assert aggregated is not None
        arrays = aggregated
        seen.append(arrays)
    return seen


def answer(model: dict[str, np.ndarray], examples: float) -> RecordDict:
    metrics = MetricRecord({"num-examples": examples})
    return RecordDict({"arrays": record(model), "metrics": metrics})


def all_arrive(number: int, worker: int) -> RecordDict:
    return answer(new_model(10 * number + worker), 10 * worker + number)


def some_are_absent(number: int, worker: int) -> Any:
    return Error(0, "gone") if worker in (number, 5) else all_arrive(number, worker)


def one_sends_a_nan(number: int, worker: int) -> RecordDict:
    if (number, worker) != (2, 3):
        return all_arrive(number, worker)
    model = new_model(99)
    model["large"][-1] = np.nan
    return answer(model, 1e6)  # a weight that must not count


def a_hub_is_silent(number: int, worker: int) -> Any:
    # The messages go out hub by hub, to two workers each.
    return Error(0, "gone") if number == 2 and worker in (2, 3) else all_arrive(number, worker)


def passes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that gets an entry per call of the pass: whether it gave a model."""
    given: list[bool] = []
    real = _average_and_mix.average_and_mix

    def spy(*arguments: Any) -> Any:
        model = real(*arguments)
        given.append(model is not None)
        return model

    monkeypatch.setattr("mll_flower.strategies.multi_level.average_and_mix", spy)
    return given


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (all_arrive, [True, True, True]),
        (some_are_absent, [True, True, True]),
        (one_sends_a_nan, [True, False, True]),
        (a_hub_is_silent, [True, True]),
    ],
)
@pytest.mark.parametrize("absent", ["keep", "renormalise"])
def test_one_pass_gives_the_bits_of_two(
    reply: Callable[[int, int], Any],
    expected: list[bool],
    absent: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = passes(monkeypatch)
    at_once = MultiLevelStrategy(hubs=3, absent=absent)
    ours = play(at_once, reply)
    assert given == expected
    # Whoever wants reports gets every hub's average, so that there are two passes.
    apart = MultiLevelStrategy(hubs=3, absent=absent, on_round=lambda report: None)
    theirs = play(apart, reply)
    assert given == expected
    for a, b in zip(ours, theirs, strict=True):
        for name in a:
            assert a[name].data == b[name].data, name
    for one, two in zip(at_once.hubs, apart.hubs, strict=True):
        assert (one.weights, one.weight, one.usual_weight) == (
            two.weights,
            two.weight,
            two.usual_weight,
        )
        assert one.has_new_model == two.has_new_model


@pytest.mark.parametrize(
    "arguments", [{"graph": "ring", "hubs": 4}, {"q": 5, "hubs": 3}, {"hubs": 1}]
)
def test_hubs_that_keep_a_model_of_their_own_take_two_passes(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = passes(monkeypatch)
    play(MultiLevelStrategy(**arguments), all_arrive)
    assert not any(given)
