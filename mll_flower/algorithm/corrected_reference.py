"""Multi-Level Local SGD with the corrections that go past the paper, in plain NumPy, to be read.

With everything off this is Algorithm 1 (`mll_flower.algorithm.reference`). What each correction
is for is told in `mll_flower.algorithm.corrections`, and why it works in docs/theory.md. Nothing
here is fast; tests check that the fast implementation gives the same models up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mll_flower.algorithm.corrections import (
    Corrections,
    mean_rate,
    participation,
    safe_for_exact_diffusion,
    step_factors,
)
from mll_flower.algorithm.mixing import check_mixing
from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.schedule import check_periods

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class CorrectedHistory:
    """Models and corrections over time; index r holds the state after round r, 0 the start.

    Parameters
    ----------
    hubs : ndarray, (R + 1) x D x n
        y(d): the hub models.
    average : ndarray, (R + 1) x n
        u: the averaged model.
    hub_drift : ndarray, (R + 1) x D x n
        Y(d): what each hub adds to its gradients; zero without hub correction.
    worker_gradients : ndarray, (R + 1) x N x n
        c(i): each worker's estimate of its own gradient; zero without worker correction.
    """

    hubs: FloatArray
    average: FloatArray
    hub_drift: FloatArray
    worker_gradients: FloatArray


def corrected_mll_sgd(
    gradient: Callable[[int, int, FloatArray], ArrayLike],
    network: HubNetwork,
    H: ArrayLike,
    tau: int,
    q: int,
    step_size: float,
    coins: ArrayLike,
    x0: ArrayLike,
    corrections: Corrections,
    rate_in_hub: bool = False,
    half: Callable[[FloatArray], FloatArray] = lambda z: z.astype(np.float16).astype(np.float64),
) -> CorrectedHistory:
    """Run Multi-Level Local SGD with corrections.

    Parameters
    ----------
    gradient, network, H, tau, q, coins, x0
        As in `mll_flower.algorithm.reference.mll_sgd`.
    step_size : float
        eta.
    corrections : Corrections
        Which corrections are on.
    rate_in_hub : bool
        With ``rate = "inverse"``: whether the hub makes up for the rates, from the steps that
        its workers report (a deployment), or each worker with longer steps (a simulation).
    half : callable
        The rounding of ``precision = "half"``.
    """
    check_periods(tau, q)
    H = check_mixing(H, network.graph, network.b)
    if corrections.hub == "exact-diffusion":
        H = safe_for_exact_diffusion(H)
    theta = np.asarray(coins, dtype=bool)
    rounds, n = len(theta) // tau, np.asarray(x0).shape[-1]
    N, D, d, v = network.workers, network.hubs, network.hub_of, network.v
    inverse = corrections.rate == "inverse"
    P = mean_rate(network, corrections)
    tau_P = tau * P  # one constant of the whole network
    pi = participation(np.maximum(network.p, P / corrections.rate_cap), tau)
    eta = step_size * (np.ones(N) if rate_in_hub else step_factors(network, corrections))

    y = np.zeros((rounds + 1, D, n))
    Y, c = np.zeros((rounds + 1, D, n)), np.zeros((rounds + 1, N, n))
    y[0] = x0
    after_mixing, m = y[0].copy(), np.zeros((D, n))
    for r in range(1, rounds + 1):
        Y[r], c[r] = Y[r - 1], c[r - 1]
        # What a worker adds to its gradients: z(i), and with it its hub's Y(d).
        z_worker = np.zeros((N, n))
        added = np.zeros((N, n))
        if corrections.worker == "mtgc":
            z_worker = _hub_average(v[:, None] * c[r - 1], d, D)[d] - c[r - 1]
            added = z_worker + Y[r - 1][d]

        x = y[r - 1][d].copy()
        s = np.zeros(N)
        for k in range((r - 1) * tau, r * tau):
            for i in np.flatnonzero(theta[k]):
                x[i] -= eta[i] * (np.asarray(gradient(int(i), k + 1, x[i])) + added[i])
                s[i] += 1
        took = s > 0
        if corrections.worker == "mtgc":
            moved = (y[r - 1][d] - x)[took] / (eta * s)[took, None]
            c[r, took] = moved - added[took]

        # The sub-network average.
        if inverse and rate_in_hub:
            factor = np.zeros(N)
            factor[took] = tau_P * v[took] / (s[took] * pi[took])
            z = y[r - 1] + _hub_average(factor[:, None] * (x - y[r - 1][d]), d, D)
        else:
            z = _hub_average(v[:, None] * x, d, D)
        if corrections.worker == "none":  # otherwise Y(d) is in the workers' steps already
            S = np.full(D, tau_P) if inverse else np.bincount(d, v * s, D)
            z = z - step_size * S[:, None] * Y[r - 1]

        # Mixing: every q rounds.
        y[r] = z
        if r % q == 0:
            sent = half(z) if corrections.precision == "half" else z
            y_hat = z + H.T @ sent - sent  # H's columns sum to 1
            if corrections.hub == "exact-diffusion":
                Y[r] = Y[r - 1] + (z - y_hat) / (step_size * tau * q)
            y[r] = y_hat
            if corrections.outer == "slowmo":
                m = corrections.outer_momentum * m + (after_mixing - y_hat)
                y[r] = after_mixing - corrections.outer_rate * m
            after_mixing = y[r].copy()
    return CorrectedHistory(y, np.einsum("d,rdn->rn", network.b, y), Y, c)


def _hub_average(terms: FloatArray, hub_of: NDArray[np.int64], hubs: int) -> FloatArray:
    """Return the sum of the terms of each hub's workers."""
    total = np.zeros((hubs, terms.shape[1]))
    np.add.at(total, hub_of, terms)
    return total
