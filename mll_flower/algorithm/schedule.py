"""The simulated clock: in which slots the rounds of a run start and end, and when hubs mix.

Time is counted in slots. In Multi-Level Local SGD every round ends after tau slots, however many
steps each worker has taken. The methods that it is compared with (Local SGD, Hierarchical Local
SGD) wait for all workers: their rounds last as long as the slowest worker needs, on the same
clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mll_flower.algorithm.coins import slots_until
from mll_flower.algorithm.network import HubNetwork


@dataclass(frozen=True)
class Round:
    """One round of a simulated run.

    Parameters
    ----------
    number : int
        1, 2, ...
    start, end : ndarray
        The slots at which each hub starts and ends the round. Hubs wait for one another at a
        mixing, so the round after it starts at the same slot for all.
    mixes : bool
        Whether the hubs mix at the end of the round.
    """

    number: int
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    mixes: bool

    @property
    def slot(self) -> int:
        """The slot at which the last hub ends the round."""
        return int(self.end.max())


def rounds(
    network: HubNetwork,
    tau: int,
    q: int,
    slots: int,
    seed: int,
    wait_for_all: bool = False,
    slots_needed: Callable[[int, int, int], int] | None = None,
) -> Iterator[Round]:
    """Yield the rounds that end within ``slots`` slots.

    A deadline round lasts tau slots. A wait-for-all round of a hub lasts until its slowest
    worker has taken tau steps, and at a mixing all hubs wait for the slowest hub. How many slots
    worker i needs in round n is decided by the coins, or by ``slots_needed(i, n, tau)``.
    """
    check_periods(tau, q)
    now = np.zeros(network.hubs, dtype=np.int64)
    number = 0
    while True:
        number += 1
        mixes = number % q == 0
        lasts = np.full(network.hubs, tau, dtype=np.int64)
        if wait_for_all:
            for worker, (hub, p) in enumerate(zip(network.hub_of, network.p, strict=True)):
                if slots_needed is None:
                    needed = slots_until(seed, worker, number, tau, float(p))
                else:
                    needed = slots_needed(worker, number, tau)
                lasts[hub] = max(lasts[hub], needed)
        end = now + lasts
        if end.max() > slots:
            return
        yield Round(number, now, end, mixes)
        now = np.full_like(end, end.max()) if mixes else end


def check_periods(tau: int, q: int) -> None:
    """Raise ValueError unless tau and q are whole numbers of at least 1."""
    for name, value, meaning in (
        ("tau", tau, "slots between two sub-network averages"),
        ("q", q, "sub-network averages between two hub mixings"),
    ):
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}={value!r}: {meaning}; give a whole number of at least 1")
