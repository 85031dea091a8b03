"""Broken files of networks, graphs and mixing matrices: each error names the file and the fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from mll_flower.algorithm.mixing import load_mixing
from mll_flower.algorithm.network import HubNetwork

PATH3 = nx.path_graph(3)
EVEN = np.full(3, 1 / 3)


def read_graph(path: Path) -> object:
    return HubNetwork.build(hubs=3, graph=path)


def read_mixing(path: Path) -> object:
    return load_mixing(path, PATH3, EVEN)


NODE_LINK = {"directed": True, "multigraph": False, "nodes": [{"id": 0}, {"id": 1}, {"id": 2}]}
DIRECTED = {**NODE_LINK, "edges": [{"source": 0, "target": 1}, {"source": 1, "target": 2}]}

FILES: dict[str, tuple[Callable[[Path], object], str, str | bytes | None, list[str]]] = {
    "network missing": (HubNetwork.load, "n.toml", None, ["does not exist", "check the path"]),
    "network TOML": (HubNetwork.load, "n.toml", "hubs = = 3", ["is not TOML", "line 1"]),
    "network JSON": (HubNetwork.load, "n.json", '{"hubs": 3', ["is not JSON", "line 1"]),
    "network JSON list": (HubNetwork.load, "n.json", "[1, 2]", ["unknown keys", "workers_per_hub"]),
    "network JSON number": (HubNetwork.load, "n.json", "5", ["n.json"]),
    "network binary": (HubNetwork.load, "n.toml", b"\xff\xfe\x00", ["is not TOML"]),
    "network values": (
        HubNetwork.load,
        "n.toml",
        "hubs = 2\nrates = 7",
        ["rates[0] = 7", "most 1"],
    ),
    "network with text for a number": (
        HubNetwork.load,
        "n.toml",
        'hubs = "two"',
        ["hubs='two'", "whole number"],
    ),
    "network edges": (HubNetwork.load, "n.json", '{"hubs": 2, "edges": [[0]]}', ["n.json"]),
    "graph missing": (read_graph, "g.graphml", None, ["does not exist", "check the path", "ring"]),
    "graph GraphML": (read_graph, "g.graphml", "<graphml><graph>", ["cannot be read"]),
    "graph GraphML empty": (read_graph, "g.graphml", "<graphml/>", ["cannot be read"]),
    "graph node-link": (read_graph, "g.json", '{"nodes": [', ["cannot be read"]),
    "graph node-link keys": (read_graph, "g.json", '{"hubs": 3}', ["cannot be read"]),
    "graph node-link list": (read_graph, "g.json", "[[0, 1]]", ["cannot be read", "'nodes'"]),
    "graph node-link directed": (
        read_graph,
        "g.json",
        json.dumps(DIRECTED),
        ["undirected", "convert it to"],
    ),
    "graph adjacency": (
        read_graph,
        "g.txt",
        "0 1 0\n1 0 1\n0 0 0\n",
        ["cannot be read", "not symmetric", "undirected"],
    ),
    "graph adjacency self-loop": (
        read_graph,
        "g.txt",
        "0 1 0\n1 1 1\n0 1 0\n",
        ["self-loop at 1", "remove it"],
    ),
    "graph adjacency size": (
        read_graph,
        "g.txt",
        "0 1 0 0\n1 0 1 0\n0 1 0 1\n0 0 1 0\n",
        ["matrix of 4 rows for 3 hubs", "make them agree"],
    ),
    "graph edge list": (read_graph, "g.edges", "0 1\n2\n", ["cannot be read", "'2'", "two nodes"]),
    "graph edge list in parts": (
        read_graph,
        "g.edges",
        "0 1\n",
        ["not connected", "['2']", "add an edge"],
    ),
    "graph binary": (read_graph, "g.edges", b"\xff\xfe\x00\x80", ["cannot be read"]),
    "H missing": (read_mixing, "H.npy", None, ["does not exist", "check the path"]),
    "H npy": (read_mixing, "H.npy", b"not an array", ["cannot be read as a matrix"]),
    "H npy empty": (read_mixing, "H.npy", b"", ["cannot be read as a matrix"]),
    "H npy zip": (read_mixing, "H.npy", b"PK\x03\x04zip", ["cannot be read as a matrix"]),
    "H json": (read_mixing, "H.json", "[[1, 0], [", ["cannot be read as a matrix"]),
    "H json ragged": (read_mixing, "H.json", "[[1, 0], [1]]", ["cannot be read as a matrix"]),
    "H json object": (read_mixing, "H.json", '{"H": 1}', ["cannot be read as a matrix"]),
    "H txt": (read_mixing, "H.txt", "1 0 0\n0 one 0\n0 0 1\n", ["cannot be read", "one"]),
    "H txt ragged": (read_mixing, "H.txt", "1 0 0\n0 1\n", ["cannot be read as a matrix"]),
    "H txt shape": (read_mixing, "H.txt", "1 0\n0 1\n", ["(2, 2)", "must be (3, 3)"]),
    "H txt conditions": (read_mixing, "H.txt", "1 0 1\n0 1 0\n0 0 0\n", ["no edge", "1 at [0, 2]"]),
}


@pytest.mark.parametrize("case", FILES)
def test_the_error_names_file_and_fault(case: str, tmp_path: Path) -> None:
    action, name, content, parts = FILES[case]
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.write_text(content)
    with pytest.raises(ValueError) as error:
        action(path)
    for part in parts:
        assert part in str(error.value)
    if "convert it" not in str(error.value) and "hub graph" not in str(error.value):
        assert name in str(error.value)


def test_a_network_is_saved_as_toml_or_json_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"network\.yaml: the name must end in \.toml or \.json"):
        HubNetwork.build(hubs=2).save(tmp_path / "network.yaml")
