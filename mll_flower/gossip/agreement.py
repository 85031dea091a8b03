"""What neighbouring hubs must agree on before they mix: the terms of the run, and where it is.

`differences` says in words in what two hubs' terms differ (tau, q, the learning rate, versions...).
`Pace` bounds the number of mixings that a neighbour can have reached: a hub that is behind
continues at its neighbours' round, and not on the word of one whose number cannot be true.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

Terms = Mapping[str, bool | int | float | str]
"""What a hub takes part in, by name."""

_SHOWN = 3  # differences that are named
_LENGTH = 40  # characters of a value that are shown

# A neighbour may be one mixing ahead when two hubs meet, and each end rounds down.
_SLACK = 2


def differences(own: Terms, theirs: object) -> str:
    """Return in what a neighbour's terms differ from a hub's own; empty if in nothing.

    Parameters
    ----------
    own : Terms
        This hub's terms.
    theirs : object
        What the neighbour has sent as its terms. Only what both of them state is compared.
    """
    if not isinstance(theirs, Mapping):
        return ""
    found = [
        f"{name} is {_shown(value)} here and {_shown(theirs[name])} there"
        for name, value in own.items()
        if name in theirs and theirs[name] != value
    ]
    more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(found[:_SHOWN]) + more


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LENGTH else f"{text[:_LENGTH]}..."


class Pace:
    """How far neighbours can be, from where they were when this hub last met them.

    Parameters
    ----------
    seconds : float
        Seconds that the time between two mixings lasts at least; 0 bounds nothing.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"pace={seconds}: give seconds, at least 0")
        self.seconds = seconds
        self._start: tuple[int, float] | None = None
        self._met: dict[str, tuple[int, float]] = {}

    def begin(self, mixing: int, seconds_ago: float = 0.0) -> None:
        """Note where the run was when this hub began, or was stopped; only the first call counts.

        Parameters
        ----------
        mixing : int
            Number of the mixing.
        seconds_ago : float
            How long ago that was.
        """
        if self._start is None:
            self._start = mixing, time.monotonic() - max(0.0, seconds_ago)

    def meet(self, peer: str, mixing: int) -> None:
        """Note that a neighbour has taken part in this mixing now."""
        self._met[peer] = mixing, time.monotonic()

    def furthest(self, peer: str) -> int | None:
        """Return the newest mixing that a neighbour can have reached; None if that is unknown."""
        known = self._met.get(peer, self._start)
        if known is None or self.seconds == 0:
            return None
        mixing, when = known
        return mixing + int((time.monotonic() - when) / self.seconds) + _SLACK

    def doubt(self, peer: str, mixing: int) -> str:
        """Return why a neighbour's number cannot be true; empty if it can."""
        furthest = self.furthest(peer)
        if furthest is None or mixing <= furthest:
            return ""
        claim = str(mixing) if mixing < 10**9 else "beyond 10^9"
        return (
            f"claims mixing {claim}, but cannot be past {furthest} yet: its network file, its "
            "checkpoint or its clock is another one"
        )
