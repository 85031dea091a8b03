"""The weights that hubs get when they are averaged in place, one after another."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from experiments.inplace import departure, departures, stationary, sweep
from mll_flower.algorithm.mixing import mixing_matrix


def test_in_place_averaging_of_three_hubs_by_hand() -> None:
    path = nx.path_graph(3)
    p = sweep(path, np.full(3, 1 / 3))
    by_hand = [[1 / 2, 1 / 2, 0], [1 / 6, 1 / 2, 1 / 3], [1 / 12, 1 / 4, 2 / 3]]
    assert p == pytest.approx(np.array(by_hand))
    case = departure("", path, np.full(3, 1 / 3))
    assert case.pi == pytest.approx([0.2, 0.4, 0.4])
    assert case.after == pytest.approx([1 / 4, 5 / 12, 1 / 3])
    assert case.misplaced == pytest.approx(2 / 15)
    assert case.moved == pytest.approx(1 / 12)
    # Taken all at once, the same means give weights in proportion to the neighbourhoods' sizes.
    assert case.at_once == pytest.approx([2 / 7, 3 / 7, 2 / 7])


def test_repeated_sweeps_end_at_pi_and_h_keeps_b() -> None:
    for case in departures():
        hubs = len(case.b)
        graph = nx.path_graph(hubs) if "path" in case.name else nx.complete_graph(hubs)
        models = np.random.default_rng(0).normal(size=hubs)
        swept = np.linalg.matrix_power(sweep(graph, case.b), 4000) @ models
        assert swept == pytest.approx(np.full(hubs, case.pi @ models))
        h = mixing_matrix(graph, case.b, "metropolis")
        assert stationary(h.T) == pytest.approx(case.b)
        assert case.misplaced > 0.02
