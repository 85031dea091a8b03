"""Arrays that are not what the strategy returned last: wrappers, subclasses and new starts."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

from mll_flower import GossipingHubStrategy, MultiLevelStrategy
from mll_flower.gossip import InProcessBoard, InProcessGossip
from mll_flower.grids.in_process import InProcessGrid
from mll_flower.models.layout import Layout
from mll_flower.strategies.given_model import LastModel, move_models, read_model
from tests.support.arrays import record
from tests.support.flower_grid import (
    Nodes,
    OrderedGrid,
    client_app,
    drift,
    fixed_weights,
    model,
    run,
    unpack,
)


class Received:
    """A train function that adds its partition, and one, and keeps the models that it receives."""

    def __init__(self) -> None:
        self.models: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, partition, arrays, config):
        self.models[partition, config["server-round"]] = arrays["x"].copy()
        return {"x": arrays["x"] + partition + 1}, {"num-examples": 1}


def private(strategy, noise: float = 1.0, nodes: int = 4):
    return DifferentialPrivacyServerSideFixedClipping(strategy, noise, 1e6, nodes)


# --- Wrappers ---


@pytest.mark.parametrize("hubs", [1, 2])
@pytest.mark.parametrize("grid", ["in process", "Flower's"])
def test_noise_for_privacy_reaches_the_hubs_models(hubs: int, grid: str) -> None:
    received = Received()
    strategy = MultiLevelStrategy(hubs=hubs, graph="path", q=9, fraction_evaluate=0.0)
    seen = []
    with Nodes(client_app(received), 4) as nodes:
        link = nodes.grid if grid == "Flower's" else InProcessGrid(nodes.app, 4, {})
        private(strategy).start(
            link,
            record({"x": np.zeros(1000)}),
            num_rounds=2,
            evaluate_fn=lambda number, arrays: seen.append(unpack(arrays)["x"]),
        )
    # The standard deviation is noise * clipping norm / nodes.
    noise = seen[1] - seen[1].mean()
    assert np.std(noise) == pytest.approx(1e6 / 4, rel=0.1)
    sent = [received.models[k, 2] for k in range(4)]
    np.testing.assert_allclose(np.mean(sent, axis=0), seen[1], rtol=1e-12, atol=1e-6)
    if hubs == 1:
        assert all(x.tobytes() == seen[1].tobytes() for x in sent)
    else:  # hub 0 has the workers 0 and 2, hub 1 the workers 1 and 3
        np.testing.assert_allclose(sent[1] - sent[0], 1.0, atol=1e-6)


def test_adaptive_clipping_reaches_the_hubs_models_too() -> None:
    received = Received()
    wrapped = DifferentialPrivacyServerSideAdaptiveClipping(
        MultiLevelStrategy(hubs=2, fraction_evaluate=0.0), 0.1, 4, initial_clipping_norm=100.0
    )
    seen = []
    with Nodes(client_app(received), 4) as nodes:
        wrapped.start(
            nodes.grid,
            record({"x": np.zeros(500)}),
            num_rounds=2,
            evaluate_fn=lambda number, arrays: seen.append(unpack(arrays)["x"]),
        )
    assert np.std(seen[1]) > 1
    sent = np.mean([received.models[k, 2] for k in range(4)], axis=0)
    np.testing.assert_allclose(sent, seen[1], atol=1e-9)


def test_a_wrapped_hub_is_wrapped_fedavg_to_the_bit() -> None:
    results = []
    with Nodes(client_app(drift), 5) as nodes:
        for strategy in (MultiLevelStrategy(hubs=1, fraction_evaluate=0.0), FedAvg()):
            strategy.fraction_evaluate = 0.0
            np.random.seed(3)  # noqa: NPY002
            wrapped = DifferentialPrivacyServerSideFixedClipping(strategy, 0.5, 2.0, 5)
            grid = OrderedGrid(nodes.grid)
            results.append(wrapped.start(grid, record(model("float64")), num_rounds=3).arrays)
    ours, theirs = map(unpack, results)
    for name, array in ours.items():
        assert array.tobytes() == theirs[name].tobytes()


def test_a_gossiping_hub_honours_noise() -> None:
    received = Received()
    strategy = GossipingHubStrategy(
        InProcessGossip(InProcessBoard(), "a", [], "run"), fraction_evaluate=0.0
    )
    seen = []
    with Nodes(client_app(received), 4) as nodes:
        private(strategy).start(
            nodes.grid,
            record({"x": np.zeros(100)}),
            num_rounds=2,
            evaluate_fn=lambda number, arrays: seen.append(unpack(arrays)["x"]),
        )
    assert np.std(seen[1]) > 1e4
    assert received.models[0, 2].tobytes() == seen[1].tobytes()


# --- Subclasses ---


class Replacing(MultiLevelStrategy):
    """Doubles what is returned, in a record of its own."""

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        return record({name: 2 * a.numpy() for name, a in arrays.items()}), metrics


class InPlace(MultiLevelStrategy):
    """Doubles what is returned, in the same record."""

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        for name, array in list(arrays.items()):
            arrays[name] = Array(2 * array.numpy())
        return arrays, metrics


class SameArray(MultiLevelStrategy):
    """Doubles what is returned, in the same record and the same array."""

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        for array in arrays.values():
            array.data = Array(2 * array.numpy()).data
        return arrays, metrics


class Passing(MultiLevelStrategy):
    """Passes twice the model on to the next round."""

    def configure_train(self, server_round, arrays, config, grid):
        factor = 1 if server_round == 1 else 2
        doubled = record({name: factor * a.numpy() for name, a in arrays.items()})
        return super().configure_train(server_round, doubled, config, grid)


@pytest.mark.parametrize("kind", [Replacing, InPlace, SameArray, Passing])
def test_a_subclass_that_changes_the_arrays_is_honoured(kind, caplog) -> None:
    received = Received()
    strategy = kind(hubs=2, q=9, fraction_evaluate=0.0)
    with Nodes(client_app(received), 4) as nodes:
        run(strategy, nodes, {"x": np.zeros(3)}, 3)
    # Hub 0 adds the mean of 1 and 3, hub 1 that of 2 and 4: u is 2.5 and becomes 5.
    assert received.models[0, 2].tolist() == [2 + 2.5] * 3
    assert received.models[1, 2].tolist() == [3 + 2.5] * 3
    # Then u is 7.5 and becomes 15; the hubs are 2 apart.
    assert received.models[0, 3].tolist() == [14] * 3
    assert received.models[1, 3].tolist() == [16] * 3
    told = [r for r in caplog.records if "moved by the difference" in r.getMessage()]
    assert [r.levelno for r in told] == [logging.WARNING]  # once, not in every round


def test_integers_are_rounded_and_floats_of_another_width_are_cast() -> None:
    class Changed(MultiLevelStrategy):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            return record({"x": arrays["x"].numpy() + 0.5, "n": arrays["n"].numpy() + 2.6}), metrics

    sent = []

    def train(partition, arrays, config):
        sent.append((partition, {k: a.copy() for k, a in arrays.items()}))
        return arrays, {"num-examples": 1}

    strategy = Changed(hubs=2, fraction_evaluate=0.0)
    with Nodes(client_app(train), 2) as nodes:
        run(strategy, nodes, {"x": np.ones(2, np.float32), "n": np.array([7])}, 2)
    last = dict(sent[-2:])
    for partition in (0, 1):
        assert last[partition]["x"].dtype == np.float32
        assert last[partition]["x"].tolist() == [1.5, 1.5]
        assert last[partition]["n"].tolist() == [10]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: record({"x": np.full(3, np.nan)}), "NaN or an infinity"),
        (lambda a: record({"x": np.zeros(4)}), r"shape \(4,\), expected \(3,\)"),
        (lambda a: record({"y": np.zeros(3)}), "other keys"),
    ],
)
def test_arrays_that_no_hub_can_use_are_refused(change, message: str) -> None:
    class Wrong(MultiLevelStrategy):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            return change(arrays), metrics

    with Nodes(client_app(Received()), 2) as nodes, pytest.raises(ValueError, match=message):
        run(Wrong(hubs=2, fraction_evaluate=0.0), nodes, {"x": np.zeros(3)}, 2)


def test_a_round_that_a_wrapper_rejects_has_no_effect() -> None:
    class Rejects(MultiLevelStrategy):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            return (None if server_round == 1 else arrays), metrics

    received = Received()
    strategy = Rejects(hubs=1, fraction_evaluate=0.0)
    with Nodes(client_app(received), 2) as nodes:
        result = run(strategy, nodes, {"x": np.zeros(2)}, 2)
    assert received.models[0, 2].tolist() == [0, 0]
    assert unpack(result.arrays)["x"].tolist() == [1.5, 1.5]


# --- Another start ---


def test_a_second_start_begins_at_its_initial_arrays() -> None:
    received = Received()
    strategy = MultiLevelStrategy(hubs=2, q=9, fraction_evaluate=0.0)
    with Nodes(client_app(received), 4) as nodes:
        run(strategy, nodes, {"x": np.zeros(2)}, 2)
        run(strategy, nodes, {"x": np.full(2, 100.0)}, 1)
    assert [received.models[k, 1].tolist() for k in range(4)] == [[100.0, 100.0]] * 4


def test_a_second_start_with_the_last_result_goes_on() -> None:
    def start() -> MultiLevelStrategy:
        return MultiLevelStrategy(hubs=3, graph="path", q=2, fraction_evaluate=0.0)

    def train(partition, arrays, config):
        return fixed_weights(partition, arrays, {"server-round": config["round"]})

    with Nodes(client_app(train), 6) as nodes:
        whole = run(start(), nodes, model("float32"), 5)
        parts = start()
        result = run(parts, nodes, model("float32"), 3)
        result = parts.start(nodes.grid, result.arrays, num_rounds=2)
    for name, array in unpack(whole.arrays).items():
        assert array.tobytes() == unpack(result.arrays)[name].tobytes()


# --- The parts ---


def test_the_last_model_is_compared_by_content() -> None:
    last = LastModel()
    given = record({"x": np.arange(3.0), "n": np.array([1])})
    last.remember(given)
    assert last.is_same(given)
    assert last.is_same(record({"x": np.arange(3.0), "n": np.array([1])}))
    assert not last.is_same(record({"x": np.arange(3.0)}))
    given["x"].data = Array(np.ones(3)).data
    assert not last.is_same(given)
    assert not LastModel().is_same(given)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_moved_integers_stay_within_their_dtype(dtype: str) -> None:
    models = [{dtype: np.array([0, 1], dtype)}, {dtype: np.array([1, 1], dtype)}]
    low, high = {dtype: np.array([0, 0], dtype)}, {dtype: np.array([1, 1], dtype)}
    down = move_models(models, high, low)
    up = move_models(models, low, high)
    first = [m[dtype].astype(int).tolist() for m in (down[0], up[1])]
    assert (
        first
        == {
            "int64": [[-1, 0], [2, 2]],
            "uint8": [[0, 0], [2, 2]],
            "bool": [[0, 0], [1, 1]],
        }[dtype]
    )
    assert all(m[dtype].dtype == dtype for m in down + up)
    assert models[0][dtype].astype(int).tolist() == [0, 1]  # not changed in place


def test_large_integers_that_did_not_change_keep_all_their_digits() -> None:
    big = np.array([2**60 + 1])
    models = [{"int64": big, "float64": np.zeros(1)}] * 2
    last, given = dict(models[0]), {"int64": big, "float64": np.ones(1)}
    assert all(m["int64"][0] == 2**60 + 1 for m in move_models(models, last, given))
    layout = Layout.of({"n": big})
    assert read_model(layout, ArrayRecord({"n": Array(big)}), "x")["int64"][0] == 2**60 + 1
