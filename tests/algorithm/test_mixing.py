"""The mixing matrix: its conditions on random networks, and zeta against known results."""

from __future__ import annotations

import json
import math
import sys

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mll_flower.algorithm.mixing
from mll_flower.algorithm.mixing import RULES, check_mixing, load_mixing, mixing_matrix, zeta
from mll_flower.algorithm.network import HubNetwork
from tests.support.random_networks import networks, operators

quick = settings(max_examples=60, deadline=None)


def dense_zeta(H: np.ndarray) -> float:
    """Return the second largest eigenvalue modulus, by the solver for arbitrary matrices."""
    return float(np.sort(np.abs(np.linalg.eigvals(H)))[-2]) if len(H) > 1 else 0.0


def check_entry_by_entry(H: np.ndarray, graph: nx.Graph, b: np.ndarray) -> None:
    """Check the three conditions of Assumption 2, one entry at a time."""
    hubs = len(graph)
    for i in range(hubs):
        for j in range(hubs):
            if i != j and not graph.has_edge(i, j):
                assert H[i, j] == 0
            assert H[i, j] >= 0
            assert H[i, j] * b[j] == pytest.approx(H[j, i] * b[i], abs=1e-12)
    np.testing.assert_allclose(H.sum(axis=0), 1, atol=1e-12)
    np.testing.assert_allclose(H @ b, b, atol=1e-12)


@pytest.mark.parametrize("rule", ["metropolis", "diffusion", "auto"])
@given(network=networks())
@quick
def test_conditions_hold_and_zeta_is_below_one(rule: str, network: HubNetwork) -> None:
    H = mixing_matrix(network.graph, network.b, rule)
    check_entry_by_entry(H, network.graph, network.b)
    assert zeta(H) < 1
    assert zeta(H) == pytest.approx(dense_zeta(H), abs=1e-7)


@given(network=networks(max_hubs=6))
@settings(max_examples=20, deadline=None)
def test_optimal_meets_the_conditions_and_is_never_worse(network: HubNetwork) -> None:
    optimal = mixing_matrix(network.graph, network.b, "optimal")
    check_entry_by_entry(optimal, network.graph, network.b)
    assert zeta(optimal) < 1
    for rule in ("metropolis", "diffusion"):
        assert zeta(optimal) <= zeta(mixing_matrix(network.graph, network.b, rule)) + (
            1e-9 if rule == "metropolis" else 1e-5
        )


@given(network=networks())
@quick
def test_complete_rule_mixes_to_the_average_in_one_step(network: HubNetwork) -> None:
    graph = nx.complete_graph(network.hubs)
    H = mixing_matrix(graph, network.b, "complete")
    check_entry_by_entry(H, graph, network.b)
    assert zeta(H) == pytest.approx(0, abs=1e-12)
    models = np.random.default_rng(0).normal(size=(network.hubs, 3))
    np.testing.assert_allclose(H.T @ models, np.tile(network.b @ models, (network.hubs, 1)))


@pytest.mark.parametrize("rule", ["metropolis", "diffusion"])
@given(network=networks())
@quick
def test_operators_keep_a_and_ones(rule: str, network: HubNetwork) -> None:
    H = mixing_matrix(network.graph, network.b, rule)
    V, Z = operators(network, H)
    ones = np.ones(network.workers)
    for T in (V, Z):
        np.testing.assert_allclose(T @ network.a, network.a, atol=1e-12)
        np.testing.assert_allclose(ones @ T, ones, atol=1e-12)
    np.testing.assert_allclose(V @ Z, Z, atol=1e-12)
    np.testing.assert_allclose(Z @ V, Z, atol=1e-12)
    # Proposition 2: the eigenvalues of Z are those of H, and zeros.
    assert zeta(H) == pytest.approx(dense_zeta(Z), abs=1e-6)


@given(network=networks(), seed=st.integers(0, 2**32 - 1))
@quick
def test_averaging_and_mixing_keep_the_averaged_model(network: HubNetwork, seed: int) -> None:
    X = np.random.default_rng(seed).normal(size=(3, network.workers))
    u = X @ network.a
    V, Z = operators(network, mixing_matrix(network.graph, network.b))
    np.testing.assert_allclose(X @ V @ network.a, u, rtol=0, atol=1e-12)
    np.testing.assert_allclose(X @ Z @ network.a, u, rtol=0, atol=1e-12)
    np.testing.assert_allclose(X @ V @ V @ Z @ network.a, u, rtol=0, atol=1e-12)


@pytest.mark.parametrize("hubs", [2, 3, 10])
@pytest.mark.parametrize("rule", ["metropolis", "complete", "auto", "optimal"])
def test_complete_graph_with_equal_weights_has_zeta_zero(hubs: int, rule: str) -> None:
    H = mixing_matrix(nx.complete_graph(hubs), np.full(hubs, 1 / hubs), rule)
    np.testing.assert_allclose(H, 1 / hubs, atol=1e-12)
    assert zeta(H) == pytest.approx(0, abs=1e-12)


def test_path_of_ten_by_hand() -> None:
    # H[i, j] = 1/3 on all edges: H = I - L/3; L has the eigenvalues 2 - 2 cos(pi k / 10).
    H = mixing_matrix(nx.path_graph(10), np.full(10, 0.1), "metropolis")
    assert zeta(H) == pytest.approx((1 + 2 * math.cos(math.pi / 10)) / 3, abs=1e-12)


