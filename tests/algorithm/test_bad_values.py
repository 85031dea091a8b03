"""Bad values for networks, mixing, periods and theory: each error names the value and a remedy."""

from __future__ import annotations

import math
from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest

from mll_flower.algorithm.coins import coins
from mll_flower.algorithm.graphs import GRAPHS
from mll_flower.algorithm.mixing import RULES, check_mixing, mixing_matrix
from mll_flower.algorithm.network import RATES, HubNetwork
from mll_flower.algorithm.reference import mll_sgd
from mll_flower.algorithm.schedule import check_periods, rounds
from mll_flower.algorithm.theory import Problem, bound, gamma

build = HubNetwork.build
PATH3 = nx.path_graph(3)
EVEN = np.full(3, 1 / 3)


def graph_with_loop() -> nx.Graph:
    graph = nx.path_graph(3)
    graph.add_edge(1, 1)
    return graph


def path_h(**changes: float) -> np.ndarray:
    """A valid H of the path 0 - 1 - 2, with changed entries: path_h(e02=0.1) sets H[0, 2]."""
    H = mixing_matrix(PATH3, EVEN)
    for place, value in changes.items():
        H[int(place[1]), int(place[2])] = value
    return H


def unbalanced() -> np.ndarray:
    # Columns sum to 1, but hub 0 takes more from hub 1 than hub 1 takes from it.
    return np.array([[0.5, 0.2, 0.0], [0.5, 0.6, 0.2], [0.0, 0.2, 0.8]])


def run_reference(**changes) -> object:
    network = build(hubs=3, graph=PATH3)
    values = {
        "H": path_h(),
        "tau": 2,
        "q": 2,
        "step_size": 0.1,
        "coins": np.ones((4, 3)),
        "x0": [0.0],
    }
    return mll_sgd(lambda i, k, x: x, network, **{**values, **changes})


