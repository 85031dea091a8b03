"""Wrong arguments, and nodes that do not fit the network: an error that names value and remedy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.server import Server, SimpleClientManager
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp.strategy import FedAdam, FedXgbBagging

from mll_flower import (
    GossipingHubStrategy,
    HubNetwork,
    MultiLevelStrategy,
    RoundReport,
    answer_identity,
)
from mll_flower.gossip import InProcessBoard, InProcessGossip
from tests.support.flower_grid import Nodes, client_app, drift, model, run


@pytest.mark.parametrize("strategy", [{"hubs": 5}, {"hubs": 1, "min_available_nodes": 5}])
def test_too_few_nodes(strategy: dict) -> None:
    with (
        Nodes(client_app(drift), 2) as nodes,
        pytest.raises(RuntimeError, match=r"2 of 5 nodes are connected after 0\.3 s"),
    ):
        run(MultiLevelStrategy(**strategy, node_timeout=0.3), nodes, model("float32"), 1)


def test_too_few_nodes_for_a_network() -> None:
    network = HubNetwork.build(2, 3)
    with (
        Nodes(client_app(drift), 4) as nodes,
        pytest.raises(RuntimeError, match="4 of 6 nodes are connected"),
    ):
        run(MultiLevelStrategy(network, node_timeout=0.2), nodes, model("float32"), 1)


def test_too_many_nodes_for_a_network() -> None:
    network = HubNetwork.build(2, 1)
    with (
        Nodes(client_app(drift), 3) as nodes,
        pytest.raises(ValueError, match=r"3 nodes for the 2 workers.*workers="),
    ):
        run(MultiLevelStrategy(network), nodes, model("float32"), 1)


@pytest.mark.parametrize("hub", [2, -1, "1", None, 0.5])
def test_a_node_that_belongs_to_no_hub(hub) -> None:
    strategy = MultiLevelStrategy(hubs=2, assign=lambda node: hub)
    with (
        Nodes(client_app(drift), 3) as nodes,
        pytest.raises(ValueError, match=r"belongs to no hub.*expected a hub number from 0 to 1"),
    ):
        run(strategy, nodes, model("float32"), 1)


def test_a_node_whose_config_names_no_hub() -> None:
    app = client_app(drift)
    answer_identity(app)
    with (
        Nodes(app, 3) as nodes,
        pytest.raises(ValueError, match="'node-config:hub' gave None"),
    ):
        run(MultiLevelStrategy(hubs=2, assign="node-config:hub"), nodes, model("float32"), 1)


def test_an_app_that_does_not_answer_identity() -> None:
    with (
        Nodes(client_app(drift), 3) as nodes,
        pytest.raises(RuntimeError, match=r"(?s)3 of 3 nodes did not say.*answer_identity\(app\)"),
    ):
        run(MultiLevelStrategy(hubs=2, assign="node-config:hub"), nodes, model("float32"), 1)


def test_a_hub_without_workers() -> None:
    with (
        Nodes(client_app(drift), 3) as nodes,
        pytest.raises(ValueError, match=r"hubs \[1\] have no worker"),
    ):
        run(MultiLevelStrategy(hubs=2, assign=lambda node: 0), nodes, model("float32"), 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give either network= or hubs="),
        ({"hubs": 2, "network": HubNetwork.build(2, 1)}, "not both"),
        ({"hubs": 0}, "hubs=0"),
        ({"hubs": 2, "assign": "node"}, "assign='node'"),
        ({"hubs": 2, "q": 0}, "q=0"),
        ({"hubs": 2, "q": 1.5}, "q=1.5"),
        ({"hubs": 2, "q": "2"}, "q='2'"),
        ({"hubs": 2, "assign": 5}, "assign=5"),
        ({"hubs": 2, "evaluate": "all"}, "evaluate='all'"),
        ({"hubs": 2, "node_timeout": -1}, "node_timeout=-1"),
        ({"hubs": 2, "fraction_evaluate": 1.5}, "fraction_evaluate=1.5"),
        ({"hubs": 2, "min_available_nodes": -1}, "min_available_nodes=-1"),
        ({"hubs": 2, "tau": 0}, "tau=0"),
        ({"hubs": 2, "slot": 0.5}, "slot=0.5 without tau"),
        ({"hubs": 2, "slot": -1.0, "tau": 2}, "slot=-1.0"),
        ({"hubs": 2, "deadline": 0}, "deadline=0"),
        ({"hubs": 2, "deadline": float("nan")}, "deadline=nan"),
        ({"hubs": 2, "absent": "drop"}, "absent='drop'"),
        ({"hubs": 2, "graph": "tree"}, "graph='tree'"),
        ({"hubs": 3, "graph": "path", "mixing": "complete"}, "needs the complete graph"),
        ({"hubs": 2, "mixing": "average"}, "mixing='average'"),
        ({"hubs": 2, "workers": {1: 0}}, "give network= too"),
        ({"network": HubNetwork.build(2, 1), "workers": {7: 0, 8: 0}}, "exactly one node"),
        ({"network": HubNetwork.build(2, 1), "workers": {7: 0}}, "exactly one node"),
    ],
)
def test_wrong_arguments_are_errors_before_anything_starts(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiLevelStrategy(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hubs": "3"}, "hubs='3': give a whole number, not a text"),
        ({"hubs": 2.0}, "hubs=2.0: give a whole number"),
        ({"hubs": True}, "hubs=True"),
        ({"network": HubNetwork}, "network=HubNetwork: give a HubNetwork.*the class HubNetwork"),
        ({"network": 3}, "network=3: give a HubNetwork"),
        ({"hubs": 2, "graph": 5}, "graph=5: give a name, a file"),
        ({"hubs": 2, "mixing": None}, "mixing=None"),
        ({"hubs": 2, "slot": "1", "tau": 2}, "slot='1': give a number of seconds"),
        ({"hubs": 2, "deadline": "60"}, "deadline='60'"),
        ({"hubs": 2, "node_timeout": None}, "node_timeout=None"),
        ({"hubs": 2, "fraction_train": "1"}, "fraction_train='1'"),
        ({"hubs": 2, "min_train_nodes": 1.5}, "min_train_nodes=1.5"),
        ({"hubs": 2, "weighted_by_key": 3}, "weighted_by_key=3: give the name of a metric"),
        ({"hubs": 2, "arrayrecord_key": None}, "arrayrecord_key=None"),
        ({"hubs": 2, "on_round": RoundReport}, "on_round=RoundReport"),
        ({"hubs": 2, "worker_config": {"lr": 1}}, "worker_config="),
        ({"hubs": 2, "train_metrics_aggr_fn": 3}, "train_metrics_aggr_fn=3"),
        ({"hubs": 2, "workers": [1, 2]}, "workers="),
        ({"hubs": 2, "inner_strategy": FedAdam}, r"the class FedAdam: give an instance"),
        ({"hubs": 2, "inner_strategy": "FedAdam"}, "inner_strategy is 'FedAdam'"),
        ({"hubs": 2, "inner_strategy": LegacyFedAvg()}, "flwr.server.strategy.FedAvg.*legacy"),
        ({"hubs": 2, "inner_strategy": lambda hub: LegacyFedAvg()}, "for hub 0 is.*legacy"),
        ({"hubs": 2, "inner_strategy": lambda hub: None}, "returns for hub 0 is None"),
        ({"hubs": 2, "inner_strategy": FedXgbBagging()}, "FedXgbBagging: trees are not arrays"),
    ],
)
def test_values_of_the_wrong_type_are_type_errors(arguments: dict, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        MultiLevelStrategy(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"gossip": InProcessGossip}, TypeError, "gossip=InProcessGossip"),
        ({"gossip_deadline": 0}, ValueError, "gossip_deadline=0"),
        ({"rounds": "10"}, TypeError, "rounds='10'"),
        ({"q": "2"}, ValueError, "q='2'"),
        ({"fraction_train": 2}, ValueError, "fraction_train=2"),
    ],
)
def test_wrong_arguments_of_a_gossiping_hub(arguments: dict, error, message: str) -> None:
    link = InProcessGossip(InProcessBoard(), "a", [], "run")
    with pytest.raises(error, match=message):
        GossipingHubStrategy(**{"gossip": link, **arguments})


def test_the_legacy_api_is_refused() -> None:
    """Flower's legacy server, and so its SecAgg+ workflow, asks for the first model."""
    server = Server(client_manager=SimpleClientManager(), strategy=MultiLevelStrategy(hubs=1))
    with pytest.raises(TypeError, match=r"(?s)call strategy\.start.*SecAgg.*not supported"):
        server.fit(num_rounds=1, timeout=1.0)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.array([1.0, np.inf])}, "initial_arrays have a NaN or an infinity"),
        ({"x": np.array(["a", "b"])}, "initial_arrays cannot be averaged"),
    ],
)
def test_initial_arrays_that_cannot_be_averaged(arrays, message: str) -> None:
    with Nodes(client_app(drift), 2) as nodes, pytest.raises(ValueError, match=message):
        run(MultiLevelStrategy(hubs=1), nodes, arrays, 1)


