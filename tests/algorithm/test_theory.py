"""The bound and the step-size condition against formulas written out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mll_flower.algorithm.mixing import mixing_matrix, zeta
from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.theory import (
    SLOWEST_RATE,
    Problem,
    bound,
    explain_condition,
    gamma,
    largest_step_size,
    step_size_slack,
)
from tests.support.random_networks import networks

fast = HubNetwork.build(workers_per_hub=[2, 1], weights=[1, 3, 4], rates=[0.7, 0.8, 1.0])


def test_gamma_is_that_of_the_proof() -> None:
    # 1/(1 - 1/4) + 2/(1/2) + (1/2)/(1/4); the theorem's first term would be half of that.
    assert gamma(0.5) == pytest.approx(4 / 3 + 4 + 2, rel=1e-15)
    assert gamma(0.0) == 3


def test_bound_by_hand() -> None:
    # a = 1/8, 3/8, 4/8; p = 0.7, 0.8, 1; zeta = 1/2, tau = 2, q = 3, K = 60.
    L, sigma2, gap, eta = 2.0, 0.5, 3.0, 0.01
    P = 0.7 / 8 + 0.8 * 3 / 8 + 1.0 / 2
    found = bound(fast, 0.5, 2, 3, eta, Problem(L, sigma2, beta=0.3, gap=gap), slots=60)
    start = 2 * 3.0 / (0.01 * 60)
    noise = 0.5 * 0.01 * 2 * (0.7 / 64 + 0.8 * 9 / 64 + 1.0 * 16 / 64)
    # q^3 tau^3 = 216; 1/6 - 1/60 = 0.15; (1/4)/(3/4) + 1/(1/2) + 1/(1/4) = 1/3 + 2 + 4.
    mixing = 4 * 4 * 0.0001 * 0.5 * 216 * 0.15 * (1 / 3 + 2 + 4) * P
    # (3/2)/(1/2) = 3; 4 * 2 * 5 / 6 + 1 * 3 / 6 = 43/6.
    drift = 4 * 4 * 0.0001 * 0.5 * 3 * (43 / 6) * P
    assert found == pytest.approx(
        {
            "start": start,
            "noise": noise,
            "mixing": mixing,
            "drift": drift,
            "total": start + noise + mixing + drift,
        },
        rel=1e-12,
    )


def test_the_bound_tends_to_its_limit() -> None:
    at = [bound(fast, 0.4, 4, 2, 0.01, Problem(), slots=10**k)["total"] for k in (3, 5, 7, 9)]
    limit = bound(fast, 0.4, 4, 2, 0.01, Problem())
    gaps = [abs(value - limit["total"]) for value in at]
    assert gaps == sorted(gaps, reverse=True)
    assert at[-1] == pytest.approx(limit["total"], rel=1e-5)
    assert limit["start"] == 0
    # For K -> infinity the factor q^2 tau^2 remains in the mixing term.
    squares = 0.4**2 / (1 - 0.4**2) + 0.8 / 0.6 + 1 / 0.36
    P = float(fast.a @ fast.p)
    assert limit["mixing"] == pytest.approx(4 * 0.01**2 * 64 * squares * P)


def test_for_distributed_sgd_only_the_terms_of_sgd_remain() -> None:
    network = HubNetwork.build(hubs=1, workers_per_hub=4)
    found = bound(network, 0.0, 1, 1, 0.1, Problem(L=2, sigma2=3, gap=5), slots=100)
    assert found["start"] == pytest.approx(2 * 5 / (0.1 * 100))
    assert found["noise"] == pytest.approx(3 * 0.1 * 2 / 4)
    assert found["drift"] == 0


def test_without_a_mixing_in_the_slots_the_mixing_term_is_zero() -> None:
    assert bound(fast, 0.5, 8, 4, 0.01, Problem(), slots=16)["mixing"] == 0


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_condition_by_hand(beta: float) -> None:
    eta, L, G = 0.001, 2.0, 4 / 3 + 4 + 2
    expected = [
        (4 * p - p * p - 2)
        - eta * L * (a * p * (beta + 1) - a * p * p + p * p)
        - 8 * L**2 * eta**2 * 9 * 4 * G
        for a, p in zip([1 / 8, 3 / 8, 4 / 8], [0.7, 0.8, 1.0], strict=True)
    ]
    found = step_size_slack(fast, 0.5, 2, 3, eta, Problem(L=L, beta=beta))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_condition_with_beta_above_one_keeps_the_term_that_the_proof_drops() -> None:
    eta, p = 0.01, 1.0
    network = HubNetwork.build(hubs=1, rates=p)
    # 4 (p (beta - 1) + 2) = 16 at beta = 3, in place of 8; Gamma(0) = 3.
    expected = 1 - eta * (4 - 1 + 1) - 16 * eta**2 * 3
    assert step_size_slack(network, 0, 1, 1, eta, Problem(beta=3))[0] == pytest.approx(expected)


@given(
    network=networks(),
    tau=st.integers(1, 16),
    q=st.integers(1, 8),
    L=st.floats(0.01, 100),
    beta=st.floats(0, 10),
    fast_enough=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_the_largest_step_size_meets_the_condition_and_a_larger_one_does_not(
    network, tau, q, L, beta, fast_enough
) -> None:
    if fast_enough:
        network = HubNetwork(network.graph, network.hub_of, network.w, 0.6 + 0.4 * network.p)
    z = zeta(mixing_matrix(network.graph, network.b))
    problem = Problem(L=L, beta=beta)
    eta = largest_step_size(network, z, tau, q, problem)
    if np.any(network.p <= SLOWEST_RATE):
        assert eta is None
        return
    assert eta is not None
    assert eta > 0
    assert step_size_slack(network, z, tau, q, eta, problem).min() == pytest.approx(0, abs=1e-9)
    assert np.all(step_size_slack(network, z, tau, q, eta * 0.999, problem) > 0)
    assert step_size_slack(network, z, tau, q, eta * 1.001, problem).min() < 0


def test_largest_step_size_exists_for_fast_workers() -> None:
    network = HubNetwork.build(hubs=3, workers_per_hub=2, rates="two-speed")
    assert largest_step_size(network, 0.5, 4, 2, Problem()) > 0
    assert "every rate is above" in explain_condition(network)


def test_no_step_size_exists_for_a_slow_worker_and_the_reason_is_given() -> None:
    assert pytest.approx(2 - math.sqrt(2)) == SLOWEST_RATE
    network = HubNetwork.build(hubs=2, workers_per_hub=2, rates=[0.9, 0.5, 0.3, 1.0])
    assert largest_step_size(network, 0.0, 1, 1, Problem()) is None
    sentence = explain_condition(network)
    assert "no step size meets it: worker 2 has the rate 0.3 <= 2 - sqrt(2) = 0.586" in sentence
    assert "= -0.89 is not positive" in sentence
    assert "(2 of 4 workers)" in sentence


@pytest.mark.parametrize("nudge", [-1e-9, 1e-9])
def test_the_slowest_rate_is_the_exact_threshold(nudge: float) -> None:
    network = HubNetwork.build(hubs=1, rates=SLOWEST_RATE + nudge)
    assert (largest_step_size(network, 0.0, 1, 1, Problem()) is None) == (nudge < 0)