def test_metropolis_by_hand_with_unequal_shares() -> None:
    # Degrees 1, 2, 1; flows min(0.2/2, 0.5/3) = 0.1 and min(0.5/3, 0.3/2) = 0.15.
    H = mixing_matrix(nx.path_graph(3), [0.2, 0.5, 0.3], "metropolis")
    expected = [[0.5, 0.2, 0.0], [0.5, 0.5, 0.5], [0.0, 0.3, 0.5]]
    np.testing.assert_allclose(H, expected, atol=1e-15)


def test_diffusion_by_hand() -> None:
    # alpha = min(0.2/1, 0.5/2, 0.3/1) = 0.2 and H = I - alpha L diag(b)^-1.
    H = mixing_matrix(nx.path_graph(3), [0.2, 0.5, 0.3], "diffusion")
    L = np.array([[1, -1, 0], [-1, 2, -1], [0, -1, 1]])
    np.testing.assert_allclose(H, np.eye(3) - 0.2 * L @ np.diag([5, 2, 1 / 0.3]), atol=1e-15)


def test_diffusion_on_an_even_ring_converges() -> None:
    # b / deg is the same everywhere: the largest alpha would leave an empty diagonal, zeta = 1.
    H = mixing_matrix(nx.cycle_graph(6), np.full(6, 1 / 6), "diffusion")
    assert zeta(H) < 1
    assert H[0, 0] == pytest.approx(1 / 12)


@pytest.mark.parametrize("hubs", [3, 5, 10])
def test_optimal_on_the_path_is_the_known_fastest_chain(hubs: int) -> None:
    # Boyd, Diaconis, Sun, Xiao: 1/2 on each edge, and 1/2 on the diagonal at both ends.
    H = mixing_matrix(nx.path_graph(hubs), np.full(hubs, 1 / hubs), "optimal")
    assert zeta(H) == pytest.approx(math.cos(math.pi / hubs), abs=1e-6)


@pytest.mark.parametrize("leaves", [2, 4, 9])
def test_optimal_on_the_star(leaves: int) -> None:
    # By symmetry all edges have one flow f <= b / leaves; zeta = 1 - f / b at the largest f.
    H = mixing_matrix(nx.star_graph(leaves), np.full(leaves + 1, 1 / (leaves + 1)), "optimal")
    assert zeta(H) == pytest.approx(1 - 1 / leaves, abs=1e-6)


def test_optimal_on_the_complete_graph_is_zero_for_any_shares() -> None:
    H = mixing_matrix(nx.complete_graph(4), [0.1, 0.2, 0.3, 0.4], "optimal")
    assert zeta(H) == pytest.approx(0, abs=1e-6)


def test_optimal_is_clearly_better_than_metropolis_on_a_barbell() -> None:
    graph = nx.barbell_graph(4, 0)
    b = np.full(8, 1 / 8)
    gap = 1 - zeta(mixing_matrix(graph, b, "metropolis"))
    assert 1 - zeta(mixing_matrix(graph, b, "optimal")) > 1.3 * gap


def test_optimal_without_its_solver_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(ValueError, match=r"needs the solver cvxpy: pip install 'mll-flower\[opt"):
        mixing_matrix(nx.path_graph(3), [0.2, 0.5, 0.3], "optimal")


@pytest.mark.parametrize("name", ["path", "ring", "grid", "random-regular"])
def test_sparse_zeta_equals_dense(name: str) -> None:
    network = HubNetwork.build(hubs=442, workers_per_hub=1, graph=name)
    b = np.random.default_rng(1).uniform(0.5, 2, 442)
    H = mixing_matrix(network.graph, b / b.sum())
    assert mll_flower.algorithm.mixing._MAX_DENSE_HUBS < 442
    root = np.sqrt(b)
    values = np.linalg.eigvalsh(H * root / root[:, None])
    assert zeta(H) == pytest.approx(max(-values[0], values[-2]), abs=1e-9)


def test_zeta_is_the_modulus_of_a_negative_eigenvalue() -> None:
    H = np.array([[0.1, 0.9], [0.9, 0.1]])
    assert zeta(H) == pytest.approx(0.8)


def test_one_hub_keeps_its_model() -> None:
    for rule in [*RULES, "auto"]:
        H = mixing_matrix(nx.path_graph(1), [1.0], rule)
        np.testing.assert_array_equal(H, [[1.0]])
        assert zeta(H) == 0


@pytest.mark.parametrize("suffix", [".npy", ".json", ".txt", ".csv"])
def test_load_mixing_reads_a_saved_matrix(suffix: str, tmp_path) -> None:
    network = HubNetwork.build(hubs=4, graph="star", weights=[1, 2, 3, 4])
    H = mixing_matrix(network.graph, network.b)
    path = tmp_path / f"H{suffix}"
    if suffix == ".npy":
        np.save(path, H)
    elif suffix == ".json":
        path.write_text(json.dumps(H.tolist()))
    else:
        np.savetxt(path, H, delimiter="," if suffix == ".csv" else " ")
    np.testing.assert_allclose(load_mixing(path, network.graph, network.b), H, atol=1e-15)
    np.testing.assert_allclose(mixing_matrix(network.graph, network.b, str(path)), H, atol=1e-15)


def test_check_mixing_names_the_worst_place() -> None:
    network = HubNetwork.build(hubs=3, graph="path")
    H = mixing_matrix(network.graph, network.b)
    H[0, 2] = 0.25
    with pytest.raises(ValueError, match=r"share no edge: 0\.25 at \[0, 2\]"):
        check_mixing(H, network.graph, network.b)
