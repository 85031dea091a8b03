"""The workers' rates, for hubs that make up for them: given, or measured from the replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mll_flower.algorithm.corrections import Corrections, mean_rate, participation
from mll_flower.algorithm.network import HubNetwork

CUTOFF = 50
"""Rounds without a step after which a worker is believed to take part in one of so many."""


class Rates(Protocol):
    """What a hub must know of its workers' rates."""

    @property
    def mean(self) -> float:
        """P, the mean rate of the whole network."""

    def inverse_participation(self, worker: int) -> float:
        """Return 1 / pi(i): one over the probability of at least one step in a round."""

    def count(self, steps: Mapping[int, int], shares: Mapping[int, float]) -> None:
        """Learn P from the steps of a round, by worker; ``shares`` are a(i), up to a factor."""

    def observe(self, steps: Mapping[int, int]) -> None:
        """Learn who took part in a round, after it."""

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return what was learned, to be saved."""

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Go on from what was saved."""


class GivenRates(Rates):
    """The rates of a network that is known beforehand.

    Parameters
    ----------
    network : HubNetwork
        Whose rates they are.
    settings : Corrections
        The cap, and P if it is given.
    tau : int
        Slots per round.
    """

    def __init__(self, network: HubNetwork, settings: Corrections, tau: int) -> None:
        self._mean = mean_rate(network, settings)
        least = self._mean / settings.rate_cap
        self._inverse = 1 / participation(np.maximum(network.p, least), tau)

    @property
    def mean(self) -> float:
        """See `Rates.mean`."""
        return self._mean

    def inverse_participation(self, worker: int) -> float:
        """See `Rates.inverse_participation`."""
        return float(self._inverse[worker])

    def count(self, steps: Mapping[int, int], shares: Mapping[int, float]) -> None:
        """See `Rates.count`; there is nothing to learn."""

    def observe(self, steps: Mapping[int, int]) -> None:
        """See `Rates.observe`; there is nothing to learn."""

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `Rates.state`."""
        return {}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """See `Rates.restore`."""


class MeasuredRates(Rates):
    """Rates that are estimated from the replies.

    1 / pi(i) is the mean number of rounds from one with a step of the worker to the next, as in
    FedAU (Wang and Ji, 2024): after `CUTOFF` rounds without a step the count begins anew, so that
    a worker that is hardly ever there cannot get an unbounded weight. The estimate for a round
    comes from the rounds before it alone; it is 1 at first.

    Parameters
    ----------
    tau : int
        Slots per round.
    mean : float
        P, if it is given; 0 to measure it, which needs all workers of the network in one place.
    """

    def __init__(self, tau: int, mean: float = 0.0) -> None:
        self._tau, self._given = tau, mean
        self._share: dict[int, float] = {}
        # By worker: rounds seen, steps in them, intervals that ended, their rounds, the open one.
        self._seen: dict[int, list[int]] = {}

    @property
    def mean(self) -> float:
        """See `Rates.mean`; 1 as long as nobody has taken a step."""
        if self._given:
            return self._given
        total = sum(self._share.values())
        rates = {i: s[1] / (s[0] * self._tau) for i, s in self._seen.items() if s[0]}
        return sum(self._share[i] / total * rate for i, rate in rates.items()) or 1.0

    def inverse_participation(self, worker: int) -> float:
        """See `Rates.inverse_participation`."""
        _, _, intervals, rounds, _ = self._seen.get(worker, [0] * 5)
        return rounds / intervals if intervals else 1.0

    def count(self, steps: Mapping[int, int], shares: Mapping[int, float]) -> None:
        """See `Rates.count`."""
        for worker, taken in steps.items():
            self._share[worker] = shares[worker]
            seen = self._seen.setdefault(worker, [0] * 5)
            seen[0] += 1
            seen[1] += taken

    def observe(self, steps: Mapping[int, int]) -> None:
        """See `Rates.observe`."""
        for worker, taken in steps.items():
            seen = self._seen.setdefault(worker, [0] * 5)
            seen[4] += 1
            if taken or seen[4] == CUTOFF:
                seen[2] += 1
                seen[3] += seen[4]
                seen[4] = 0

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `Rates.state`."""
        if not self._seen:
            return {}
        return {
            "rates/workers": np.array(list(self._seen), np.uint64),
            "rates/seen": np.array(list(self._seen.values()), np.int64),
            "rates/shares": np.array([self._share[i] for i in self._seen]),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """See `Rates.restore`."""
        if "rates/workers" not in state:
            return
        workers = [int(i) for i in state["rates/workers"].tolist()]
        self._seen = dict(zip(workers, state["rates/seen"].tolist(), strict=True))
        self._share = dict(zip(workers, state["rates/shares"].tolist(), strict=True))
