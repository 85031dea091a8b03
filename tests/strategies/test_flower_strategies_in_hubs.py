"""Each of Flower's strategies as the inner strategy of hubs, against a loop written by hand."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
    QFedAvg,
    Strategy,
)

from mll_flower import MultiLevelStrategy
from mll_flower.grids.wrapper import GridWrapper
from tests.support.arrays import record
from tests.support.flower_grid import Nodes, client_app, drift, model, run, unpack

HUBS, WORKERS = 2, 14  # seven per hub: what Bulyan needs against one malicious worker


def private(wrapper: type, *values: float, **more: float) -> Callable[[], Strategy]:
    return lambda: wrapper(FedAvg(), *values, num_sampled_clients=7, **more)


STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "FedAvg": FedAvg,
    "FedProx": lambda: FedProx(proximal_mu=0.1),
    "FedAdam": lambda: FedAdam(eta=0.05),
    "FedYogi": lambda: FedYogi(eta=0.05),
    "FedAdagrad": lambda: FedAdagrad(eta=0.05),
    "FedAvgM": lambda: FedAvgM(server_learning_rate=0.7, server_momentum=0.9),
    "FedTrimmedAvg": lambda: FedTrimmedAvg(beta=0.2),
    "FedMedian": FedMedian,
    "Krum": lambda: Krum(num_malicious_nodes=1),
    "MultiKrum": lambda: MultiKrum(num_malicious_nodes=1, num_nodes_to_select=3),
    "Bulyan": lambda: Bulyan(num_malicious_nodes=1),
    "QFedAvg": lambda: QFedAvg(client_learning_rate=0.1, q=0.2),
    "DP server, fixed": private(DifferentialPrivacyServerSideFixedClipping, 0.1, 2.0),
    "DP server, adaptive": private(
        DifferentialPrivacyServerSideAdaptiveClipping, 0.1, initial_clipping_norm=2.0
    ),
    "DP client, fixed": private(DifferentialPrivacyClientSideFixedClipping, 0.1, 2.0),
    "DP client, adaptive": private(
        DifferentialPrivacyClientSideAdaptiveClipping, 0.1, initial_clipping_norm=2.0
    ),
}
MODS = {"DP client, fixed": [fixedclipping_mod], "DP client, adaptive": [adaptiveclipping_mod]}


@pytest.fixture(autouse=True, scope="module")
def small_heap() -> Iterator[None]:
    """Bulyan and QFedAvg collect garbage after every array; leave them few objects to visit."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class HubNodes(GridWrapper):
    """A grid that has one hub's nodes only."""

    def __init__(self, grid, nodes: list[int]) -> None:
        super().__init__(grid)
        self.nodes = nodes

    def get_node_ids(self) -> list[int]:
        return self.nodes


def by_hand(
    strategies: list[Strategy], nodes: Nodes, rounds: int, H: np.ndarray, q: int
) -> list[dict[str, np.ndarray]]:
    """Return the hubs' models after a plain loop over Flower's strategies, one per hub."""
    y = [model("float64")] * HUBS
    for number in range(1, rounds + 1):
        replies_of = []
        for d, strategy in enumerate(strategies):
            grid = HubNodes(nodes.grid, nodes.ids[d::HUBS])
            if isinstance(strategy, FedAvgM):  # it would use only the first model that it is given
                strategy.current_arrays = None
            messages = strategy.configure_train(number, record(y[d]), ConfigRecord(), grid)
            replies = sorted(
                grid.send_and_receive(messages, timeout=60),
                key=lambda reply: reply.metadata.src_node_id,
            )
            replies_of.append(replies)
        # All hubs ask first and then aggregate, in order: the noise comes from one generator.
        z = [
            unpack(strategy.aggregate_train(number, replies)[0])
            for strategy, replies in zip(strategies, replies_of, strict=True)
        ]
        y = z
        if number % q == 0:
            y = [
                {k: sum(H[j, d] * z[j][k] for j in range(HUBS)) for k in z[0]} for d in range(HUBS)
            ]
    return y


def equal_weights(partition: int, arrays, config):
    moved, metrics = drift(partition, arrays, config)
    return moved, {**metrics, "num-examples": 20}


