"""The network file: what is read from it, and errors that name the key, the value, the remedy."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import networkx as nx
import pytest

from mll_flower.algorithm.corrections import Corrections
from mll_flower.deployment.network_file import (
    NetworkFile,
    NetworkFileError,
    example_network,
    load_network,
)

GOOD = """
name = "three-sites"
tau = 8
q = 2
slot = 0.5
rounds = 10
edges = [["north", "mid"], ["mid", "south"]]
[run-config]
dataset = "mnist"
learning-rate = 0.1
[[hub]]
id = "north"
superlink = "north.example.org:9092"
gossip = "north.example.org:9093"
workers = 4
[[hub]]
id = "mid"
superlink = "10.0.0.7:9092"
gossip = "10.0.0.7:9093"
workers = 2
listen = "0.0.0.0"
certificate = "/etc/mll/mid.crt"
[[hub]]
id = "south"
superlink = "[2001:db8::7]:9092"
gossip = "[2001:db8::7]:9093"
workers = 1
"""


def read(tmp_path: Path, text: str) -> NetworkFile:
    path = tmp_path / "network.toml"
    path.write_text(text)
    return load_network(path)


def test_a_good_file(tmp_path: Path) -> None:
    network = read(tmp_path, GOOD)
    assert (network.name, network.tau, network.q, network.slot) == ("three-sites", 8, 2, 0.5)
    assert network.rounds == 10
    assert network.round_deadline == 14.0
    assert network.gossip_deadline == 30.0  # 10 s, and 10 s more for each of the q rounds
    assert (network.mixing, network.absent) == ("metropolis", "keep")
    assert network.run_config == {"dataset": "mnist", "learning-rate": 0.1}
    assert [hub.id for hub in network.hubs] == ["north", "mid", "south"]
    assert network.neighbours("mid") == ("north", "south")
    assert network.neighbours("north") == ("mid",)
    assert nx.utils.graphs_equal(network.graph, nx.Graph([("north", "mid"), ("mid", "south")]))
    north, mid, south = network.hubs
    assert north.tls.certificate == tmp_path / "certs" / "hub-north.crt"
    assert north.gossip_listen == "north.example.org:9093"
    assert mid.tls.certificate == Path("/etc/mll/mid.crt")
    assert mid.tls.key == tmp_path / "certs" / "hub-mid.key"
    assert mid.gossip_listen == "0.0.0.0:9093"
    assert mid.superlink_listen == "0.0.0.0:9092"
    assert south.gossip_listen == "[2001:db8::7]:9093"
    assert south.superlink_listen == "[2001:db8::7]:9092"
    everywhere = replace(south, listen="::")
    assert everywhere.superlink_listen == "[::]:9092"
    with pytest.raises(FrozenInstanceError):
        network.tau = 3  # type: ignore[misc]
    with pytest.raises(NetworkFileError, match="hub 'west' does not exist; the hubs are north"):
        network.neighbours("west")


def test_slots_and_underscores_and_a_file_for_h(tmp_path: Path) -> None:
    (tmp_path / "h.csv").write_text("1")
    text = GOOD.replace("rounds = 10", 'slots = 80\nround_deadline = 9\nmixing = "h.csv"')
    network = read(tmp_path, text)
    assert network.rounds == 10
    assert network.round_deadline == 9.0
    assert network.mixing == tmp_path / "h.csv"


def test_corrections(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD).corrections == Corrections()
    keys = 'q = 2\nrate-correction = "inverse"\nmean-rate = 0.5\ngossip_precision = "half"'
    found = read(tmp_path, GOOD.replace("q = 2", keys)).corrections
    assert found == Corrections(rate="inverse", mean_rate=0.5, precision="half")


def test_deadlines_that_hubs_choose(tmp_path: Path) -> None:
    network = read(tmp_path, GOOD.replace("q = 2", 'q = 2\nround-deadline = "auto"'))
    assert network.auto_deadline
    assert (network.least_deadline, network.round_deadline) == (9.0, 64.0)
    assert network.gossip_deadline == 2 * 60.0 + 10.0  # hubs may be apart by the longest rounds
    capped = read(
        tmp_path, GOOD.replace("q = 2", 'q = 2\nround-deadline = "auto"\nround-deadline-cap = 20')
    )
    assert capped.round_deadline == 20.0
    assert not read(tmp_path, GOOD).auto_deadline


@pytest.mark.parametrize(
    ("name", "edges"),
    [
        ("path", {("north", "mid"), ("mid", "south")}),
        ("star", {("north", "mid"), ("north", "south")}),
        ("ring", {("north", "mid"), ("mid", "south"), ("north", "south")}),
        ("complete", {("north", "mid"), ("mid", "south"), ("north", "south")}),
    ],
)
def test_named_graphs(tmp_path: Path, name: str, edges: set[tuple[str, str]]) -> None:
    network = read(tmp_path, GOOD.replace("edges = [", f'graph = "{name}"\n#', 1))
    assert {frozenset(e) for e in network.edges} == {frozenset(e) for e in edges}


EDGES = 'edges = [["north", "mid"], ["mid", "south"]]'

MISTAKES = {
    "unknown key": ("tau = 8", "tau = 8\ntao = 3", r"tao: unknown key; the known ones are absent"),
    "unknown hub key": (
        "workers = 4",
        "workers = 4\nport = 1",
        r"hub 1: port: unknown.*listen",
    ),
    "both spellings": ("q = 2", "q = 2\nround_deadline = 9\nround-deadline = 9", "given twice"),
    "missing": ("tau = 8", "", r"tau: missing; add tau = 1"),
    "zero tau": ("tau = 8", "tau = 0", r"tau: 0; use a whole number"),
    "boolean q": ("q = 2", "q = true", r"q: True; use a whole number"),
    "negative slot": ("slot = 0.5", "slot = -1", r"slot: -1; use a positive"),
    "nan slot": ("slot = 0.5", "slot = nan", r"slot: nan; use a positive"),
    "deadline is a word": ("q = 2", 'q = 2\nround-deadline = "soon"', 'seconds, or "auto"'),
    "short cap": (
        "q = 2",
        'q = 2\nround-deadline = "auto"\nround-deadline-cap = 8',
        r"round-deadline-cap: 8.0 s is shorter than tau \* slot \+ 5 = 9.0 s",
    ),
    "cap alone": ("q = 2", "q = 2\nround-deadline-cap = 60", 'write round-deadline = "auto"'),
    "short deadline": ("q = 2", "q = 2\nround-deadline = 3", r"3.0 s is shorter than tau \* slot"),
    "zero gossip": ("q = 2", "q = 2\ngossip-deadline = 0", r"gossip-deadline: 0; use a positive"),
    "no length": ("rounds = 10", "", r"rounds / slots: give one of the two"),
    "two lengths": ("rounds = 10", "rounds = 1\nslots = 8", r"rounds / slots: give one"),
    "odd slots": ("rounds = 10", "slots = 81", r"81 is not a multiple of tau = 8; use 80"),
    "bad name": ('"three-sites"', '"Three Sites"', r"name: 'Three Sites'; use lower-case"),
    "bad id": ('id = "mid"', 'id = "Mid_1"', r"hub 2: id: 'Mid_1'; use"),
    "same id": ('id = "south"', 'id = "north"', r"hub 3: id: 'north' is taken"),
    "same address": (":9093", ":9092", r"hub north: gossip: .* is already the superlink of hub"),
    "no port": ("10.0.0.7:9093", "10.0.0.7", r'gossip: .*; write "host:port"'),
    "port 0": ("10.0.0.7:9093", "10.0.0.7:0", r'gossip: .*; write "host:port"'),
    "bare ipv6": ("[2001:db8::7]:9093", "2001:db8::7:9093", r'write "\[2001:db8::7\]:9093"'),
    "everywhere": (
        "10.0.0.7:9093",
        "0.0.0.0:9093",
        r'not an address that others.*listen = "0.0.0.0"',
    ),
    "our names": ("north.example.org:9093", "hub-mid.mll:9093", r"stand for hubs in cert"),
    "odd host": ("10.0.0.7:9093", "a b:9093", r"use a host name or an IP address"),
    "no workers": ("workers = 4", "workers = 0", r"hub 1: workers: 0; use a whole number"),
    "unknown end": ('["mid", "south"]', '["mid", "soth"]', r"no hub 'soth'; the hubs are north"),
    "self-loop": ('["mid", "south"]', '["mid", "mid"]', r"is a self-loop; remove it"),
    "twice": ('["mid", "south"]', '["mid", "north"]', r"given twice"),
    "no pair": ('["mid", "south"]', '["mid"]', r"an edge is a pair of hub ids"),
    "parts": (', ["mid", "south"]', "", r"not connected: \[\['mid', 'north'\], \['south'\]\]"),
    "graph and edges": ("q = 2", 'q = 2\ngraph = "path"', r"edges / graph: both are given"),
    "unknown graph": (EDGES, 'graph = "tre"', r"graph: 'tre'.*use one of complete, path"),
    "mixing": (
        "q = 2",
        'q = 2\nmixing = "optimal"',
        r"'optimal': no such file; use",
    ),
    "absent": ("q = 2", 'q = 2\nabsent = "skip"', r"absent: 'skip'; use one of keep, renormalise"),
    "correction": ("q = 2", 'q = 2\nhub-correction = "on"', "hub-correction='on' is not known"),
    "correction's number": ("q = 2", 'q = 2\nrate-cap = "much"', "rate-cap='much': give a number"),
    "no mean rate": ("q = 2", 'q = 2\nrate-correction = "inverse"', "needs mean-rate, the mean"),
    "corrections that exclude each other": (
        "q = 2",
        'q = 2\nworker-correction = "mtgc"\ninner-strategy = "fedmedian"',
        "worker-correction with inner_strategy",
    ),
    "run-config": (
        'dataset = "mnist"',
        "dataset = [1]",
        r"dataset: \[1\]; use a number",
    ),
    "hub table": ("[[hub]]", "[[hubs]]", r"hubs: unknown key"),
    "not TOML": ("tau = 8", "tau = ", r"not TOML: .*line"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(tmp_path: Path, mistake: str) -> None:
    old, new, message = MISTAKES[mistake]
    assert old in GOOD
    with pytest.raises(NetworkFileError, match=message) as error:
        read(tmp_path, GOOD.replace(old, new))
    assert str(tmp_path / "network.toml") in str(error.value)


def test_no_hubs_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(NetworkFileError, match=r"add a \[\[hub\]\] table"):
        read(tmp_path, GOOD[: GOOD.index("[[hub]]")].replace(EDGES, ""))
    with pytest.raises(NetworkFileError, match="cannot be read"):
        load_network(tmp_path / "nothing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(NetworkFileError, match="cannot be read"):
        load_network(tmp_path / "binary.toml")


@pytest.mark.parametrize("hubs", [1, 2, 3, 30])
def test_the_example_can_be_read(tmp_path: Path, hubs: int) -> None:
    network = read(tmp_path, example_network(hubs=hubs, workers=3, base_port=9500))
    assert len(network.hubs) == hubs
    assert nx.is_isomorphic(network.graph, nx.path_graph(hubs))
    assert all(hub.workers == 3 for hub in network.hubs)
    assert network.hubs[0].superlink == "127.0.0.1:9500"


@pytest.mark.parametrize("wrong", [{"hubs": 0}, {"workers": 0}, {"base_port": 65534}])
def test_the_example_refuses_impossible_arguments(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        example_network(**wrong)
