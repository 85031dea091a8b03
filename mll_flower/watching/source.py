"""What a live page shows, and where it comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["run", "sweep", "deployment"]
Phase = Literal["waiting", "running", "finished", "stopped", "trouble"]

FLOATS = 24_000
"""Largest number of values that the curves of one chart have in all: more could not be seen."""


@dataclass(frozen=True)
class View:
    """What a page shows at one moment.

    Parameters
    ----------
    title, subtitle : str
        What is watched.
    phase : str
        Whether it waits to begin, runs, has ended or is in trouble.
    status : str
        One line: what it does, how far it has got, how fast.
    done, total : int
        How far it has got; 0 and 0 if that is not known.
    parts : dict[str, str]
        Pieces of HTML, by the place on the page; all texts in them are escaped.
    still, moving : dict
        The data of the script: what stays (the graph), and what grows (the curves). Empty if
        nothing is known yet.
    age : float
        Seconds since the last news when this was made.
    """

    title: str
    subtitle: str = ""
    phase: Phase = "waiting"
    status: str = ""
    done: int = 0
    total: int = 0
    parts: dict[str, str] = field(default_factory=dict)
    still: dict[str, Any] = field(default_factory=dict)
    moving: dict[str, Any] = field(default_factory=dict)
    age: float = 0.0


class Source(ABC):
    """Something that can be watched."""

    kind: Kind
    pause: float = 0.5
    """Seconds between two looks."""

    @abstractmethod
    def look(self) -> View | None:
        """Return what there is to show; None if nothing has changed since the last look.

        Raises ValueError or OSError, with a message for the reader, if it cannot be read now.
        """


def stable_pick(number: int, most: int) -> Sequence[int]:
    """Return at most about ``most`` of the indices below ``number``, with the first and the last.

    Every second, fourth, eighth... one: as the number grows, those that are shown stay, so that a
    curve does not flicker.
    """
    stride = 1
    while number > most * stride:
        stride *= 2
    chosen = list(range(0, number, stride))
    return chosen if not chosen or chosen[-1] == number - 1 else [*chosen, number - 1]


def rounds_per_minute(rounds: Sequence[int], seconds: Sequence[float]) -> float | None:
    """Return how many rounds a minute has had lately; None if that is not known yet."""
    if len(rounds) < 2:
        return None
    first = next(i for i in range(len(rounds)) if seconds[i] >= seconds[-1] - 60.0)
    first = min(first, len(rounds) - 2)
    passed = seconds[-1] - seconds[first]
    return 60.0 * (rounds[-1] - rounds[first]) / passed if passed > 0 else None
