"""The readable Algorithm 1 against a matrix form and against known algorithms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mll_flower.algorithm.coins import step_count
from mll_flower.algorithm.mixing import mixing_matrix
from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.reference import mll_sgd
from mll_flower.algorithm.schedule import rounds
from tests.support.random_networks import networks, operators

DIMENSION = 3


class Quadratics:
    """Noisy gradients of a different convex quadratic for each worker."""

    def __init__(self, workers: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        roots = rng.normal(size=(workers, DIMENSION, DIMENSION))
        self.A = np.einsum("nij,nkj->nik", roots, roots) / DIMENSION + 0.1 * np.eye(DIMENSION)
        self.c = rng.normal(size=(workers, DIMENSION))
        self.seed = seed

    def __call__(self, i: int, k: int, x: np.ndarray) -> np.ndarray:
        noise = np.random.default_rng([self.seed, i, k]).normal(size=DIMENSION)
        return self.A[i] @ x - self.c[i] + 0.1 * noise


def coin_table(network: HubNetwork, K: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((K, network.workers)) < network.p


def matrix_form(gradient, network, H, tau, q, eta, theta, x0) -> np.ndarray:
    """Run X <- (X - eta G) T_k with the paper's V and Z; models are columns."""
    V, Z = operators(network, H)
    X = np.tile(np.asarray(x0)[:, None], network.workers)
    history = [X.copy()]
    for k in range(1, len(theta) + 1):
        G = np.zeros_like(X)
        for i in range(network.workers):
            if theta[k - 1, i]:
                G[:, i] = gradient(i, k, X[:, i])
        T = Z if k % (q * tau) == 0 else V if k % tau == 0 else np.eye(network.workers)
        X = (X - eta * G) @ T
        history.append(X)
    return np.array(history)


@given(
    network=networks(),
    tau=st.integers(1, 6),
    q=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=25, deadline=None)
def test_equals_the_matrix_form(network: HubNetwork, tau: int, q: int, seed: int) -> None:
    gradient, theta = Quadratics(network.workers, seed), coin_table(network, 40, seed)
    H = mixing_matrix(network.graph, network.b)
    x0 = np.random.default_rng(seed).normal(size=DIMENSION)
    found = mll_sgd(gradient, network, H, tau, q, 0.05, theta, x0)
    expected = matrix_form(gradient, network, H, tau, q, 0.05, theta, x0)
    np.testing.assert_allclose(found.workers, expected.transpose(0, 2, 1), rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.average, expected @ network.a, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("tau", "q"), [(8, 4), (3, 5), (1, 1)])
def test_equals_the_matrix_form_over_hundreds_of_slots(tau: int, q: int) -> None:
    network = HubNetwork.build(
        workers_per_hub=[3, 1, 4, 2],
        graph="ring",
        weights=np.arange(1, 11),
        rates=np.linspace(0.2, 1, 10),
    )
    gradient, theta = Quadratics(10), coin_table(network, 500, seed=3)
    H = mixing_matrix(network.graph, network.b)
    found = mll_sgd(gradient, network, H, tau, q, 0.05, theta, np.ones(DIMENSION))
    expected = matrix_form(gradient, network, H, tau, q, 0.05, theta, np.ones(DIMENSION))
    np.testing.assert_allclose(found.workers, expected.transpose(0, 2, 1), rtol=0, atol=1e-10)
    # From one average to the next the hubs hold the model that they gave their workers.
    for k in range(0, 501, tau):
        np.testing.assert_allclose(found.hubs[k][network.hub_of], found.workers[k], atol=1e-12)
        np.testing.assert_allclose(network.b @ found.hubs[k], found.average[k], atol=1e-12)
        np.testing.assert_array_equal(found.hubs[k], found.hubs[min(k + tau - 1, 500)])


