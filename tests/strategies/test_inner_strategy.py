"""What a strategy of Flower's needs to work inside a hub: minimums, messages, dtypes."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedAvgM,
    Strategy,
)
from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)

from mll_flower import MultiLevelStrategy
from mll_flower.grids.in_process import InProcessGrid
from mll_flower.models.layout import Layout
from mll_flower.strategies.inner_strategy import (
    inner_train_messages,
    lower_node_minimums,
    make_inner_strategies,
    node_minimums,
    restore_dtypes,
)
from tests.support.arrays import record
from tests.support.flower_grid import Nodes, client_app, drift, model, run, unpack


class Grid(InProcessGrid):
    """Six nodes, which Flower's strategies may ask for by either method."""

    def __init__(self) -> None:
        super().__init__(ClientApp(), 6, {})

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node) for node in self.get_node_ids()]


def start_round(
    strategy: Strategy, arrays: ArrayRecord, nodes: list[int]
) -> dict[int, ArrayRecord]:
    """Return the model that each node is sent."""
    messages = inner_train_messages(strategy, 1, arrays, ConfigRecord(), Grid(), nodes)
    return {m.metadata.dst_node_id: m.content["arrays"] for m in messages}


def minimums(strategy: FedAvg) -> tuple[int, int, int]:
    return strategy.min_train_nodes, strategy.min_evaluate_nodes, strategy.min_available_nodes


@pytest.mark.parametrize(
    ("nodes", "expected"), [(0, (0, 0, 0)), (1, (1, 1, 1)), (4, (3, 2, 4)), (9, (3, 2, 5))]
)
def test_minimums_are_lowered_to_the_number_of_nodes(nodes: int, expected) -> None:
    given = FedAvg(min_train_nodes=3, min_evaluate_nodes=2, min_available_nodes=5)
    own = copy.deepcopy(given)
    lower_node_minimums(own, node_minimums(given), nodes)
    assert minimums(own) == expected
    assert minimums(given) == (3, 2, 5)


def test_minimums_rise_again_with_the_number_of_nodes() -> None:
    given = FedAvg(min_train_nodes=3)
    own = copy.deepcopy(given)
    for nodes in (1, 2, 5):
        lower_node_minimums(own, node_minimums(given), nodes)
        assert own.min_train_nodes == min(3, nodes)


def test_minimums_of_wrapped_strategies_are_lowered() -> None:
    # Two wrappers, as for differential privacy; neither has minimums of its own.
    inner = FedAvg(min_train_nodes=4)
    wrapped = DifferentialPrivacyClientSideFixedClipping(inner, 0.1, 1.0, num_sampled_clients=1)
    given = DifferentialPrivacyServerSideFixedClipping(wrapped, 0.1, 1.0, num_sampled_clients=1)
    own = copy.deepcopy(given)
    lower_node_minimums(own, node_minimums(given), 1)
    assert minimums(own.strategy.strategy) == (1, 1, 1)
    assert inner.min_train_nodes == 4


def test_without_an_inner_strategy_there_is_nothing_to_lower() -> None:
    lower_node_minimums(None, node_minimums(None), 1)  # must not raise


def test_only_the_hubs_own_nodes_get_messages() -> None:
    asked = start_round(FedAvg(), record({"x": np.zeros(2)}), [2, 5])
    assert sorted(asked) == [2, 5]


def test_fedavgm_starts_from_the_model_of_the_hub() -> None:
    """Left to itself it would start from what it returned last, before the mixing."""
    strategy = FedAvgM()
    start_round(strategy, record({"x": np.zeros(2)}), [1, 2])
    start_round(strategy, record({"x": np.full(2, 7.0)}), [1, 2])
    assert unpack(strategy.current_arrays)["x"].tolist() == [7, 7]


def test_a_wrapped_fedavgm_starts_from_the_model_of_the_hub() -> None:
    inner = FedAvgM()
    strategy = DifferentialPrivacyServerSideFixedClipping(inner, 0.1, 1.0, num_sampled_clients=1)
    for value in (0.0, 7.0):
        asked = start_round(strategy, record({"x": np.full(2, value)}), [1, 2])
    assert unpack(inner.current_arrays)["x"].tolist() == [7, 7]
    assert all(unpack(arrays)["x"].tolist() == [7, 7] for arrays in asked.values())