# --- summary() ---


def test_the_summary_tells_everything_that_was_set(caplog) -> None:
    MultiLevelStrategy(
        hubs=3,
        graph="path",
        mixing="metropolis",
        assign="node-config:site",
        tau=8,
        slot=0.5,
        q=4,
        deadline=60,
        absent="renormalise",
        inner_strategy=FedAdam(),
        worker_config=lambda worker, round: {},
        on_round=lambda report: None,
        node_timeout=12.5,
        evaluate="hub",
        fraction_train=0.75,
        min_train_nodes=7,
        min_available_nodes=9,
        weighted_by_key="count",
        arrayrecord_key="model",
        configrecord_key="settings",
    ).summary()
    for text in (
        "hubs: 3",
        "graph: 2 links, degrees [1, 2]",
        "mixing: metropolis",
        "assign: node-config:site",
        "tau: 8",
        "slot: 0.5",
        "q: 4",
        "deadline: 60",
        "absent: renormalise",
        "inner_strategy: FedAdam",
        "worker_config: given",
        "on_round: given",
        "node_timeout: 12.5",
        "evaluate: hub",
        "0.75",
        "train (7)",
        "Minimum available nodes: 9",
        "'count'",
        "'model'",
        "'settings'",
    ):
        assert text in caplog.text