@pytest.mark.parametrize("q", [1, 2])
@pytest.mark.parametrize("name", STRATEGIES)
def test_each_hub_runs_flowers_strategy_and_mixes(name: str, q: int, tmp_path: Path) -> None:
    # With a fifth of the other's model, hubs and the states of their strategies stay different.
    H = np.array([[0.8, 0.2], [0.2, 0.8]])
    np.savetxt(tmp_path / "mixing.csv", H, delimiter=",")
    make = STRATEGIES[name]
    strategy = MultiLevelStrategy(
        hubs=HUBS,
        mixing=tmp_path / "mixing.csv",
        q=q,
        inner_strategy=make(),
        fraction_evaluate=0.0,
    )
    with Nodes(client_app(equal_weights, mods=MODS.get(name)), WORKERS) as nodes:
        # Flower draws its noise from NumPy's global generator.
        np.random.seed(1)  # noqa: NPY002
        result = run(strategy, nodes, model("float64"), 4)
        np.random.seed(1)  # noqa: NPY002
        expected = by_hand([make(), make()], nodes, 4, H, q)
    for hub, theirs in zip(strategy.hubs, expected, strict=True):
        ours = hub.layout.arrays(hub.model)
        for key, array in theirs.items():
            np.testing.assert_allclose(ours[key], array, rtol=1e-9, atol=1e-9)
    for key, array in unpack(result.arrays).items():
        np.testing.assert_allclose(array, (expected[0][key] + expected[1][key]) / 2, atol=1e-9)
    assert np.abs(expected[0]["w"] - expected[1]["w"]).max() > 1e-3
    assert len(result.train_metrics_clientapp) == 4


def test_each_hub_has_its_own_moments_and_the_given_strategy_is_not_changed() -> None:
    given = FedAdam(eta=0.05)
    before = copy.deepcopy(vars(given))
    strategy = MultiLevelStrategy(hubs=2, inner_strategy=given, fraction_evaluate=0.0)
    with Nodes(client_app(drift), 6) as nodes:
        run(strategy, nodes, model("float32"), 3)
    first, second = (hub.inner_strategy for hub in strategy.hubs)
    assert isinstance(first, FedAdam)
    assert isinstance(second, FedAdam)
    assert np.abs(first.m_t["w"] - second.m_t["w"]).max() > 1e-3
    assert np.abs(first.v_t["w"] - second.v_t["w"]).max() > 1e-6
    assert vars(given) == before


def test_dtypes_stay_although_flowers_strategies_change_them() -> None:
    start = {"h": np.ones(3, np.float16), "f": np.ones(3, np.float32), "n": np.ones(3, np.int64)}
    strategy = MultiLevelStrategy(hubs=2, inner_strategy=FedAdam(), fraction_evaluate=0.0)
    with Nodes(client_app(drift), 6) as nodes:
        result = run(strategy, nodes, start, 3)
    after = unpack(result.arrays)
    assert {k: a.dtype for k, a in after.items()} == {k: a.dtype for k, a in start.items()}
    assert np.any(after["f"] != start["f"])


def test_hubs_of_one_worker_do_not_wait_for_a_second() -> None:
    strategy = MultiLevelStrategy(hubs=2, inner_strategy=FedAvg(), fraction_evaluate=0.0)
    plain = MultiLevelStrategy(hubs=2, fraction_evaluate=0.0)
    with Nodes(client_app(drift), 3) as nodes:
        ours = run(strategy, nodes, model("float64"), 2)
        theirs = run(plain, nodes, model("float64"), 2)
        nodes.add()
        run(strategy, nodes, model("float64"), 1)
    for key, array in unpack(theirs.arrays).items():
        np.testing.assert_allclose(unpack(ours.arrays)[key], array, rtol=1e-12)
    # The minimums rise again with the number of workers.
    assert [hub.inner_strategy.min_train_nodes for hub in strategy.hubs] == [2, 2]