def test_integers_are_rounded_back_and_floats_keep_their_precision() -> None:
    model = {
        "n": np.zeros(4, dtype=np.int64),
        "flag": np.zeros(2, dtype=bool),
        "half": np.zeros(2, dtype=np.float16),
        "single": np.zeros(2, dtype=np.float32),
    }
    aggregate = record(
        {
            "n": np.array([1.4, 1.6, -1.6, 2.5]),
            "flag": np.array([0.4, 0.6]),
            "half": np.array([0.1, 2.0]),
            "single": np.array([0.1, 2.0]),
        }
    )
    restored = restore_dtypes(Layout.of(model), aggregate)
    assert {name: array.dtype for name, array in restored.items()} == {
        name: array.dtype for name, array in model.items()
    }
    assert restored["n"].tolist() == [1, 2, -2, 2]
    assert restored["flag"].tolist() == [False, True]
    assert restored["half"].tolist() == [np.float16(0.1), 2]
    assert restored["single"].tolist() == [np.float32(0.1), 2]


# --- One strategy per hub ---


class Accountant:
    """Counts releases as Flower's accountants do, and cannot be copied. (Those need a library.)"""

    config = PrivacyConfig(
        1e-5, 3, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION
    )

    def __init__(self) -> None:
        self.lock, self.num_releases = threading.Lock(), 0

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        with self.lock:
            self.num_releases += count

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        return PrivacySpent(1.0 * self.num_releases, 1e-5, self.num_releases, "test")


def accounted() -> DifferentialPrivacyServerSideFixedClipping:
    """A strategy with a privacy accountant, for a hub of three workers."""
    return DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_evaluate=0.0), 1.0, 1.0, 3, accountant=Accountant()
    )


def test_a_factory_makes_the_strategy_of_each_hub() -> None:
    hubs = []
    first, second = make_inner_strategies(lambda hub: hubs.append(hub) or FedAvg(), 2)
    assert hubs == [0, 1]
    assert first is not second


def test_a_factory_must_not_return_one_strategy_twice() -> None:
    shared = FedAvg()
    with pytest.raises(ValueError, match="same FedAvg for two hubs"):
        make_inner_strategies(lambda hub: shared, 2)


def test_a_strategy_that_cannot_be_copied_is_an_error_that_names_the_factory() -> None:
    with pytest.raises(TypeError, match=r"cannot be copied.*lambda hub: Differential\w+\(\.\.\.\)"):
        MultiLevelStrategy(hubs=2, inner_strategy=accounted())


def test_minimums_of_a_factorys_strategies_are_lowered_and_rise_again() -> None:
    strategy = MultiLevelStrategy(
        hubs=2, inner_strategy=lambda hub: FedAvg(min_train_nodes=2 + hub), fraction_evaluate=0.0
    )
    with Nodes(client_app(drift), 2) as nodes:
        run(strategy, nodes, model("float32"), 1)
        assert [hub.inner_strategy.min_train_nodes for hub in strategy.hubs] == [1, 1]
        for _ in range(6):
            nodes.add()
        run(strategy, nodes, model("float32"), 1)
    assert [hub.inner_strategy.min_train_nodes for hub in strategy.hubs] == [2, 3]


def test_each_hub_accounts_for_its_own_privacy() -> None:
    strategy = MultiLevelStrategy(
        hubs=2, inner_strategy=lambda hub: accounted(), fraction_evaluate=0.0
    )

    def train(partition, arrays, config):
        return {"x": arrays["x"] + 1 + partition}, {"num-examples": 1}

    with Nodes(client_app(train), 6) as nodes:
        run(strategy, nodes, {"x": np.zeros(50)}, 3)
    spent = [hub.inner_strategy.privacy_spent() for hub in strategy.hubs]
    assert [s.num_releases for s in spent] == [3, 3]
