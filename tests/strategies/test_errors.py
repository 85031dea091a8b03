"""Wrong arguments, and nodes that do not fit the network: an error that names value and remedy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mll_flower import HubNetwork, MultiLevelStrategy, answer_identity
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


def test_a_file_without_detailed_balance_for_these_shares(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "h.csv", [[0.5, 0.5], [0.5, 0.5]], delimiter=",")
    strategy = MultiLevelStrategy(hubs=2, mixing=tmp_path / "h.csv", fraction_evaluate=0.0)
    with (
        Nodes(client_app(lambda p, a, c: (a, {"num-examples": p + 1})), 2) as nodes,
        pytest.raises(ValueError, match=r"H\["),
    ):
        run(strategy, nodes, {"x": np.zeros(2)}, 1)