CASES: dict[str, tuple[Callable[[], object], list[str]]] = {
    # The hub graph.
    "disconnected": (
        lambda: build(hubs=4, graph=nx.Graph([(0, 1), (2, 3)])),
        ["not connected", "['0', '1']", "add an edge"],
    ),
    "isolated hub": (
        lambda: build(graph=nx.empty_graph(2)),
        ["not connected", "['0']", "add an edge"],
    ),
    "self-loop": (lambda: build(graph=graph_with_loop()), ["self-loop at 1", "remove it"]),
    "directed": (lambda: build(graph=nx.DiGraph([(0, 1)])), ["undirected", "convert it to"]),
    "multigraph": (
        lambda: build(graph=nx.MultiGraph([(0, 1), (0, 1)])),
        ["plain undirected", "convert it to"],
    ),
    "graph of another size": (
        lambda: build(hubs=4, graph=PATH3),
        ["3 nodes", "4 hubs", "make them agree"],
    ),
    "unknown graph": (lambda: build(hubs=3, graph="torus"), ["'torus'", "give the path", *GRAPHS]),
    # Hubs and workers.
    "number of hubs unknown": (lambda: build(workers_per_hub=2), ["how many hubs", "give hubs="]),
    "no hubs": (lambda: build(hubs=0), ["hubs=0", "at least one"]),
    "hub without workers": (
        lambda: build(workers_per_hub=[2, 0]),
        ["[2, 0]", "at least one worker"],
    ),
    "no workers": (lambda: build(hubs=2, workers_per_hub=0), ["=0", "at least one worker"]),
    "hubs and list disagree": (
        lambda: build(hubs=3, workers_per_hub=[1, 1]),
        ["hubs=3", "2 entries", "make them agree"],
    ),
    "part of a worker": (
        lambda: build(workers_per_hub=[1.5, 2]),
        ["[1.5, 2]", "whole numbers"],
    ),
    "half a worker everywhere": (
        lambda: build(hubs=2, workers_per_hub=1.5),
        ["workers_per_hub=1.5", "whole number"],
    ),
    "part of a hub": (lambda: build(hubs=2.5), ["hubs=2.5", "whole number"]),
    # Weights and rates.
    "zero weight": (lambda: build(hubs=2, weights=[1, 0]), ["weights[1] = 0", "above 0"]),
    "negative weight": (lambda: build(hubs=2, weights=[-2, 1]), ["weights[0] = -2", "above 0"]),
    "NaN weight": (
        lambda: build(hubs=2, weights=[1, math.nan]),
        ["weights[1] = nan", "must be finite"],
    ),
    "infinite weight": (
        lambda: build(hubs=2, weights=[math.inf, 1]),
        ["weights[0] = inf", "must be finite"],
    ),
    "weights of another length": (
        lambda: build(hubs=2, weights=[1, 2, 3]),
        ["weights of shape (3,)", "2 workers", "one per worker"],
    ),
    "unknown weights": (
        lambda: build(hubs=2, weights="heavy"),
        ["'heavy'", "'equal'", "one number per worker"],
    ),
    "rate of zero": (lambda: build(hubs=2, rates=0.0), ["rates[0] = 0", "above 0 and at most 1"]),
    "rate above one": (
        lambda: build(hubs=2, rates=[1, 1.5]),
        ["rates[1] = 1.5 (worker 1)", "above 0 and at most 1"],
    ),
    "negative rate": (lambda: build(hubs=2, rates=[-0.1, 1]), ["rates[0] = -0.1", "above 0"]),
    "NaN rate": (lambda: build(hubs=2, rates=math.nan), ["rates[0] = nan", "finite"]),
    "rates of another length": (
        lambda: build(hubs=3, rates=[0.5, 0.5]),
        ["rates of shape (2,)", "3 workers", "one per worker"],
    ),
    "unknown rates": (
        lambda: build(hubs=2, rates="normal"),
        ["'normal'", "give a number", *RATES],
    ),
    # The mixing matrix.
    "unknown mixing": (
        lambda: mixing_matrix(PATH3, EVEN, "gossip"),
        ["'gossip'", "give the path", "auto", *RULES],
    ),
    "complete rule on a path": (
        lambda: mixing_matrix(PATH3, EVEN, "complete"),
        ["2 of 3 edges", "use 'metropolis'"],
    ),
    "b of another length": (
        lambda: mixing_matrix(PATH3, [0.5, 0.5]),
        ["shape (2,)", "3 hubs", "one share per hub"],
    ),
    "b with a zero": (
        lambda: mixing_matrix(PATH3, [0.5, 0.0, 0.5]),
        ["0. ", "must be positive"],
    ),
    "b off one": (lambda: mixing_matrix(PATH3, [0.5, 0.5, 0.5]), ["sums to 1.5", "sum to 1"]),
    "H of another shape": (
        lambda: check_mixing(np.eye(2), PATH3, EVEN),
        ["(2, 2)", "3 hubs", "must be (3, 3)"],
    ),
    "H with NaN": (
        lambda: check_mixing(path_h(e11=math.nan), PATH3, EVEN),
        ["must be finite", "nan at [1, 1]"],
    ),
    "H negative": (
        lambda: check_mixing(path_h(e01=-0.25), PATH3, EVEN),
        ["must not be negative", "-0.25 at [0, 1]"],
    ),
    "H off the edges": (
        lambda: check_mixing(path_h(e20=0.125), PATH3, EVEN),
        ["must be zero where hubs share no edge", "0.125 at [2, 0]"],
    ),
    "H's columns": (
        lambda: check_mixing(path_h(e11=0.5), PATH3, EVEN),
        ["columns must sum to 1", "0.167 at column 1"],
    ),
    "H's balance": (
        lambda: check_mixing(unbalanced(), PATH3, EVEN),
        ["detailed balance", "0.1 at", "[0, 1]"],
    ),
    "the reference's H": (lambda: run_reference(H=np.eye(2)), ["(2, 2)", "must be (3, 3)"]),
    # Periods, coins, theory.
    "tau of zero": (lambda: check_periods(0, 1), ["tau=0", "at least 1"]),
    "q of zero": (lambda: check_periods(1, 0), ["q=0", "at least 1"]),
    "tau not whole": (lambda: check_periods(2.5, 1), ["tau=2.5", "whole number"]),
    "q not whole": (lambda: check_periods(1, "4"), ["q='4'", "whole number"]),
    "tau as a boolean": (lambda: check_periods(True, 1), ["tau=True", "whole number"]),
    "rounds with tau below 1": (
        lambda: next(rounds(build(hubs=1), -3, 1, 10, 0)),
        ["tau=-3", "at least 1"],
    ),
    "the reference's tau": (lambda: run_reference(tau=0), ["tau=0", "at least 1"]),
    "the reference's q": (lambda: run_reference(q=0), ["q=0", "at least 1"]),
    "the reference's coins": (
        lambda: run_reference(coins=np.ones((4, 2))),
        ["(4, 2)", "slots x 3 workers"],
    ),
    "bound with q below 1": (
        lambda: bound(build(hubs=1), 0.0, 1, 0, 0.1, Problem()),
        ["q=0", "at least 1"],
    ),
    "bound with no step": (
        lambda: bound(build(hubs=1), 0.0, 1, 1, 0.0, Problem()),
        ["step_size=0", "positive"],
    ),
    "bound with a NaN step": (
        lambda: bound(build(hubs=1), 0.0, 1, 1, math.nan, Problem()),
        ["step_size=nan", "positive"],
    ),
    "bound with no slots": (
        lambda: bound(build(hubs=1), 0.0, 1, 1, 0.1, Problem(), slots=0),
        ["slots=0", "at least 1"],
    ),
    "zeta of one": (lambda: gamma(1.0), ["zeta=1.0", "below 1", "connected"]),
    "L of zero": (lambda: Problem(L=0), ["L=0", "L > 0"]),
    "negative variance": (lambda: Problem(sigma2=-1), ["sigma2=-1", "not negative"]),
    "NaN beta": (lambda: Problem(beta=math.nan), ["beta=nan", "finite"]),
    "negative seed": (lambda: coins(-1, 0, 0, 4, 0.5), ["seed=-1", "from 0 to"]),
    "worker too large": (lambda: coins(0, 2**32, 0, 4, 0.5), ["worker=4294967296", "from 0 to"]),
    # Networks from values.
    "unknown key": (
        lambda: HubNetwork.from_dict({"hubs": 2, "colour": "red"}),
        ["'colour'", "known ones", "workers_per_hub"],
    ),
    "edges and graph": (
        lambda: HubNetwork.from_dict({"hubs": 2, "edges": [[0, 1]], "graph": "path"}),
        ["'edges' and 'graph'", "give one"],
    ),
    "edge to an unknown hub": (
        lambda: HubNetwork.from_dict({"hubs": 2, "edges": [[0, 1], [1, 5]]}),
        ["3 nodes", "2 hubs", "make them agree"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_error_names_value_and_remedy(case: str) -> None:
    action, parts = CASES[case]
    with pytest.raises(ValueError) as error:
        action()
    for part in parts:
        assert part in str(error.value)


def test_without_a_connected_random_graph_another_seed_is_suggested(monkeypatch) -> None:
    monkeypatch.setattr(nx, "gnp_random_graph", lambda n, p, seed: nx.empty_graph(n))
    with pytest.raises(ValueError, match="200 tries from seed 5: try another seed"):
        build(hubs=3, graph="erdos-renyi", seed=5)
