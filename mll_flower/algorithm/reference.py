"""Algorithm 1 of the paper in plain NumPy: Multi-Level Local SGD, to be read beside the paper.

In every slot some workers take an SGD step; every tau slots each hub averages its workers; every
q such averages the hubs mix through the matrix H. Castiglia, Das, Patterson: Multi-Level Local
SGD, ICLR 2021; the line numbers in the comments are those of the paper's Algorithm 1.

Nothing here is fast. Runs use the fast implementation in `mll_flower.training` and
`mll_flower.strategies`; tests check that it gives the same models up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mll_flower.algorithm.mixing import check_mixing
from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.schedule import check_periods

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class History:
    """Models over time; index k holds the state after slot k, index 0 the start.

    Parameters
    ----------
    workers : ndarray, (K + 1) x N x n
        x(i): the worker models.
    hubs : ndarray, (K + 1) x D x n
        y(d): the hub models.
    average : ndarray, (K + 1) x n
        u: the averaged model.
    """

    workers: FloatArray
    hubs: FloatArray
    average: FloatArray


def mll_sgd(
    gradient: Callable[[int, int, FloatArray], ArrayLike],
    network: HubNetwork,
    H: ArrayLike,
    tau: int,
    q: int,
    step_size: float | Callable[[int], float],
    coins: ArrayLike,
    x0: ArrayLike,
) -> History:
    """Run Multi-Level Local SGD.

    Parameters
    ----------
    gradient : callable
        ``gradient(i, k, x)``: worker i's mini-batch gradient at the model x in slot k
        (1, 2, ...). Called only when the worker takes a step.
    network : HubNetwork
        Hubs, workers, shares and hub graph.
    H : array, D x D
        Mixing matrix.
    tau, q : int
        Slots between two sub-network averages, and such averages between two hub mixings.
    step_size : float or callable
        eta: a number, or a function of the slot k.
    coins : array of bool, K x N
        theta: which workers take a step in which slot; one row per slot.
    x0 : array
        The model that all hubs start from, or one model per hub (D x n).

    Returns
    -------
    History
        The worker models, the hub models and the averaged model over time.
    """
    check_periods(tau, q)
    H = check_mixing(H, network.graph, network.b)
    theta = np.asarray(coins, dtype=bool)
    if theta.ndim != 2 or theta.shape[1] != network.workers:
        raise ValueError(f"coins of shape {theta.shape}: must be slots x {network.workers} workers")
    eta = step_size if callable(step_size) else lambda _: step_size
    x0 = np.asarray(x0, dtype=np.float64)
    K, N, D, n = len(theta), network.workers, network.hubs, x0.shape[-1]
    d, v = network.hub_of, network.v

    x, y, u = np.empty((K + 1, N, n)), np.empty((K + 1, D, n)), np.empty((K + 1, n))
    y[0] = x0  # line 1
    x[0] = y[0][d]
    u[0] = network.a @ x[0]
    for k in range(1, K + 1):  # line 2
        # Lines 4-6, where workers get their hub's model, are done at the end of the loop.
        x[k], y[k] = x[k - 1], y[k - 1]
        for i in np.flatnonzero(theta[k - 1]):  # lines 7-9
            x[k, i] -= eta(k) * np.asarray(gradient(int(i), k, x[k - 1, i]))
        if k % tau == 0:  # lines 10-12
            z = np.zeros((D, n))
            np.add.at(z, d, v[:, None] * x[k])
            # Lines 13-17: y(d) = sum over j of H[j, d] z(j); all hubs mix from the same z.
            y[k] = H.T @ z if k % (q * tau) == 0 else z
            x[k] = y[k][d]
        u[k] = network.a @ x[k]
    return History(x, y, u)
