"""What is known of one hub of a deployment: its last answer, and its rounds so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mll_flower.watching.source import rounds_per_minute

MOST_ROWS = 20_000
"""Rounds of a hub that are kept; the oldest go first."""

_ABSENT = 100  # absences of one round that are kept


@dataclass(frozen=True)
class AbsentWorker:
    """A worker that was absent from a round: its node, its number where that is known, and why."""

    node: str
    number: int | None
    cause: str
    why: str


@dataclass(frozen=True)
class HubRound:
    """A round of a hub; None for what the hub did not tell."""

    round: int
    time: float
    loss: float | None
    metric: float | None
    distance: float | None
    mixed: bool
    absent: tuple[AbsentWorker, ...]


class HubHistory:
    """A hub as its answers show it.

    Parameters
    ----------
    rounds : int
        Rounds of the whole run; a hub that claims more is not believed.
    workers : int
        Workers that the network file gives it.
    first : int
        Number of its first worker in the whole network, by which the hubs count them.
    """

    def __init__(self, rounds: int, workers: int, first: int = 0) -> None:
        self.total, self.workers, self.first = rounds, workers, first
        self.rows: dict[int, HubRound] = {}
        self.answers = False
        self.reason = self.phase = ""
        self.neighbours: dict[str, str] = {}
        self.mixing: int | None = None
        self.loss: float | None = None
        self.metric: tuple[str, float] | None = None
        self.arrived = 0
        self.newest = 0
        self._said = 0  # the hub's round by its own word
        self.last_news = 0.0
        self._numbers: dict[str, int] = {}  # of nodes; known once a worker has replied

    @property
    def over(self) -> bool:
        """Whether the hub has come to its end; it stops answering then."""
        return self.phase in ("finishing", "finished") or (
            not self.answers and self.newest >= self.total > 0
        )

    @property
    def asked_after(self) -> int:
        """The round after which the hub's rounds are not known here.

        A hub that has come back plays rounds again that are known already.
        """
        return min(max(self.rows, default=0), self._said)

    @property
    def last_distance(self) -> float | None:
        """How far the last mixing that is known moved the hub's model."""
        rows = reversed(self.rows.values())
        return next((row.distance for row in rows if row.distance is not None), None)

    def name_of(self, absent: AbsentWorker) -> str:
        """Return the number of a worker at its hub, or its node as long as that is not known."""
        number = self._numbers.get(absent.node, absent.number)
        if number is None:
            return f"node {absent.node}"
        known = self.first <= number < self.first + self.workers
        return str(number - self.first if known else number)

    def rounds_per_minute(self) -> float | None:
        """Return the rounds of the last minute or so; None if they are not known."""
        rows = list(self.rows.values())[-600:]
        return rounds_per_minute([row.round for row in rows], [row.time for row in rows])

    def take(self, answer: Mapping[str, Any], now: float) -> None:
        """Take an answer of `mll_flower.deployment.status.ask_hubs`."""
        self.answers = answer.get("reachable") is True
        self.reason = _text(answer.get("reason") or answer.get("error"), 300)
        if not self.answers:
            return
        before = self.newest, self.phase
        self.phase = _text(answer.get("phase"), 40)
        neighbours = answer.get("neighbours")
        entries = list(neighbours.items())[:200] if isinstance(neighbours, dict) else []
        self.neighbours = {_text(peer, 64): _text(outcome, 160) for peer, outcome in entries}
        self.mixing, self.loss = _whole(answer.get("mixing")), _number(answer.get("loss"))
        self.arrived = _whole(answer.get("workers")) or 0
        name = _text(answer.get("metric", "accuracy"), 40)
        value = _number(answer.get(name))
        if value is not None:
            self.metric = (name, value)
        rows = answer.get("rounds")
        for row in rows if isinstance(rows, list) else [answer]:
            self._add(row, now)
        number = _whole(answer.get("round"))
        if number is not None and 0 <= number <= self.total:
            self._said = number
            self.newest = max(number, max(self.rows, default=0))
        if (self.newest, self.phase) != before:
            self.last_news = now

    def _add(self, row: Any, now: float) -> None:
        number = _whole(row.get("round")) if isinstance(row, dict) else None
        if number is None or not 0 < number <= self.total:
            return
        time = _number(row.get("time"))
        absent = row.get("absent")
        entries = absent[:_ABSENT] if isinstance(absent, list) else []
        name = _text(row.get("metric", "accuracy"), 40)
        found = HubRound(
            round=number,
            # Clocks of hubs differ, but not by more than a day.
            time=time if time is not None and abs(time - now) < 366 * 86400 else now,
            loss=_number(row.get("loss")),
            metric=_number(row.get(name)),
            distance=_number(row.get("disagreement")),
            mixed=_whole(row.get("mixing")) is not None and "absent" in row,
            absent=tuple(_absent(entry) for entry in entries if isinstance(entry, dict)),
        )
        if len(self._numbers) < MOST_ROWS:
            self._numbers |= {a.node: a.number for a in found.absent if a.number is not None}
        if number in self.rows:
            del self.rows[number]  # a hub that has come back plays a round again: now the newest
        self.rows[number] = found
        while len(self.rows) > MOST_ROWS:
            del self.rows[next(iter(self.rows))]


def _absent(entry: Mapping[str, Any]) -> AbsentWorker:
    number = _whole(entry.get("worker"))
    node, cause = _text(entry.get("node"), 24), _text(entry.get("cause"), 40)
    return AbsentWorker(node, number, cause, _text(entry.get("why"), 300))


def _text(value: object, most: int) -> str:
    """Return what a hub has said as a short text without control characters."""
    text = "" if value is None else str(value)[:most]
    return "".join(c if c.isprintable() else " " for c in text)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e150 and math.isfinite(value) else None


def _whole(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None and abs(number) < 2**53 else None
