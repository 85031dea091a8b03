"""The bound without a condition on single rates: by hand, and against measured runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mll_flower.algorithm.any_rate_theory import (
    any_rate_bound,
    any_rate_slack,
    any_rate_step_size,
    rate_pull,
)
from mll_flower.algorithm.mixing import mixing_matrix, zeta
from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.reference import mll_sgd
from mll_flower.algorithm.theory import Problem, bound, largest_step_size
from tests.support.random_networks import networks

slow = HubNetwork.build(workers_per_hub=[2, 1], weights=[1, 3, 4], rates=[0.1, 0.4, 0.5])


def test_bound_by_hand() -> None:
    # a = 1/8, 3/8, 4/8; p = 0.1, 0.4, 0.5; zeta = 1/2, tau = 2, q = 3, K = 60.
    found = any_rate_bound(slow, 0.5, 2, 3, 0.01, Problem(2.0, 0.5, beta=0.3, gap=3.0), slots=60)
    P = 0.1 / 8 + 0.4 * 3 / 8 + 0.5 / 2
    common = 2 * 0.5 * 4 * 0.0001 * 0.5
    expected = {
        "start": 2 * 3.0 / (0.01 * P * 60),
        "noise": 0.5 * 0.01 * 2 * (0.1 / 64 + 0.4 * 9 / 64 + 0.5 * 16 / 64) / P,
        # q^3 tau^3 = 216; 1/6 - 1/60 = 0.15; 1/3 + 2 + (1/4)/(1/4).
        "mixing": common * 216 * 0.15 * (1 / 3 + 2 + 1),
        "drift": common * 3 * (43 / 6),
    }
    expected["total"] = sum(expected.values())
    assert found == pytest.approx(expected, rel=1e-12)


def test_condition_by_hand() -> None:
    found = any_rate_slack(slow, 0.5, 2, 3, 0.01, Problem(2.0, beta=0.3))
    gamma = 4 / 3 + 4 + 2
    quadratic = 2 * 0.5 * 1.3 * 4 * 36 * gamma * 0.0001
    linear = [0.02 * (a * (1.3 - p) + p) for a, p in ((1 / 8, 0.1), (3 / 8, 0.4), (1 / 2, 0.5))]
    np.testing.assert_allclose(found, 1 - np.array(linear) - quadratic, rtol=1e-12)


@given(network=networks(), tau=st.integers(1, 9), q=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_some_step_size_meets_the_condition_at_any_rates(network, tau, q) -> None:
    z = zeta(mixing_matrix(network.graph, network.b))
    problem = Problem(L=3.0, beta=0.5)
    eta = any_rate_step_size(network, z, tau, q, problem)
    slack = any_rate_slack(network, z, tau, q, eta, problem)
    assert slack.min() == pytest.approx(0, abs=1e-9)
    assert any_rate_slack(network, z, tau, q, 0.9 * eta, problem).min() > 0


def test_where_the_paper_gives_a_bound_ours_is_smaller() -> None:
    fast = HubNetwork.build(4, 5, "ring", rates=1.0)
    z = zeta(mixing_matrix(fast.graph, fast.b))
    paper_eta = largest_step_size(fast, z, 8, 4, Problem())
    assert paper_eta is not None
    assert any_rate_step_size(fast, z, 8, 4, Problem()) > paper_eta
    ours = any_rate_bound(fast, z, 8, 4, paper_eta, Problem(), 10_000)
    assert ours["total"] < bound(fast, z, 8, 4, paper_eta, Problem(), 10_000)["total"]


def measured(network: HubNetwork, tau: int, q: int, slots: int, seed: int) -> tuple[float, float]:
    """Run random quadratics; return the mean squared gradient norm of u, and its bound."""
    rng = np.random.default_rng(seed)
    n, sigma2 = 4, 0.5
    values = rng.uniform(0.05, 2.0, n)
    basis, _ = np.linalg.qr(rng.normal(size=(n, n)))
    A = basis * values @ basis.T
    x0 = rng.normal(size=n)
    H = mixing_matrix(network.graph, network.b)
    problem = Problem(L=values.max(), sigma2=sigma2, beta=0.0, gap=float(x0 @ A @ x0 / 2))
    eta = any_rate_step_size(network, zeta(H), tau, q, problem)
    total, runs = 0.0, 8
    for run in range(runs):
        noise = np.random.default_rng([seed, run])
        coins = noise.random((slots, network.workers)) < network.p
        history = mll_sgd(
            lambda i, k, x, noise=noise: A @ x + noise.normal(size=n) * np.sqrt(sigma2 / n),
            network,
            H,
            tau,
            q,
            eta,
            coins,
            x0,
        )
        total += float(np.mean(np.sum((history.average[:slots] @ A) ** 2, axis=1)))
    limit = any_rate_bound(network, zeta(H), tau, q, eta, problem, slots)["total"]
    return total / runs, limit


@pytest.mark.parametrize(("tau", "q"), [(1, 1), (4, 2), (8, 4)])
@pytest.mark.parametrize("rates", [0.1, "uniform", "skewed-slow", 1.0])
@pytest.mark.parametrize("graph", ["complete", "path"])
def test_measured_runs_stay_below_the_bound(tau: int, q: int, rates: object, graph: str) -> None:
    network = HubNetwork.build(4, [1, 2, 3, 4], graph, np.arange(1, 11), rates)
    value, limit = measured(network, tau, q, 5 * tau * q, seed=tau)
    assert 0 < value < limit


def test_rates_that_are_equal_do_not_pull() -> None:
    assert rate_pull(HubNetwork.build(2, 3, rates=0.3)) == pytest.approx(0, abs=1e-12)


@given(network=networks(), seed=st.integers(0, 999))
@settings(max_examples=30, deadline=None)
def test_the_pull_bounds_the_distance_of_the_two_objectives(network, seed) -> None:
    gradients = np.random.default_rng(seed).normal(size=(network.workers, 3))
    tilted = network.a * network.p / (network.a @ network.p)
    followed, wanted = tilted @ gradients, network.a @ gradients
    spread = np.sqrt(tilted @ np.sum((gradients - followed) ** 2, axis=1))
    limit = np.sqrt(rate_pull(network)) * spread
    assert np.linalg.norm(followed - wanted) <= limit + 1e-12
