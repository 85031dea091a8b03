"""Networks: shares, named rates, and files."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings

from mll_flower import HubNetwork
from tests.support.random_networks import networks

quick = settings(max_examples=60, deadline=None)


def assert_same(one: HubNetwork, other: HubNetwork) -> None:
    assert set(map(frozenset, one.graph.edges)) == set(map(frozenset, other.graph.edges))
    for name in ("hub_of", "w", "p", "a", "b", "v"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_shares_by_hand() -> None:
    network = HubNetwork.build(workers_per_hub=[2, 1], weights=[1, 3, 4], rates=[0.5, 1, 0.25])
    assert (network.hubs, network.workers) == (2, 3)
    np.testing.assert_array_equal(network.hub_of, [0, 0, 1])
    np.testing.assert_array_equal(network.a, [1 / 8, 3 / 8, 4 / 8])
    np.testing.assert_array_equal(network.b, [0.5, 0.5])
    np.testing.assert_array_equal(network.v, [1 / 4, 3 / 4, 1])
    np.testing.assert_array_equal(network.hub_weights, [4, 4])
    np.testing.assert_array_equal(network.members(0), [0, 1])
    np.testing.assert_array_equal(network.members(1), [2])


@given(network=networks())
@quick
def test_shares_agree_with_one_another(network: HubNetwork) -> None:
    assert network.a.sum() == pytest.approx(1, abs=1e-12)
    assert network.b.sum() == pytest.approx(1, abs=1e-12)
    for hub in range(network.hubs):
        members = network.members(hub)
        assert network.v[members].sum() == pytest.approx(1, abs=1e-12)
        assert network.a[members].sum() == pytest.approx(network.b[hub], abs=1e-12)
    np.testing.assert_allclose(network.v * network.b[network.hub_of], network.a, rtol=1e-12)


def test_a_network_is_frozen() -> None:
    weights = np.ones(2)
    network = HubNetwork.build(hubs=2, weights=weights)
    with pytest.raises(dataclasses.FrozenInstanceError):
        network.w = np.ones(2)  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        network.w[0] = 5
    weights[0] = 9
    np.testing.assert_array_equal(network.w, [1, 1])


def test_hubs_come_from_a_graph_or_from_a_list() -> None:
    assert HubNetwork.build(graph=nx.path_graph(4), workers_per_hub=2).workers == 8
    assert HubNetwork.build(workers_per_hub=[1, 2, 3]).hubs == 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fixed", [0.55] * 20),
        ("uniform", [0.1 * k for k in range(1, 11)] * 2),
        ("skewed-fast", ([1.0] + [0.5] * 9) * 2),
        ("skewed-slow", ([0.1] + [0.6] * 9) * 2),
        ("two-speed", ([0.6] + [0.9] * 9) * 2),
    ],
)
def test_named_rates_of_two_hubs_of_ten(name: str, expected: list[float]) -> None:
    network = HubNetwork.build(hubs=2, workers_per_hub=10, rates=name)
    np.testing.assert_allclose(network.p, expected)


def test_one_rate_for_all_and_one_rate_per_worker() -> None:
    np.testing.assert_array_equal(HubNetwork.build(hubs=3, rates=0.3).p, [0.3] * 3)
    np.testing.assert_array_equal(HubNetwork.build(hubs=2, rates=[0.3, 1]).p, [0.3, 1])
    np.testing.assert_array_equal(HubNetwork.build(hubs=2, rates=1).p, [1, 1])


@pytest.mark.parametrize("suffix", [".toml", ".json"])
@given(network=networks())
@quick
def test_a_saved_network_loads_as_the_same_network(
    suffix: str, tmp_path_factory: pytest.TempPathFactory, network: HubNetwork
) -> None:
    path = tmp_path_factory.mktemp("network") / f"network{suffix}"
    network.save(path)
    assert_same(HubNetwork.load(path), network)
    assert_same(HubNetwork.load(str(path)), network)
    assert_same(HubNetwork.from_dict(network.to_dict()), network)


def test_files_are_valid_toml_and_json(tmp_path: Path) -> None:
    network = HubNetwork.build(hubs=3, graph="star", weights=[1, 2, 3])
    network.save(tmp_path / "n.toml")
    network.save(tmp_path / "n.json")
    data = tomllib.loads((tmp_path / "n.toml").read_text())
    assert data == json.loads((tmp_path / "n.json").read_text()) == network.to_dict()


def test_a_file_may_hold_the_arguments_of_build(tmp_path: Path) -> None:
    path = tmp_path / "n.toml"
    path.write_text('hubs = 6\nworkers_per_hub = 2\ngraph = "erdos-renyi"\nseed = 4\nrates = 0.7\n')
    expected = HubNetwork.build(hubs=6, workers_per_hub=2, graph="erdos-renyi", seed=4, rates=0.7)
    assert_same(HubNetwork.load(path), expected)


def test_rates_per_hub():
    network = HubNetwork.build(workers_per_hub=[2, 1, 3], rates="hub:1,0.5,0.25")
    assert network.p.tolist() == [1, 1, 0.5, 0.25, 0.25, 0.25]
    with pytest.raises(ValueError, match="has 2 entries for 3 hubs: give one per hub"):
        HubNetwork.build(workers_per_hub=[2, 1, 3], rates="hub:1,0.5")
    with pytest.raises(ValueError, match="'hub:1,x,2': give numbers with commas"):
        HubNetwork.build(workers_per_hub=[2, 1, 3], rates="hub:1,x,2")
    with pytest.raises(ValueError, match="at most 1"):
        HubNetwork.build(workers_per_hub=[2, 1, 3], rates="hub:1,2,1")
