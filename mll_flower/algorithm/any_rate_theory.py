"""A bound like the paper's that asks nothing of single rates, and how far rates pull the objective.

The paper's theorem (`mll_flower.algorithm.theory`) holds only if every rate is above
2 - sqrt(2). That comes from one step of its proof, which compares grad F(u) with
p(i) grad F(x(i)). Comparing it with grad F(x(i)) itself, under the weights a(i) p(i) / P with
P = sum of a(i) p(i), removes the condition. The bound here is this project's own, not the
paper's; docs/theory.md derives it, and tests hold it against measured runs. Its assumptions are
the paper's: one objective for all workers, unbiased mini-batches, independent coins.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.schedule import check_periods
from mll_flower.algorithm.theory import Problem, check_bound_arguments, gamma

FloatArray = NDArray[np.float64]


def rate_pull(network: HubNetwork) -> float:
    """Return chi^2 = P * (sum of a(i) / p(i)) - 1: how far rates can pull the objective.

    Without correction, u follows the gradient of sum of a(i) p(i) F_i / P, not of F, the sum of
    a(i) F_i. chi^2 is the chi-squared divergence of the shares a(i) from a(i) p(i) / P: the
    gradients of the two differ by at most chi times the standard deviation of the workers'
    gradients under a(i) p(i) / P. It is 0 if all rates are equal.
    """
    a, p = network.a, network.p
    return max(0.0, float((a @ p) * np.sum(a / p) - 1))


def any_rate_slack(
    network: HubNetwork, zeta: float, tau: int, q: int, step_size: float, problem: Problem
) -> FloatArray:
    """Return 1 minus the right side of the condition, per worker; it holds where not negative."""
    linear, quadratic = _condition(network, zeta, tau, q, problem)
    return 1 - linear * step_size - quadratic * step_size**2


def any_rate_step_size(
    network: HubNetwork, zeta: float, tau: int, q: int, problem: Problem
) -> float:
    """Return the largest step size that meets the condition for all workers; one always exists."""
    linear, quadratic = _condition(network, zeta, tau, q, problem)
    # The positive root of quadratic x^2 + linear x - 1, in the form without cancellation.
    return float(np.min(2 / (linear + np.sqrt(linear**2 + 4 * quadratic))))


def any_rate_bound(
    network: HubNetwork,
    zeta: float,
    tau: int,
    q: int,
    step_size: float,
    problem: Problem,
    slots: int | None = None,
) -> dict[str, float]:
    """Bound the mean squared gradient norm of the averaged model.

    Parameters
    ----------
    network, zeta, tau, q, step_size, problem, slots
        As in `mll_flower.algorithm.theory.bound`.

    Returns
    -------
    dict
        Four terms (``start``, ``noise``, ``mixing``, ``drift``) and ``total``. The bound holds
        only where `any_rate_slack` is not negative for any worker.
    """
    check_bound_arguments(zeta, tau, q, step_size, slots)
    a, p = network.a, network.p
    P, fastest = float(a @ p), float(p.max())
    L, sigma2, eta = problem.L, problem.sigma2, step_size
    inverse_k = 0.0 if slots is None else 1 / slots
    common = 2 * fastest * L**2 * eta**2 * sigma2
    terms = {
        "start": 2 * problem.gap / (eta * P) * inverse_k,
        "noise": sigma2 * eta * L * float(a**2 @ p) / P,
        "mixing": common
        * (q * tau) ** 3
        * max(1 / (q * tau) - inverse_k, 0.0)
        * (zeta**2 / (1 - zeta**2) + 2 * zeta / (1 - zeta) + zeta**2 / (1 - zeta) ** 2),
        "drift": common
        * ((2 - zeta) / (1 - zeta))
        * (tau**2 * (q - 1) * (2 * q - 1) / 6 + (tau - 1) * (2 * tau - 1) / 6),
    }
    return {**terms, "total": sum(terms.values())}


def _condition(
    network: HubNetwork, zeta: float, tau: int, q: int, problem: Problem
) -> tuple[FloatArray, float]:
    """Return the coefficients of 1 >= linear * eta + quadratic * eta^2, per worker."""
    check_periods(tau, q)
    a, p, L, beta = network.a, network.p, problem.L, problem.beta
    linear = L * (a * (beta + 1 - p) + p)
    quadratic = 2 * float(p.max()) * (beta + 1) * L**2 * q**2 * tau**2 * gamma(zeta)
    return linear, quadratic