@given(network=networks(), tau=st.integers(1, 4), q=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_without_gradients_the_averaged_model_never_moves(network, tau, q) -> None:
    start = np.random.default_rng(0).normal(size=(network.hubs, DIMENSION))
    found = mll_sgd(
        lambda i, k, x: np.zeros(DIMENSION),
        network,
        mixing_matrix(network.graph, network.b),
        tau,
        q,
        0.1,
        np.ones((30, network.workers), bool),
        start,
    )
    np.testing.assert_allclose(
        found.average, np.tile(network.b @ start, (31, 1)), rtol=0, atol=1e-12
    )


def test_the_averaged_model_moves_by_the_averaged_gradients() -> None:
    network = HubNetwork.build(hubs=3, workers_per_hub=2, graph="path", weights=[1, 2, 3, 4, 5, 6])
    gradient, theta = Quadratics(6), coin_table(network, 60, seed=0)
    H = mixing_matrix(network.graph, network.b)
    found = mll_sgd(gradient, network, H, 4, 2, 0.1, theta, np.zeros(DIMENSION))
    for k in range(1, 61):
        G = [
            theta[k - 1, i] * gradient(i, k, found.workers[k - 1, i])
            for i in range(network.workers)
        ]
        u = found.average[k - 1] - 0.1 * network.a @ np.array(G)
        np.testing.assert_allclose(found.average[k], u, rtol=0, atol=1e-12)


def test_gradients_are_computed_only_when_a_step_is_taken() -> None:
    network = HubNetwork.build(hubs=2, workers_per_hub=2)
    asked = []

    def gradient(i: int, k: int, x: np.ndarray) -> np.ndarray:
        asked.append((k, i))
        return x

    theta = np.random.default_rng(0).random((20, 4)) < 0.4
    H = mixing_matrix(network.graph, network.b)
    mll_sgd(gradient, network, H, 3, 2, 0.1, theta, [1.0])
    assert asked == [(k + 1, i) for k, i in np.argwhere(theta).tolist()]


def test_step_size_may_depend_on_the_slot() -> None:
    network = HubNetwork.build(hubs=1)
    found = mll_sgd(
        lambda i, k, x: [1.0], network, [[1.0]], 2, 1, lambda k: 1 / k, np.ones((3, 1)), [0.0]
    )
    np.testing.assert_allclose(found.average[:, 0], [0, -1, -1.5, -1.5 - 1 / 3])


# The presets: each is a choice of values for which MLL-SGD is another known algorithm.


def run(network: HubNetwork, tau: int, q: int, K: int, theta=None, rule: str = "auto"):
    gradient = Quadratics(network.workers)
    theta = np.ones((K, network.workers), bool) if theta is None else theta
    H = mixing_matrix(network.graph, network.b, rule)
    return gradient, H, mll_sgd(gradient, network, H, tau, q, 0.1, theta, np.ones(DIMENSION))


def test_distributed_sgd_moves_one_model_by_the_mean_gradient() -> None:
    gradient, _, found = run(HubNetwork.build(hubs=1, workers_per_hub=5), tau=1, q=1, K=200)
    x = np.ones(DIMENSION)
    for k in range(1, 201):
        x = x - 0.1 * np.mean([gradient(i, k, x) for i in range(5)], axis=0)
        np.testing.assert_allclose(found.average[k], x, rtol=0, atol=1e-10)
        np.testing.assert_allclose(found.workers[k], np.tile(x, (5, 1)), rtol=0, atol=1e-10)


def local_sgd(gradient, workers: int, tau: int, rounds: int, shares=None) -> list[np.ndarray]:
    """All workers take tau steps from the common model; then the models are averaged."""
    shares = np.full(workers, 1 / workers) if shares is None else shares
    common, history = np.ones(DIMENSION), []
    for r in range(rounds):
        models = []
        for i in range(workers):
            x = common
            for k in range(r * tau + 1, (r + 1) * tau + 1):
                x = x - 0.1 * gradient(i, k, x)
            models.append(x)
        common = sum(s * x for s, x in zip(shares, models, strict=True))
        history.append(common)
    return history


@pytest.mark.parametrize("hubs", [1, 3], ids=["one hub", "complete graph"])
def test_local_sgd_averages_all_after_tau_steps(hubs: int) -> None:
    network = HubNetwork.build(hubs=hubs, workers_per_hub=6 // hubs, graph="complete")
    gradient, _, found = run(network, tau=5, q=1, K=200)
    expected = local_sgd(gradient, 6, 5, 40)
    np.testing.assert_allclose(found.average[5::5], expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.hubs[5::5, 0], expected, rtol=0, atol=1e-10)


def test_fedavg_weights_by_examples() -> None:
    examples = np.array([10, 600, 30, 5])
    network = HubNetwork.build(hubs=1, workers_per_hub=4, weights=examples)
    gradient, _, found = run(network, tau=7, q=1, K=210)
    expected = local_sgd(gradient, 4, 7, 30, examples / examples.sum())
    np.testing.assert_allclose(found.average[7::7], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("graph", ["complete", "star"])
def test_hl_sgd_averages_locally_then_globally(graph: str) -> None:
    hubs, tau, q = 3, 4, 3
    network = HubNetwork.build(hubs=hubs, workers_per_hub=2, graph=graph)
    gradient, H, found = run(network, tau, q, K=tau * q * 10)
    cluster = [np.ones(DIMENSION)] * hubs
    for r in range(1, q * 10 + 1):
        means = []
        for d in range(hubs):
            models = []
            for i in (2 * d, 2 * d + 1):
                x = cluster[d]
                for k in range((r - 1) * tau + 1, r * tau + 1):
                    x = x - 0.1 * gradient(i, k, x)
                models.append(x)
            means.append(np.mean(models, axis=0))
        if r % q == 0 and graph == "complete":
            means = [np.mean(means, axis=0)] * hubs
        elif r % q == 0:  # on a star, H mixes the outer hubs only with the middle one
            means = [sum(H[j, d] * means[j] for j in range(hubs)) for d in range(hubs)]
        cluster = means
        np.testing.assert_allclose(found.hubs[r * tau], cluster, rtol=0, atol=1e-10)


@pytest.mark.parametrize("tau", [1, 4])
def test_cooperative_sgd_mixes_single_workers_by_w(tau: int) -> None:
    network = HubNetwork.build(hubs=6, workers_per_hub=1, graph="ring")
    gradient, W, found = run(network, tau, q=1, K=200, rule="metropolis")
    np.testing.assert_allclose(network.a, 1 / 6)
    np.testing.assert_allclose(W, W.T)
    X = np.ones((DIMENSION, 6))
    for k in range(1, 201):
        G = np.column_stack([gradient(i, k, X[:, i]) for i in range(6)])
        X = (X - 0.1 * G) @ (W if k % tau == 0 else np.eye(6))
        np.testing.assert_allclose(found.workers[k], X.T, rtol=0, atol=1e-10)


def test_wait_for_all_is_local_sgd_on_a_slower_clock() -> None:
    # Slow workers take their tau steps too; only the slots at which rounds end differ.
    network = HubNetwork.build(hubs=1, workers_per_hub=4, rates=[1, 0.5, 0.3, 0.8])
    tau, seed = 5, 2
    clock = list(rounds(network, tau, 1, slots=300, seed=seed, wait_for_all=True))
    gradient, _, found = run(network, tau, 1, K=tau * len(clock))
    expected = local_sgd(gradient, 4, tau, len(clock))
    np.testing.assert_allclose(found.average[tau::tau], expected, rtol=0, atol=1e-10)
    for r in clock:
        length = int(r.end[0] - r.start[0])
        steps = [step_count(seed, i, r.number, length, network.p[i]) for i in range(4)]
        assert min(steps) == tau
    assert clock[-1].slot > tau * len(clock)
