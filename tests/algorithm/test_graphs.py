"""Hub graphs: by name, from networkx, and from files."""

from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mll_flower.algorithm.graphs import GRAPHS, hub_graph
from mll_flower.algorithm.network import HubNetwork
from tests.support.random_networks import hub_graphs

RANDOM = ("random-regular", "erdos-renyi", "watts-strogatz")


def edges(graph: nx.Graph) -> set[tuple[int, int]]:
    return {(min(i, j), max(i, j)) for i, j in graph.edges}


@pytest.mark.parametrize("name", GRAPHS)
@given(hubs=st.integers(1, 40), seed=st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
def test_named_graphs_are_plain_connected_graphs(name: str, hubs: int, seed: int) -> None:
    graph = hub_graph(name, hubs, seed)
    assert list(graph.nodes) == list(range(hubs))
    assert nx.is_connected(graph)
    assert nx.number_of_selfloops(graph) == 0
    assert edges(graph) == edges(hub_graph(name, hubs, seed))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("complete", {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}),
        ("path", {(0, 1), (1, 2), (2, 3)}),
        ("ring", {(0, 1), (1, 2), (2, 3), (0, 3)}),
        ("star", {(0, 1), (0, 2), (0, 3)}),
        ("grid", {(0, 1), (2, 3), (0, 2), (1, 3)}),
    ],
)
def test_edges_of_four_hubs(name: str, expected: set[tuple[int, int]]) -> None:
    assert edges(hub_graph(name, 4)) == expected


def test_degrees_of_the_random_graphs() -> None:
    assert set(dict(hub_graph("random-regular", 20, 1).degree).values()) == {3}
    assert set(dict(hub_graph("random-regular", 21, 1).degree).values()) == {4}
    assert hub_graph("watts-strogatz", 30, 1).number_of_edges() == 60


@pytest.mark.parametrize("name", RANDOM)
def test_random_graphs_depend_on_the_seed(name: str) -> None:
    assert edges(hub_graph(name, 20, 1)) != edges(hub_graph(name, 20, 2))


def test_integer_nodes_are_numbered_in_their_order_and_the_graph_is_a_copy() -> None:
    source = nx.Graph([(30, 10), (10, 20)])
    graph = hub_graph(source, 3)
    assert edges(graph) == {(0, 2), (0, 1)}
    source.add_edge(20, 30)
    assert graph.number_of_edges() == 2
    with pytest.raises(nx.NetworkXError, match=r"[Ff]rozen"):
        graph.add_edge(1, 2)


def test_named_nodes_are_numbered_as_they_were_added() -> None:
    source = nx.Graph()
    source.add_nodes_from(["rome", "oslo", "bern"])
    source.add_edges_from([("bern", "rome"), ("bern", "oslo")])
    assert edges(hub_graph(source, 3)) == {(0, 2), (1, 2)}


def write(graph: nx.Graph, path: Path, form: str) -> Path:
    """Write a graph in one of the formats that can be read; return the file."""
    if form == "graphml":
        nx.write_graphml(graph, path := path / "g.graphml")
    elif form.startswith("node-link"):
        key = form.rpartition(" ")[2]
        path = path / "g.json"
        path.write_text(json.dumps(nx.node_link_data(graph, edges=key)))
    elif form == "adjacency":
        path = path / "g.txt"
        np.savetxt(path, nx.to_numpy_array(graph, nodelist=range(len(graph))), fmt="%d")
    elif form == "adjacency csv":
        path = path / "g.csv"
        matrix = nx.to_numpy_array(graph, nodelist=range(len(graph)))
        np.savetxt(path, matrix, fmt="%d", delimiter=",", header="hubs")
    else:
        nx.write_edgelist(graph, path := path / "g.edges", data=form == "edge list with data")
    return path


FORMS = [
    "graphml",
    "node-link edges",
    "node-link links",
    "adjacency",
    "adjacency csv",
    "edge list",
    "edge list with data",
]


@pytest.mark.parametrize("form", FORMS)
@given(graph=hub_graphs(min_hubs=2), shuffle=st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_a_saved_graph_is_read_as_the_same_graph(
    form: str, tmp_path_factory: pytest.TempPathFactory, graph: nx.Graph, shuffle
) -> None:
    # Nodes and edges are written in random order: a hub's number is its label, not its place.
    nodes, pairs = list(graph.nodes), list(graph.edges)
    shuffle.shuffle(nodes)
    shuffle.shuffle(pairs)
    source = nx.Graph()
    source.add_nodes_from(nodes)
    source.add_edges_from(pairs)
    path = write(source, tmp_path_factory.mktemp("graph"), form)
    for source_file in (path, str(path)):
        assert edges(hub_graph(source_file, len(graph))) == edges(graph)


def test_edge_list_with_names(tmp_path: Path) -> None:
    path = tmp_path / "towns.edges"
    path.write_text("# the towns\nrome bern\n\noslo,bern\n")
    assert edges(hub_graph(path, 3)) == {(0, 1), (1, 2)}


def test_weighted_edge_list(tmp_path: Path) -> None:
    graph = nx.cycle_graph(4)
    nx.set_edge_attributes(graph, 2, "weight")
    path = tmp_path / "ring.edges"
    nx.write_edgelist(graph, path)
    assert edges(hub_graph(path, 4)) == edges(graph)


@pytest.mark.parametrize("kind", ["toml", "json"])
def test_a_saved_network_is_a_graph_file(tmp_path, kind):
    network = HubNetwork.build(4, 2, "star")
    network.save(tmp_path / f"net.{kind}")
    assert edges(hub_graph(tmp_path / f"net.{kind}", 4)) == {(0, 1), (0, 2), (0, 3)}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "hubs = 3\n", "a TOML file must be a network with 'edges'"),
        ("a.json", '{"links": []}', "must be an object with 'nodes' and 'edges'"),
        ("a.json", '{"edges": [3]}', "edge 3: give two hubs"),
    ],
)
def test_a_file_that_is_no_graph_is_explained(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        hub_graph(tmp_path / name, 3)


def test_too_many_hubs_are_refused_at_once():
    with pytest.raises(ValueError, match=r"hubs=100000: at most 10,000 .* \(here 80 GB\)"):
        hub_graph("complete", 100_000)
