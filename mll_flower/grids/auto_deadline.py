"""A deadline that fits a hub's workers, learnt from when their replies arrived in the last rounds.

Each worker's next reply is expected by the median of its last arrival times plus some times their
median absolute deviation, and the deadline is that of the slowest worker. A round ends when all
have answered, so that a generous deadline costs time only when a worker fails. Hence

- a worker that has just missed a deadline gets a longer one: when it would have arrived is not
  known, only that it was later;
- a worker that has missed several in a row is no longer waited for, until it arrives again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median
from types import MappingProxyType

ROUNDS = 10
"""Arrivals of each worker that are looked at: the last ones."""

DEVIATIONS = 6.0
"""Median absolute deviations that the deadline is above the median."""

RESERVE, RESERVE_SHARE = 4.0, 0.15
"""Seconds, and share of the median, that the deadline is above the median at least: a worker stops
to train some seconds before the deadline, and must not stop early because all went as usual."""

GROWTH = 1.5
"""By this factor the deadline grows for a worker that has missed it."""

PATIENCE = 4
"""Deadlines in a row that a worker may miss before it is no longer waited for."""

# Seconds before the deadline from which an error reply means that the worker was too late: its
# SuperNode ends what is not ready in time.
_ENDED = 1.0


class AutoDeadline:
    """The deadline of a hub's next round.

    Parameters
    ----------
    least, most : float
        Bounds, in seconds. The first round has the longest: its times are not known yet.
    """

    def __init__(self, least: float, most: float) -> None:
        if not 0 < least <= most < math.inf:
            raise ValueError(
                f"least={least}, most={most}: both must be positive, and most at least as long"
            )
        self.least, self.most = least, most
        self.seconds = most
        """Seconds that the next round may last."""
        self._arrivals: dict[int, deque[float]] = {}
        self._missed: dict[int, int] = {}  # deadlines in a row
        self._first_missed: dict[int, float] = {}  # the first one of these, in seconds

    def observe(
        self,
        asked: Iterable[int],
        arrivals: Mapping[int, float],
        failures: Mapping[int, float] = MappingProxyType({}),
    ) -> float:
        """Learn from a round; return the deadline of the next one.

        Parameters
        ----------
        asked : Iterable[int]
            The workers that were asked, by any number that stays the same. A worker that is
            asked no more is forgotten.
        arrivals : Mapping[int, float]
            Seconds from the beginning of the round to the reply, of each worker that replied.
        failures : Mapping[int, float]
            The same, of each worker that replied with an error. One that fails early says
            nothing about how long its work takes.
        """
        asked = set(asked)
        if not asked:
            return self.seconds
        failed = {w for w, seconds in failures.items() if seconds < self.seconds - _ENDED}
        late = asked - arrivals.keys() - failed
        self._arrivals = {w: times for w, times in self._arrivals.items() if w in asked}
        self._first_missed = {w: d for w, d in self._first_missed.items() if w in asked}
        self._missed = {w: self._missed.get(w, 0) + (w in late) for w in asked}
        for worker in late:
            self._first_missed.setdefault(worker, self.seconds)
        for worker in asked & arrivals.keys():
            self._missed[worker] = 0
            times = self._arrivals.setdefault(worker, deque(maxlen=ROUNDS))
            if arrivals[worker] > self._first_missed.pop(worker, math.inf):
                times.clear()  # it has become slower, and will not be as quick as before
            times.append(arrivals[worker])
        wanted = max((self._wanted(worker) for worker in asked), default=0.0)
        # If nobody has been waited for, the times of those who once arrived are still the best.
        self.seconds = min(self.most, max(self.least, wanted or self._of_all()))
        return self.seconds

    def _wanted(self, worker: int) -> float:
        """Return the seconds that a worker needs; 0 if it is not waited for."""
        missed = self._missed[worker]
        if missed > PATIENCE:
            return 0.0
        expected = _expected(self._arrivals.get(worker, ()))
        return max(expected, GROWTH * self.seconds) if missed else expected

    def _of_all(self) -> float:
        known = [_expected(times) for times in self._arrivals.values()]
        return max(known, default=self.most)


def _expected(times: Iterable[float]) -> float:
    """Return by when a worker with these arrival times is expected; 0 without any."""
    known = list(times)
    if not known:
        return 0.0
    middle = median(known)
    deviation = median(abs(t - middle) for t in known)
    return middle + max(DEVIATIONS * deviation, RESERVE, RESERVE_SHARE * middle)
