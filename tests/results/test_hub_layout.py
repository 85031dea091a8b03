"""Where hubs are drawn: one layout per kind of graph."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from mll_flower.algorithm.graphs import GRAPHS, hub_graph
from mll_flower.results.hub_layout import hub_layout


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("hubs", [1, 2, 3, 9, 20])
def test_no_two_hubs_share_a_position(name: str, hubs: int) -> None:
    positions = hub_layout(hub_graph(name, hubs, 0))
    assert positions.shape == (hubs, 2)
    assert len(np.unique(positions.round(6), axis=0)) == hubs


def test_the_same_graph_has_the_same_layout() -> None:
    graph: nx.Graph[int] = hub_graph("erdos-renyi", 160, 1)
    np.testing.assert_array_equal(hub_layout(graph), hub_layout(graph))


def test_a_path_goes_to_and_fro_in_rows() -> None:
    graph = hub_graph("path", 10)
    positions = hub_layout(graph)
    # Neighbours are one step apart, and four hubs are in a row.
    steps = [np.abs(positions[i] - positions[j]).sum() for i, j in graph.edges]
    assert steps == [1] * 9
    assert np.ptp(positions, axis=0).tolist() == [3, 2]
    assert np.ptp(hub_layout(hub_graph("path", 4)), axis=0).tolist() == [3, 0]


@pytest.mark.parametrize(("name", "hubs"), [("ring", 5), ("ring", 200), ("complete", 6)])
def test_rings_and_complete_graphs_are_circles_with_hub_0_at_the_top(name: str, hubs: int) -> None:
    graph = hub_graph(name, hubs)
    positions = hub_layout(graph)
    np.testing.assert_allclose(np.linalg.norm(positions, axis=1), 1)
    np.testing.assert_allclose(positions[0], [0, 1])
    if name == "ring":
        lengths = [np.linalg.norm(positions[i] - positions[j]) for i, j in graph.edges]
        np.testing.assert_allclose(lengths, 2 * np.sin(np.pi / hubs))


@pytest.mark.parametrize(("hubs", "columns"), [(4, 2), (9, 3), (10, 5)])
def test_a_grid_is_a_grid(hubs: int, columns: int) -> None:
    graph = hub_graph("grid", hubs)
    positions = hub_layout(graph)
    assert all(np.abs(positions[i] - positions[j]).sum() == 1 for i, j in graph.edges)
    assert positions[columns - 1].tolist() == [columns - 1, 0]
    assert positions[columns].tolist() == [0, -1]
