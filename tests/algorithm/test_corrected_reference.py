"""The corrections that go past the paper, on quadratics where the right answer is known.

Ten hubs of ten workers; worker i minimises |x - c(i)|^2 / 2, so the optimum is the mean of the
c(i). The data differ from hub to hub, and where a test says so, so do the rates.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mll_flower.algorithm.corrected_reference import CorrectedHistory, corrected_mll_sgd
from mll_flower.algorithm.corrections import (
    Corrections,
    participation,
    safe_for_exact_diffusion,
    smallest_eigenvalue,
    step_factors,
)
from mll_flower.algorithm.mixing import check_mixing, mixing_matrix, zeta
from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.reference import mll_sgd
from tests.support.random_networks import networks

HUBS, WORKERS, DIMENSION, TAU, Q, ETA = 10, 10, 5, 8, 4, 0.05
RISING = np.repeat(np.linspace(0.1, 1, HUBS), WORKERS)


def centres(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    hubs = 2 * rng.normal(size=(HUBS, DIMENSION))
    return np.repeat(hubs, WORKERS, axis=0) + 0.5 * rng.normal(size=(HUBS * WORKERS, DIMENSION))


def play(
    corrections: Corrections,
    rates: object = 1.0,
    graph: str = "ring",
    rounds: int = 200,
    rate_in_hub: bool = False,
) -> tuple[float, float, CorrectedHistory]:
    """Return the distance of u from the optimum, the spread of the hubs, and the history."""
    network = HubNetwork.build(HUBS, WORKERS, graph, "equal", rates)
    c = centres()
    coins = np.random.default_rng(1).random((rounds * TAU, network.workers)) < network.p
    history = corrected_mll_sgd(
        lambda i, k, x: x - c[i],
        network,
        mixing_matrix(network.graph, network.b),
        TAU,
        Q,
        ETA,
        coins,
        np.zeros(DIMENSION),
        corrections,
        rate_in_hub,
    )
    u = history.average[-rounds // 4 :].mean(axis=0)  # the coins move u around its resting place
    spread = np.sqrt(((history.hubs[-1] - history.average[-1]) ** 2).sum(axis=1).mean())
    return float(np.linalg.norm(u - c.mean(axis=0))), float(spread), history


@given(network=networks(), tau=st.integers(1, 4), q=st.integers(1, 3), seed=st.integers(0, 999))
@settings(max_examples=20, deadline=None)
def test_with_everything_off_it_is_algorithm_1(network, tau, q, seed) -> None:
    rng = np.random.default_rng(seed)
    coins = rng.random((6 * tau, network.workers)) < network.p
    c = rng.normal(size=(network.workers, 3))
    H = mixing_matrix(network.graph, network.b)
    given_ = (lambda i, k, x: x - c[i], network, H, tau, q, 0.1, coins, np.ones(3))
    paper, found = mll_sgd(*given_), corrected_mll_sgd(*given_, Corrections())
    np.testing.assert_allclose(found.hubs, paper.hubs[::tau], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.average, paper.average[::tau], rtol=0, atol=1e-12)


def test_rates_pull_u_away_and_inverse_steps_bring_it_back() -> None:
    plain, _, _ = play(Corrections(), RISING)
    inverse, _, _ = play(Corrections(rate="inverse"), RISING)
    in_hub, _, _ = play(Corrections(rate="inverse"), RISING, rate_in_hub=True)
    assert plain > 0.4
    assert inverse < 0.02
    assert in_hub < 0.05  # workers of different rates still drift differently within a round


@pytest.mark.parametrize(("graph", "before"), [("ring", 2.0), ("path", 2.4)])
def test_exact_diffusion_brings_the_hubs_together(graph: str, before: float) -> None:
    _, plain, _ = play(Corrections(), graph=graph)
    distance, spread, _ = play(Corrections(hub="exact-diffusion"), graph=graph, rounds=1200)
    assert plain > before
    assert spread < 0.01
    assert distance < 0.01


@pytest.mark.parametrize("outer", ["none", "slowmo"])
@pytest.mark.parametrize("worker", ["none", "mtgc"])
@pytest.mark.parametrize("precision", ["full", "half"])
def test_the_hub_corrections_sum_to_zero(outer: str, worker: str, precision: str) -> None:
    corrections = Corrections(
        hub="exact-diffusion", rate="inverse", worker=worker, outer=outer, precision=precision
    )
    _, _, history = play(corrections, RISING, rounds=40)
    weighted = history.hub_drift.mean(axis=1)  # the hubs' shares are equal
    assert np.abs(history.hub_drift[-1]).max() > 0.1
    assert np.abs(weighted).max() < 1e-12


def test_worker_and_hub_correction_together_reach_the_optimum_at_any_rates() -> None:
    distance, spread, _ = play(
        Corrections(hub="exact-diffusion", worker="mtgc"), RISING, rounds=600
    )
    assert distance < 1e-3
    assert spread < 1e-3


def test_with_one_hub_and_equal_steps_worker_correction_is_scaffold() -> None:
    """Against SCAFFOLD (Karimireddy et al. 2020) with its option II, written out."""
    network = HubNetwork.build(1, 4)
    rng = np.random.default_rng(0)
    A, target = rng.uniform(0.5, 2, (4, 3)), rng.normal(size=(4, 3))
    x, controls = np.zeros(3), np.zeros((4, 3))
    expected = []
    for _ in range(12):
        models, before = [], controls.copy()
        for i in range(4):
            y = x.copy()
            for _ in range(5):
                y -= 0.1 * (A[i] * (y - target[i]) - before[i] + before.mean(axis=0))
            controls[i] = before[i] - before.mean(axis=0) + (x - y) / (5 * 0.1)
            models.append(y)
        x = np.mean(models, axis=0)
        expected.append(x)
    found = corrected_mll_sgd(
        lambda i, k, x: A[i] * (x - target[i]),
        network,
        [[1.0]],
        5,
        1,
        0.1,
        np.ones((60, 4)),
        np.zeros(3),
        Corrections(worker="mtgc"),
    )
    np.testing.assert_allclose(found.average[1:], expected, rtol=0, atol=1e-12)


@given(network=networks(), seed=st.integers(0, 999))
@settings(max_examples=20, deadline=None)
def test_half_precision_leaves_u_alone(network: HubNetwork, seed: int) -> None:
    start = np.random.default_rng(seed).normal(size=(network.hubs, 7))
    found = corrected_mll_sgd(
        lambda i, k, x: np.zeros(7),
        network,
        mixing_matrix(network.graph, network.b),
        1,
        1,
        0.1,
        np.ones((10, network.workers)),
        start,
        Corrections(precision="half"),
    )
    np.testing.assert_allclose(found.average - found.average[0], 0.0, rtol=0, atol=1e-12)


def test_half_precision_changes_the_hubs_only_by_rounding() -> None:
    _, _, full = play(Corrections(), RISING, rounds=40)
    _, _, half = play(Corrections(precision="half"), RISING, rounds=40)
    assert 0 < np.abs(full.hubs - half.hubs).max() < 0.01


def test_an_outer_step_of_rate_1_without_momentum_is_none() -> None:
    _, _, plain = play(Corrections(), RISING, rounds=12)
    _, _, outer = play(
        Corrections(outer="slowmo", outer_rate=1.0, outer_momentum=0.0), RISING, rounds=12
    )
    np.testing.assert_allclose(plain.hubs, outer.hubs, rtol=0, atol=1e-12)


def test_an_outer_step_is_momentum_over_mixings() -> None:
    network = HubNetwork.build(1, 1)
    found = corrected_mll_sgd(
        lambda i, k, x: np.ones(1),
        network,
        [[1.0]],
        1,
        1,
        0.1,
        np.ones((3, 1)),
        np.zeros(1),
        Corrections(outer="slowmo", outer_rate=2.0, outer_momentum=0.5),
    )
    # m = 0.1, 0.15, 0.175; each step moves by 2 m.
    np.testing.assert_allclose(found.average[:, 0], [0, -0.2, -0.5, -0.85], atol=1e-12)


def test_bipartite_graphs_get_a_safe_matrix() -> None:
    graph = HubNetwork.build(10, 1, "ring").graph.__class__()
    graph.add_edges_from((i, 5 + j) for i in range(5) for j in range(5))
    b = np.full(10, 0.1)
    H = mixing_matrix(graph, b, "metropolis")
    assert smallest_eigenvalue(H) < -1 / 3
    safe = safe_for_exact_diffusion(H)
    check_mixing(safe, graph, b)
    assert smallest_eigenvalue(safe) >= -1e-12
    network = HubNetwork(graph, np.arange(10), np.ones(10), np.ones(10))
    c = np.random.default_rng(0).normal(size=(10, 2))

    def spread_after(rounds: int, matrix: np.ndarray) -> float:
        """Run exact diffusion with this matrix as it is."""
        y, Y = np.zeros((10, 2)), np.zeros((10, 2))
        for _ in range(rounds):
            z = y - 0.1 * (y - c + Y)
            y = matrix.T @ z
            Y = Y + (z - y) / 0.1
        return float(np.abs(y - y.mean(axis=0)).max())

    assert spread_after(200, H) > 1e3
    assert spread_after(200, safe) < 1e-3
    found = corrected_mll_sgd(
        lambda i, k, x: x - c[i],
        network,
        H,
        1,
        1,
        0.1,
        np.ones((200, 10)),
        np.zeros(2),
        Corrections(hub="exact-diffusion"),
    )
    assert np.abs(found.hubs[-1] - found.average[-1]).max() < 1e-3


def test_a_matrix_that_is_safe_is_kept() -> None:
    network = HubNetwork.build(6, 1, "ring")
    H = mixing_matrix(network.graph, network.b)
    assert zeta(H) > 0
    np.testing.assert_array_equal(safe_for_exact_diffusion(H), H)


def test_step_factors_have_a_cap() -> None:
    network = HubNetwork.build(1, 2, rates=[0.01, 1.0])
    factors = step_factors(network, Corrections(rate="inverse"))
    np.testing.assert_allclose(factors, [50.5, 0.505])
    capped = step_factors(network, Corrections(rate="inverse", rate_cap=10))
    np.testing.assert_allclose(capped, [10, 0.505])
    np.testing.assert_array_equal(step_factors(network, Corrections()), 1)


def test_participation_of_tiny_rates_keeps_its_digits() -> None:
    np.testing.assert_allclose(participation([1.0, 0.5, 1e-12], 4), [1, 0.9375, 4e-12], rtol=1e-9)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"rate": "inverted"}, "rate-correction='inverted'"),
        ({"hub": "diffusion"}, "hub-correction='diffusion'"),
        ({"worker": "scaffold"}, "worker-correction='scaffold'"),
        ({"outer": "nesterov"}, "outer='nesterov'"),
        ({"precision": "quarter"}, "gossip-precision='quarter'"),
        ({"rate_cap": 0.5}, "rate-cap=0.5"),
        ({"outer_rate": 0.0}, "outer-rate=0.0"),
        ({"outer_momentum": 1.0}, "outer-momentum=1.0"),
    ],
)
def test_wrong_values_are_named(values: dict[str, object], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        Corrections(**values)
