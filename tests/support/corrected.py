"""Simulated runs with corrections, computed again by the readable algorithm in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mll_flower.algorithm.coins import coins
from mll_flower.algorithm.corrected_reference import CorrectedHistory, corrected_mll_sgd
from mll_flower.algorithm.mixing import mixing_matrix
from mll_flower.config import RunConfig
from tests.support.simulated import Batches, network_of

ALL_ON = {
    "rate_correction": "inverse",
    "hub_correction": "exact-diffusion",
    "worker_correction": "mtgc",
    "outer": "slowmo",
    "outer_momentum": 0.3,
    "gossip_precision": "half",
}


def corrected_run(
    config: RunConfig, absent: Callable[[int, int], bool] = lambda worker, round: False
) -> CorrectedHistory:
    """Run the readable algorithm on the run's coins and mini-batches.

    ``absent(worker, round)`` says who is absent: it counts as having taken no step.
    """
    network, batches, tau = network_of(config), Batches(config), config.tau
    schedule = config.schedule()
    theta = np.ones((len(schedule) * tau, network.workers), dtype=bool)
    if not config.wait_for_all:
        for i, p in enumerate(network.p):
            drawn = [coins(config.seed, i, r.number, tau, float(p)) for r in schedule]
            theta[:, i] = np.concatenate(drawn)

    for r in schedule:
        for i in range(network.workers):
            if absent(i, r.number):
                theta[(r.number - 1) * tau : r.number * tau, i] = False

    def gradient(i: int, k: int, x: np.ndarray) -> np.ndarray:
        rounds_before = (k - 1) // tau
        step = int(theta[rounds_before * tau : k - 1, i].sum())
        return batches.gradient(i, rounds_before + 1, step, x)

    h = mixing_matrix(network.graph, network.b, config.mixing)
    x0 = np.zeros(batches.x.shape[1] + 1)
    eta = config.learning_rate
    return corrected_mll_sgd(
        gradient, network, h, tau, config.q, eta, theta, x0, config.corrections
    )