def test_the_summary_tells_whose_weights_count_and_leaves_out_what_is_not_set(caplog) -> None:
    MultiLevelStrategy(HubNetwork.build(2, 3)).summary()
    assert "6 of a network" in caplog.text
    assert "weights: those of the network" in caplog.text
    assert "deadline" not in caplog.text
    MultiLevelStrategy(hubs=1, weighted_by_key=None).summary()
    assert "weights: all equal" in caplog.text
    link = InProcessGossip(InProcessBoard(), "lyon", ["paris"], "run")
    GossipingHubStrategy(link, mixing_column={"lyon": 0.5, "paris": 0.5}).summary()
    for text in ("hub: lyon", "neighbours: paris", "gossip_deadline: 10.0", "'paris': 0.5"):
        assert text in caplog.text


def test_a_file_without_detailed_balance_for_these_shares(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "h.csv", [[0.5, 0.5], [0.5, 0.5]], delimiter=",")
    strategy = MultiLevelStrategy(hubs=2, mixing=tmp_path / "h.csv", fraction_evaluate=0.0)
    with (
        Nodes(client_app(lambda p, a, c: (a, {"num-examples": p + 1})), 2) as nodes,
        pytest.raises(ValueError, match=r"H\["),
    ):
        run(strategy, nodes, {"x": np.zeros(2)}, 1)
