"""MultiLevelStrategy on Flower's own grid, with unmodified ClientApps."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg

from mll_flower import GossipingHubStrategy, HubNetwork, MultiLevelStrategy, mixing_matrix
from mll_flower.algorithm.reference import mll_sgd
from mll_flower.gossip import InProcessBoard, InProcessGossip
from tests.support.flower_grid import (
    EXAMPLES,
    Nodes,
    client_app,
    drift,
    evaluate,
    fixed_weights,
    model,
    run,
    unpack,
)


class KeepModels:
    """An evaluate_fn that keeps the models it is given."""

    def __init__(self) -> None:
        self.models: list[dict[str, np.ndarray]] = []

    def __call__(self, server_round: int, arrays: ArrayRecord) -> MetricRecord:
        assert server_round == len(self.models)
        self.models.append(unpack(arrays))
        return MetricRecord({"round": server_round})


def assert_same_bits(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> None:
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype
        assert array.shape == theirs[name].shape
        assert array.tobytes() == theirs[name].tobytes(), name


def assert_close(ours: Mapping[str, np.ndarray], theirs: Mapping, rtol: float) -> None:
    assert set(ours) == set(theirs)
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=rtol, atol=rtol, err_msg=name)


# --- One hub, and the complete graph ---


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_one_hub_is_fedavg_to_the_bit(dtype: str) -> None:
    with Nodes(client_app(drift, evaluate), 5) as nodes:
        ours_seen, theirs_seen = KeepModels(), KeepModels()
        ours = run(MultiLevelStrategy(hubs=1), nodes, model(dtype), 4, evaluate_fn=ours_seen)
        theirs = run(FedAvg(), nodes, model(dtype), 4, evaluate_fn=theirs_seen)
    assert len(ours_seen.models) == 5
    for a, b in zip(ours_seen.models, theirs_seen.models, strict=True):
        assert_same_bits(a, b)
    assert_same_bits(unpack(ours.arrays), unpack(theirs.arrays))
    assert ours.train_metrics_clientapp == theirs.train_metrics_clientapp
    assert set(ours.train_metrics_clientapp) == {1, 2, 3, 4}
    assert ours.evaluate_metrics_serverapp == theirs.evaluate_metrics_serverapp
    # Flower evaluates on nodes in random order, so even its own metrics vary in the last bit.
    for number, metrics in theirs.evaluate_metrics_clientapp.items():
        assert ours.evaluate_metrics_clientapp[number] == pytest.approx(dict(metrics), rel=1e-12)


def test_another_byte_order_is_kept_and_changes_nothing() -> None:
    start = np.arange(6).reshape(2, 3)
    with Nodes(client_app(drift), 3) as nodes:
        strategies = [MultiLevelStrategy(hubs=1, fraction_evaluate=0.0) for _ in range(2)]
        big, little = (
            unpack(run(strategy, nodes, {"w": start.astype(dtype)}).arrays)["w"]
            for strategy, dtype in zip(strategies, (">f4", "<f4"), strict=True)
        )
    assert big.dtype == np.dtype(">f4")
    np.testing.assert_array_equal(big, little)
    assert not np.array_equal(big, start)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_integers_are_those_of_fedavg_rounded_back(dtype: str) -> None:
    start = {"n": np.zeros(20, dtype=dtype)}
    with Nodes(client_app(drift), 5) as nodes:
        ours = run(MultiLevelStrategy(hubs=1, fraction_evaluate=0.0), nodes, start, 1)
        theirs = run(FedAvg(fraction_evaluate=0.0), nodes, start, 1)
    expected = np.rint(unpack(theirs.arrays)["n"])
    assert np.any(expected != unpack(theirs.arrays)["n"])
    assert ours.arrays["n"].dtype == dtype
    np.testing.assert_array_equal(unpack(ours.arrays)["n"], expected.astype(dtype))


@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-6), ("float64", 1e-14)])
def test_the_complete_graph_is_one_hub(dtype: str, rtol: float) -> None:
    # Not to the bit: hubs sum their own workers first, which rounds differently.
    with Nodes(client_app(drift), 7) as nodes:
        options = {"fraction_evaluate": 0.0}
        ours = run(MultiLevelStrategy(hubs=3, **options), nodes, model(dtype), 4)
        one = run(MultiLevelStrategy(hubs=1, **options), nodes, model(dtype), 4)
    assert_close(unpack(ours.arrays), unpack(one.arrays), rtol)
    for number, metrics in one.train_metrics_clientapp.items():
        for key, value in metrics.items():
            assert ours.train_metrics_clientapp[number][key] == pytest.approx(value)


# --- Several hubs that mix every q rounds ---


def test_a_path_of_hubs_by_hand() -> None:
    hub_of = [0, 1, 2, 0, 1, 2, 0, 1]  # assign="even" deals nodes out in turn
    w = np.array(EXAMPLES, dtype=float)
    total = np.array([w[[h == d for h in hub_of]].sum() for d in range(3)])
    b = total / total.sum()
    # Metropolis on 0 - 1 - 2: degrees 1, 2, 1.
    flow01, flow12 = min(b[0] / 2, b[1] / 3), min(b[1] / 3, b[2] / 2)
    H = np.array(
        [
            [1 - flow01 / b[0], flow01 / b[1], 0],
            [flow01 / b[0], 1 - (flow01 + flow12) / b[1], flow12 / b[2]],
            [0, flow12 / b[1], 1 - flow12 / b[2]],
        ]
    )
    y = [model("float64")] * 3
    expected = [model("float64")]
    for number in range(1, 6):
        z = []
        for d in range(3):
            config = ConfigRecord({"server-round": number})
            x = {i: fixed_weights(i, y[d], config)[0] for i in range(8) if hub_of[i] == d}
            z.append({k: sum(w[i] / total[d] * x[i][k] for i in x) for k in y[d]})
        mixes = number % 2 == 0
        y = (
            [{k: sum(H[j, d] * z[j][k] for j in range(3)) for k in z[0]} for d in range(3)]
            if mixes
            else z
        )
        expected.append({k: sum(b[d] * y[d][k] for d in range(3)) for k in y[0]})

    strategy = MultiLevelStrategy(hubs=3, graph="path", q=2, fraction_evaluate=0.0)
    seen = KeepModels()
    with Nodes(client_app(fixed_weights), 8) as nodes:
        result = run(strategy, nodes, model("float64"), 5, evaluate_fn=seen)
    np.testing.assert_allclose(strategy.mixing_matrix(), H, atol=1e-12)
    for ours, theirs in zip(seen.models, expected, strict=True):
        assert_close(ours, theirs, 1e-12)
    assert_close(unpack(result.arrays), expected[-1], 1e-12)
    for hub, theirs in zip(strategy.hubs, y, strict=True):
        assert_close(hub.layout.arrays(hub.model), theirs, 1e-12)
    apart = strategy.hubs[0].model["float64"] - strategy.hubs[2].model["float64"]
    assert np.abs(apart).max() > 0.01  # else one hub would pass this test too


@pytest.mark.parametrize("graph", ["path", "star", "ring"])
def test_it_equals_algorithm_1(graph: str) -> None:
    tau, q, rounds, eta = 3, 2, 4, 0.1
    network = HubNetwork.build(
        workers_per_hub=[2, 1, 2, 3], graph=graph, weights=np.arange(1.0, 9.0)
    )
    targets = np.random.default_rng(5).normal(size=(8, 6))

    def gradient(worker: int, slot: int, x):
        return x - targets[worker] + 0.01 * slot

    def train(worker: int, arrays, config):
        x, first = arrays["x"], (int(config["round"]) - 1) * int(config["tau"])
        for step in range(1, int(config["tau"]) + 1):
            x = x - eta * gradient(worker, first + step, x)
        return {"x": x}, {"loss": 0.0}

    H = mixing_matrix(network.graph, network.b, "metropolis")
    coins = np.ones((tau * rounds, 8))
    reference = mll_sgd(gradient, network, H, tau, q, eta, coins, np.zeros(6))
    strategy = MultiLevelStrategy(network, mixing="metropolis", tau=tau, q=q, fraction_evaluate=0.0)
    seen = KeepModels()
    with Nodes(client_app(train), 8) as nodes:
        run(strategy, nodes, {"x": np.zeros(6)}, rounds, evaluate_fn=seen)
    ours = np.array([m["x"] for m in seen.models])
    np.testing.assert_allclose(ours, reference.average[::tau], rtol=1e-12)
    hubs = np.array([hub.model["float64"] for hub in strategy.hubs])
    np.testing.assert_allclose(hubs, reference.hubs[-1], rtol=1e-12)


def test_hubs_that_gossip_are_the_hubs_of_one_grid() -> None:
    """GossipingHubStrategy with one hub per grid, against MultiLevelStrategy with all on one."""
    hub_of = [0, 0, 1, 1, 1, 2, 2, 2]
    options = {"q": 2, "fraction_evaluate": 0.0, "min_available_nodes": 2}
    with Nodes(client_app(fixed_weights), 8) as nodes:
        place = dict(zip(nodes.ids, hub_of, strict=True))
        together = MultiLevelStrategy(
            hubs=3, graph="path", mixing="metropolis", assign=place.__getitem__, **options
        )
        run(together, nodes, model("float64"), 5)

    board = InProcessBoard()
    neighbours = [["1"], ["0", "2"], ["1"]]
    alone = [
        GossipingHubStrategy(
            InProcessGossip(board, str(d), neighbours[d], "run"), gossip_deadline=60, **options
        )
        for d in range(3)
    ]
    with ExitStack() as stack, ThreadPoolExecutor(3) as threads:
        grids = []
        for d in range(3):
            first, count = hub_of.index(d), hub_of.count(d)
            config = partial(lambda first, k: {"partition-id": first + k}, first)
            grids.append(stack.enter_context(Nodes(client_app(fixed_weights), count, config)))
        runs = [
            threads.submit(run, strategy, grid, model("float64"), 5)
            for strategy, grid in zip(alone, grids, strict=True)
        ]
        results = [future.result(120) for future in runs]
    for strategy, result, hub in zip(alone, results, together.hubs, strict=True):
        strategy.gossip.close()
        assert_close(unpack(result.arrays), hub.layout.arrays(hub.model), 1e-12)


def test_mixing_does_not_change_the_averaged_model() -> None:
    with Nodes(client_app(fixed_weights), 8) as nodes:
        options = {"hubs": 4, "graph": "ring", "fraction_evaluate": 0.0}
        mixed = run(MultiLevelStrategy(**options, q=1), nodes, model("float64"), 1)
        alone = run(MultiLevelStrategy(**options, q=9), nodes, model("float64"), 1)
    assert_close(unpack(mixed.arrays), unpack(alone.arrays), 1e-13)


def test_a_report_changes_no_bit() -> None:
    """Without one, hubs mix in place; with one, the models from before the mixing are kept."""

    def play(**more) -> tuple[dict[str, np.ndarray], MultiLevelStrategy]:
        strategy = MultiLevelStrategy(hubs=3, graph="path", q=2, fraction_evaluate=0.0, **more)
        return unpack(run(strategy, nodes, model("float32"), 4).arrays), strategy

    spreads = []
    with Nodes(client_app(fixed_weights), 6) as nodes:
        quiet, one = play()
        reported, other = play(on_round=lambda report: spreads.append(report.spread))
    assert_same_bits(quiet, reported)
    for a, b in zip(one.hub_models(), other.hub_models(), strict=True):
        assert_same_bits(unpack(a), unpack(b))
    assert all(spread.min() > 0 for spread in spreads)


def test_a_hub_without_replies_does_not_disturb_the_others_at_a_mixing() -> None:
    """Hubs that have not trained yet share the initial model, which mixing must not overwrite."""

    def train(partition, arrays, config):
        if partition < 2:
            raise RuntimeError("away")
        return {"x": arrays["x"] + 1}, {"num-examples": 1}

    strategy = MultiLevelStrategy(hubs=3, graph="path", fraction_evaluate=0.0)
    with Nodes(client_app(train), 3) as nodes:
        run(strategy, nodes, {"x": np.zeros(2)}, 1)
    H = strategy.mixing_matrix()
    expected = H.T @ [0, 0, 1]
    found = [unpack(m)["x"][0] for m in strategy.hub_models()]
    np.testing.assert_allclose(found, expected)


def test_clients_evaluate_the_averaged_model() -> None:
    strategy = MultiLevelStrategy(hubs=3, graph="path", q=2)
    with Nodes(client_app(fixed_weights, evaluate), 8) as nodes:
        result = run(strategy, nodes, model("float64"), 3)
    u = float(sum(array.sum() for array in unpack(result.arrays).values()))
    w = np.array(EXAMPLES) / sum(EXAMPLES)
    assert result.evaluate_metrics_clientapp[3]["total"] == pytest.approx(u)
    assert result.evaluate_metrics_clientapp[3]["who"] == pytest.approx(w @ np.arange(8))


def test_a_restored_strategy_continues_where_the_first_stopped() -> None:
    def make() -> MultiLevelStrategy:
        return MultiLevelStrategy(hubs=3, graph="path", q=2, fraction_evaluate=0.0)

    def train(partition, arrays, config):
        return fixed_weights(partition, arrays, ConfigRecord({"server-round": config["round"]}))

    with Nodes(client_app(train), 8) as nodes:
        whole = run(make(), nodes, model("float32"), 5)
        first = make()
        run(first, nodes, model("float32"), 3)
        second = make()
        second.restore(first.round, [hub.model for hub in first.hubs])
        resumed = run(second, nodes, model("float32"), 2)
    assert second.round == 5
    assert_same_bits(unpack(resumed.arrays), unpack(whole.arrays))


# --- Models ---


def test_a_list_of_numpy_arrays_keeps_its_dtypes() -> None:
    arrays = [
        np.ones((3, 2), dtype=np.float16),
        np.arange(4, dtype=np.int64),
        np.array(7, dtype=np.int32),
        np.ones(2, dtype=np.float64),
        np.array([1, 0, 1], dtype=np.uint8),
    ]
    strategy = MultiLevelStrategy(hubs=2, q=2, fraction_evaluate=0.0)
    with Nodes(client_app(drift), 4) as nodes:
        result = strategy.start(nodes.grid, ArrayRecord(arrays), num_rounds=3)
    after = result.arrays.to_numpy_ndarrays()
    assert [(a.dtype, a.shape) for a in after] == [(a.dtype, a.shape) for a in arrays]
    assert all(np.any(a != b) for a, b in zip(after, arrays, strict=True))


def test_integers_are_averaged_in_float64_and_rounded_once_per_hub() -> None:
    counts = [3, 4, 10, 11]

    def train(partition, arrays, config):
        return {"n": arrays["n"] + counts[partition]}, {"num-examples": partition + 1}

    strategy = MultiLevelStrategy(hubs=2, fraction_evaluate=0.0)
    with Nodes(client_app(train), 4) as nodes:
        result = run(strategy, nodes, {"n": np.array([100], dtype=np.int64)}, 1)
    # Hub 0: workers 0 and 2, (3 + 3 * 10) / 4 = 8.25; hub 1: (2 * 4 + 4 * 11) / 6 = 8.67.
    assert unpack(result.arrays)["n"].tolist() == [round((4 * 108 + 6 * 109) / 10)]


def test_a_graph_of_networkx_and_a_matrix_from_a_file(tmp_path: Path) -> None:
    graph = nx.Graph([("a", "b"), ("b", "c")])
    b = np.array([2, 2, 2]) / 6
    H = mixing_matrix(nx.path_graph(3), b, "diffusion")
    np.savetxt(tmp_path / "h.csv", H, delimiter=",")
    equal = client_app(lambda p, a, c: (drift(p, a, c)[0], {"num-examples": 3}))
    strategies = [
        MultiLevelStrategy(hubs=3, graph=graph, mixing=mixing, fraction_evaluate=0.0)
        for mixing in ("diffusion", tmp_path / "h.csv")
    ]
    with Nodes(equal, 6) as nodes:
        by_rule, by_file = (run(s, nodes, model("float64"), 3) for s in strategies)
    assert_close(unpack(by_rule.arrays), unpack(by_file.arrays), 1e-9)
