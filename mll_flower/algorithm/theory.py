"""The paper's convergence bound and its condition on the step size.

Castiglia, Das, Patterson: Multi-Level Local SGD, ICLR 2021, main theorem. ``mll-flower network``
and the report show both.

Symbols as in the paper: L is the Lipschitz constant of the gradient; beta and sigma^2 bound the
variance of mini-batch gradients, E|g - grad F|^2 <= beta |grad F|^2 + sigma^2;
zeta is the second largest eigenvalue modulus of H, and Gamma, a function of zeta (`gamma`), is a
factor of the condition's last term. There is one condition per worker, with its rate p.

Two places follow the paper's proof where its theorem departs from it:

* Gamma's first term is 1 / (1 - zeta^2), as in the proof; the theorem prints
  zeta / (1 - zeta^2), which is smaller and does not follow.
* The last term of the step-size condition has the factor 8 = 4 (p (beta - 1) + 2) at beta = 1. The
  proof drops p (beta - 1), which is safe only for beta <= 1; here it is kept for beta > 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.schedule import check_periods

FloatArray = NDArray[np.float64]

SLOWEST_RATE = 2 - math.sqrt(2)
"""At or below this rate no step size meets the theorem's condition."""


@dataclass(frozen=True)
class Problem:
    """Constants of the objective that the theorem uses.

    Parameters
    ----------
    L : float
        Lipschitz constant of the gradient.
    sigma2 : float
        sigma^2, the part of the mini-batch variance that does not vanish with the gradient.
    beta : float
        The part of the mini-batch variance that grows with the squared gradient norm.
    gap : float
        F(x_1) - F_inf: how far the loss at the start is above its lower bound.
    """

    L: float = 1.0
    sigma2: float = 1.0
    beta: float = 0.0
    gap: float = 1.0

    def __post_init__(self) -> None:
        for name in ("L", "sigma2", "beta", "gap"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0) or (name == "L" and value == 0):
                raise ValueError(f"{name}={value}: must be a finite number, not negative; L > 0")


def gamma(zeta: float) -> float:
    """Gamma = 1 / (1 - zeta^2) + 2 / (1 - zeta) + zeta / (1 - zeta)^2."""
    _check_zeta(zeta)
    return 1 / (1 - zeta**2) + 2 / (1 - zeta) + zeta / (1 - zeta) ** 2


def step_size_slack(
    network: HubNetwork, zeta: float, tau: int, q: int, step_size: float, problem: Problem
) -> FloatArray:
    """Return the left side of the condition minus its right side, per worker.

    The condition holds for a worker whose value is not negative.
    """
    constant, linear, quadratic = _condition(network, zeta, tau, q, problem)
    return constant - linear * step_size - quadratic * step_size**2


def largest_step_size(
    network: HubNetwork, zeta: float, tau: int, q: int, problem: Problem
) -> float | None:
    """Return the largest step size that meets the condition for all workers; None if none does."""
    constant, linear, quadratic = _condition(network, zeta, tau, q, problem)
    if np.any(constant <= 0):
        return None
    # The positive root of quadratic x^2 + linear x - constant, in the form that does not
    # subtract two nearly equal numbers.
    root = np.sqrt(linear**2 + 4 * quadratic * constant)
    return float(np.min(2 * constant / (linear + root)))


def explain_condition(network: HubNetwork) -> str:
    """Return a sentence: whether some step size can meet the condition, and why."""
    slow = np.flatnonzero(network.p <= SLOWEST_RATE)
    if not slow.size:
        return "every rate is above 2 - sqrt(2) = 0.586, so a small enough step size meets it"
    worker = int(slow[np.argmin(network.p[slow])])
    p = network.p[worker]
    return (
        f"no step size meets it: worker {worker} has the rate {p:g} <= 2 - sqrt(2) = 0.586, "
        f"where 4 p - p^2 - 2 = {4 * p - p**2 - 2:.3g} is not positive while the right side is "
        f"({slow.size} of {network.workers} workers). The theorem then promises nothing; it is "
        "conservative, and training may still converge"
    )


def bound(
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
    network : HubNetwork
        Shares and rates of the workers.
    zeta : float
        zeta of the mixing matrix.
    tau, q : int
        Slots between two sub-network averages, and such averages between two mixings.
    step_size : float
        eta.
    problem : Problem
        Constants of the objective.
    slots : int, optional
        K. Without it, the limit for K to infinity.

    Returns
    -------
    dict
        The theorem's four terms (``start``, ``noise``, ``mixing``, ``drift``) and ``total``.
        The bound holds only where `step_size_slack` is not negative for any worker.
    """
    check_bound_arguments(zeta, tau, q, step_size, slots)
    L, sigma2, eta = problem.L, problem.sigma2, step_size
    P = float(network.a @ network.p)
    inverse_k = 0.0 if slots is None else 1 / slots
    common = 4 * L**2 * eta**2 * sigma2 * P
    terms = {
        "start": 2 * problem.gap / eta * inverse_k,
        "noise": sigma2 * eta * L * float(network.a**2 @ network.p),
        "mixing": common
        * (q * tau) ** 3
        * max(1 / (q * tau) - inverse_k, 0.0)
        * (zeta**2 / (1 - zeta**2) + 2 * zeta / (1 - zeta) + 1 / (1 - zeta) ** 2),
        "drift": common
        * ((2 - zeta) / (1 - zeta))
        * (tau**2 * (q - 1) * (2 * q - 1) / 6 + (tau - 1) * (2 * tau - 1) / 6),
    }
    return {**terms, "total": sum(terms.values())}


def check_bound_arguments(
    zeta: float, tau: int, q: int, step_size: float, slots: int | None
) -> None:
    """Raise ValueError if a bound has no meaning for these values."""
    check_periods(tau, q)
    _check_zeta(zeta)
    if not 0 < step_size < math.inf:
        raise ValueError(f"step_size={step_size}: must be positive and finite")
    if slots is not None and slots < 1:
        raise ValueError(f"slots={slots}: must be at least 1; leave it out for the limit")


def _condition(
    network: HubNetwork, zeta: float, tau: int, q: int, problem: Problem
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the coefficients of constant >= linear * eta + quadratic * eta^2, per worker."""
    check_periods(tau, q)
    p, a, L, beta = network.p, network.a, problem.L, problem.beta
    constant = 4 * p - p**2 - 2
    linear = L * (a * p * (beta + 1) - a * p**2 + p**2)
    spread = 4 * (np.maximum(p * (beta - 1), 0.0) + 2)
    quadratic = spread * L**2 * q**2 * tau**2 * gamma(zeta)
    return constant, linear, quadratic


def _check_zeta(zeta: float) -> None:
    if not 0 <= zeta < 1:
        raise ValueError(f"zeta={zeta}: must be at least 0 and below 1 (is the graph connected?)")
