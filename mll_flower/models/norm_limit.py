"""A limit for how far a model may be from another one: a number, or a multiple of what is usual.

A hub uses it on its workers' replies (`mll_flower.strategies.reply_limits`) and on its
neighbours' models (`mll_flower.gossip.protocol`).
"""

from __future__ import annotations

import math
import re
import statistics
from collections import deque
from collections.abc import Iterable
from typing import Any

_MULTIPLE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*x\s*")


class NormLimit:
    """The largest norm that is accepted.

    Parameters
    ----------
    given : float or str
        The largest norm itself, or a multiple such as ``"5x"`` of the median of the norms that
        were seen last. A norm above the limit counts in the median as the limit, so that a few
        large ones move it next to nothing, and what has really grown is accepted after a time.
        Norms of 0 (a worker that took no step) do not count.
    name : str
        What the limit is called, for errors.
    keep : int
        How many norms the median is of.

    Raises
    ------
    ValueError
        If it is neither.
    """

    def __init__(self, given: float | str, name: str = "limit", keep: int = 64) -> None:
        self.given = given
        self._seen: deque[float] = deque(maxlen=keep)
        self._norm, self._multiple = _parse(given, name)

    def bound(self, present: Iterable[float] = (), stand_in: float = math.inf) -> float:
        """Return the largest norm that is accepted now.

        Parameters
        ----------
        present : Iterable[float]
            Norms that are to be judged together, which count in the median, too.
        stand_in : float
            What to take in place of the median while no norm is known.
        """
        if self._multiple is None:
            return self._norm
        known = [*self._seen, *_usable(present)]
        return self._multiple * (statistics.median_low(known) if known else stand_in)

    def remember(self, norms: Iterable[float], bound: float) -> None:
        """Note norms that were judged by this bound."""
        if self._multiple is not None and math.isfinite(bound):
            self._seen.extend(min(norm, bound) for norm in norms if norm > 0)
        elif self._multiple is not None:
            self._seen.extend(_usable(norms))


def check_norm_limit(name: str, value: Any) -> None:
    """Raise ValueError unless a value is a limit for a norm, or None for no limit."""
    if value is not None:
        _parse(value, name)


def _parse(given: Any, name: str) -> tuple[float, float | None]:
    """Return the norm, and the multiple or None."""
    if isinstance(given, str) and (match := _MULTIPLE.fullmatch(given)):
        multiple = float(match[1])
        if multiple > 1:
            return math.inf, multiple
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if number and 0 < given < math.inf:
        return float(given), None
    raise ValueError(
        f"{name}={given!r}: give a positive number, or a multiple of the running median that is "
        'more than 1, such as "5x"'
    )


def _usable(norms: Iterable[float]) -> list[float]:
    return [norm for norm in norms if 0 < norm < math.inf]