def test_workers_get_the_config_of_their_hubs_strategy_and_worker_config() -> None:
    received: dict[int, list[dict]] = {}

    def train(partition, arrays, config):
        received.setdefault(partition, []).append(dict(config))
        # Only hub 0's updates are clipped, so the clipping norms of the two hubs differ.
        size = 100.0 if partition % 2 == 0 else 1e-6
        return {"x": arrays["x"] + size}, {"num-examples": 1}

    inner_strategy = DifferentialPrivacyClientSideAdaptiveClipping(
        FedProx(proximal_mu=0.3), 0.0, 2, initial_clipping_norm=1.0, clip_norm_lr=1.0
    )
    strategy = MultiLevelStrategy(
        hubs=2,
        tau=5,
        inner_strategy=inner_strategy,
        worker_config=lambda worker, round: {"worker": worker},
        fraction_evaluate=0.0,
    )
    with Nodes(client_app(train, mods=[adaptiveclipping_mod]), 4) as nodes:
        run(strategy, nodes, {"x": np.zeros(4)}, 3)
    for partition, configs in received.items():
        assert [c["worker"] for c in configs] == [partition] * 3
        assert [c["proximal-mu"] for c in configs] == [0.3] * 3
        assert [c["round"] for c in configs] == [1, 2, 3]
        assert [c["tau"] for c in configs] == [5] * 3
    norms = {p: [v for k, v in received[p][-1].items() if "clipping" in k] for p in received}
    assert norms[0] == norms[2] != norms[1] == norms[3]


def test_a_median_ignores_outliers() -> None:
    def train(partition, arrays, config):
        return {"x": arrays["x"] + (1e6 if partition < 2 else 1.0)}, {"num-examples": 1}

    strategy = MultiLevelStrategy(hubs=2, inner_strategy=FedMedian(), fraction_evaluate=0.0)
    with Nodes(client_app(train), 6) as nodes:
        result = run(strategy, nodes, {"x": np.zeros(3)}, 3)
    np.testing.assert_allclose(unpack(result.arrays)["x"], 3.0)


def test_shares_of_absent_workers_stay_with_the_hubs_model() -> None:
    def train(partition, arrays, config):
        if partition == 0 and config["round"] == 2:
            raise RuntimeError("broken")
        return {"x": arrays["x"] + 10}, {"num-examples": [30, 1, 10, 1][partition]}

    strategy = MultiLevelStrategy(hubs=2, q=9, inner_strategy=FedAvg(), fraction_evaluate=0.0)
    with Nodes(client_app(train), 4) as nodes:
        run(strategy, nodes, {"x": np.zeros(3)}, 2)
    # Hub 0 in round 2: worker 2's share is a quarter, the rest stays at 10.
    np.testing.assert_allclose(strategy.hubs[0].model["float64"], 10 + 10 / 4)
    np.testing.assert_allclose(strategy.hubs[1].model["float64"], 20.0)


@pytest.mark.parametrize("make", [FedMedian, FedAdam, lambda: Bulyan()])
def test_a_nan_never_reaches_an_inner_strategy(make: Callable[[], Strategy]) -> None:
    def train(partition, arrays, config):
        bad = partition == 2 and config["round"] == 1
        return {"x": arrays["x"] + (np.nan if bad else 1.0)}, {"num-examples": 1}

    reports = []
    strategy = MultiLevelStrategy(
        hubs=2, inner_strategy=make(), on_round=reports.append, fraction_evaluate=0.0
    )
    with Nodes(client_app(train), 8) as nodes:
        result = run(strategy, nodes, {"x": np.zeros(3)}, 2)
    assert [a.cause for a in reports[0].hubs[0].absent] == ["not-finite"]
    assert not reports[1].hubs[0].absent
    assert np.isfinite(unpack(result.arrays)["x"]).all()


def test_an_aggregate_that_is_not_finite_does_not_change_the_hub() -> None:
    class Broken(FedMedian):
        calls = 0

        def aggregate_train(self, server_round, replies):
            Broken.calls += 1
            arrays, metrics = super().aggregate_train(server_round, replies)
            factor = np.inf if server_round == 1 else 1.0
            return record({"x": arrays["x"].numpy() * factor}), metrics

    reports = []
    strategy = MultiLevelStrategy(
        hubs=1, inner_strategy=Broken(), on_round=reports.append, fraction_evaluate=0.0
    )
    models = []
    with Nodes(client_app(drift), 3) as nodes:
        run(
            strategy,
            nodes,
            {"x": np.ones(3)},
            2,
            evaluate_fn=lambda number, arrays: models.append(unpack(arrays)["x"].tolist()),
        )
    assert Broken.calls == 2
    assert models[0] == models[1] == [1.0] * 3 != models[2]
    assert [a.cause for a in reports[0].hubs[0].absent] == ["not-finite"] * 3
