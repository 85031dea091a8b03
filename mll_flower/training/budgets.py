"""Budgets: how many steps a worker may take in a round, and when each of them is due.

A simulated worker has a number of steps (`StepBudget`); a real one has tau slots of some seconds
and takes at most one step per slot (`TimeBudget`). A ClientApp gets its budget from `budget`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mll_flower.algorithm.coins import step_count

T = TypeVar("T")


@dataclass
class StepBudget:
    """A number of steps, such as the one that a simulated worker's coins give it.

    Parameters
    ----------
    steps : int
        Steps to take in this round.

    Attributes
    ----------
    taken : int
        Steps taken so far.
    """

    steps: int
    taken: int = field(default=0, init=False)

    def pace(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield batches until the steps are taken, starting again when the batches end."""
        if self.taken >= self.steps:
            return
        for batch in _cycle(batches):
            yield batch
            self.taken += 1
            # Checked here, not before: a batch that no step would use is never read.
            if self.taken >= self.steps:
                return


@dataclass
class TimeBudget:
    """A budget of real time: tau slots of some seconds, with at most one step per slot.

    Parameters
    ----------
    tau : int
        Slots in the round.
    slot : float
        Seconds per slot.
    clock, sleep : callable
        Return the present time in seconds, and wait; tests replace the real ones.

    Attributes
    ----------
    taken : int
        Steps taken so far.
    """

    tau: int
    slot: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    taken: int = field(default=0, init=False)

    def pace(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield at most one batch per slot, until the next step might end after the budget."""
        start = self.clock()
        longest, slot = 0.0, 0
        for batch in _cycle(batches):
            now = self.clock() - start
            begin = max(now, slot * self.slot)
            # Begin no step that would run past the budget if it took as long as the longest so
            # far: the reply must be in time.
            if slot >= self.tau or begin + longest > self.tau * self.slot:
                return
            if begin > now:
                self.sleep(begin - now)
            # max: (slot * seconds) / seconds may round to just below the slot.
            slot = max(slot, int(begin / self.slot)) + 1
            yield batch
            self.taken += 1
            longest = max(longest, self.clock() - start - begin)

    @property
    def rate(self) -> float:
        """The measured rate: steps taken over slots."""
        return self.taken / self.tau


@dataclass
class DeadlineBudget(TimeBudget):
    """A time budget that ends, at the latest, at a given time.

    Parameters
    ----------
    tau, slot, clock, sleep
        As in `TimeBudget`.
    until : float
        A time on ``clock``; no step is begun that may end after it.
    """

    until: float = math.inf

    def pace(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield at most one batch per slot, until the budget is spent or ``until`` is near."""
        longest = 0.0
        for batch in super().pace(batches):
            begin = self.clock()
            if begin + longest > self.until:
                return
            yield batch
            longest = max(longest, self.clock() - begin)


def budget(config: Mapping[str, Any]) -> StepBudget | TimeBudget:
    """Return the budget that a round's config gives a worker.

    In a ClientApp::

        budget = mll_flower.budget(msg.content["config"])
        for batch in budget.pace(trainloader):
            ...  # one step

    Parameters
    ----------
    config : Mapping
        The message's config: ``tau`` and ``slot-seconds`` for a budget of time; ``steps``,
        or ``tau`` alone, for that number of steps; ``tau`` with ``rate``, ``seed``, ``worker``
        and ``round`` for the number of steps that simulated coins give.
    """
    if "slot-seconds" in config:
        return TimeBudget(int(config["tau"]), float(config["slot-seconds"]))
    if "steps" in config:
        return StepBudget(int(config["steps"]))
    if "tau" in config and "rate" not in config:
        return StepBudget(int(config["tau"]))
    try:
        seed, worker, round, tau = (int(config[k]) for k in ("seed", "worker", "round", "tau"))
        return StepBudget(step_count(seed, worker, round, tau, float(config["rate"])))
    except KeyError as missing:
        raise ValueError(
            f"the config has no key {missing}: a budget needs 'tau' and 'slot-seconds', or "
            "'steps' or 'tau' alone, or 'tau', 'rate', 'seed', 'worker' and 'round'"
        ) from None


def _cycle(batches: Iterable[T]) -> Iterator[T]:
    passes = 0
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty and passes == 0:
            raise ValueError("there are no batches to train on: the worker has no data")
        if empty:  # an iterator that can be read only once
            return
        passes += 1
