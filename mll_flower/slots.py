"""Time in slots: coins, step counts, simulated clocks, and budgets for real workers.

In a slot worker i takes a gradient step with probability p(i). Everything random here
depends on (run seed, worker, round) alone, so a run gives the same numbers however its
workers are scheduled, packed or resumed (rule 4).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from mll_flower.network import HubNetwork

T = TypeVar("T")

# Which of a worker's independent random streams in a round is meant.
_COINS, _BATCHES = 0, 1


_ZEROS = (0, 0, 0, 0)


class _Key(ISeedSequence):
    """A Philox key as it is: hashing a seed, or drawing one, would cost more than its use."""

    def __init__(self, *words: int) -> None:
        self.words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[Any]:
        return np.array(self.words, dtype=np.uint64)


def _key(seed: int, worker: int, round: int, purpose: int) -> tuple[int, int]:
    # Philox is a keyed counter: distinct keys give independent streams.
    if not (0 <= seed < 1 << 64 and 0 <= worker < 1 << 31 and 0 <= round < 1 << 32):
        raise ValueError(
            f"seed={seed}, worker={worker}, round={round}: they must be from 0 to 2**64 - 1, "
            "2**31 - 1 and 2**32 - 1"
        )
    return seed, purpose << 63 | worker << 32 | round


def _stream(seed: int, worker: int, round: int, purpose: int) -> np.random.Generator:
    key = _Key(*_key(seed, worker, round, purpose))
    return np.random.Generator(np.random.Philox(key))  # type: ignore[arg-type]


class _Streams:
    """The streams of `_stream`, all from one generator: to set it anew is cheaper than to make it.

    A stream is good until the next one is asked for.
    """

    def __init__(self, seed: int, purpose: int) -> None:
        self._seed, self._purpose = seed, purpose
        self._generator = _stream(seed, 0, 0, purpose)
        self._bits = self._generator.bit_generator
        self._start: dict[str, Any] = {"counter": _ZEROS}
        self._state = {
            "bit_generator": "Philox",
            "state": self._start,
            "buffer": _ZEROS,
            "buffer_pos": len(_ZEROS),  # all used up: the first draw fills it
            "has_uint32": 0,
            "uinteger": 0,
        }

    def __call__(self, worker: int, round: int) -> np.random.Generator:
        self._start["key"] = _key(self._seed, worker, round, self._purpose)
        self._bits.state = self._state
        return self._generator


def coins(seed: int, worker: int, round: int, tau: int, p: float) -> NDArray[np.bool_]:
    """Bernoulli(p) for each of the round's tau slots: does the worker take a step?"""
    return _stream(seed, worker, round, _COINS).random(tau) < p


def step_count(seed: int, worker: int, round: int, tau: int, p: float) -> int:
    """Count the steps that the worker takes in the round's tau slots: Binomial(tau, p)."""
    return tau if p >= 1 else int(np.count_nonzero(coins(seed, worker, round, tau, p)))


def step_counts(
    seed: int, workers: Sequence[int], rounds: Sequence[int], tau: int, p: Sequence[float]
) -> NDArray[np.int64]:
    """`step_count` of several workers, with rates p, in several rounds: [rounds, workers]."""
    streams = _Streams(seed, _COINS)
    drawn = np.zeros((len(rounds), len(workers), tau))  # zeros: rate 1 needs no coins
    for round, rows in zip(rounds, drawn, strict=True):
        for worker, rate, row in zip(workers, p, rows, strict=True):
            if rate < 1:
                streams(worker, round).random(out=row)
    landed = drawn < np.asarray(p, dtype=np.float64)[:, None]
    counts: NDArray[np.int64] = np.add.reduce(landed, axis=2, dtype=np.int64)
    return counts


def batch_rng(seed: int, worker: int, round: int) -> np.random.Generator:
    """Random generator of the worker's mini-batches in the round."""
    return _stream(seed, worker, round, _BATCHES)


def batch_rngs(seed: int) -> Callable[[int, int], np.random.Generator]:
    """`batch_rng` for many workers and rounds, cheaper.

    Returns
    -------
    callable
        ``rngs(worker, round)``: as from `batch_rng`, but good only until the next call.
    """
    return _Streams(seed, _BATCHES)


def slots_until(seed: int, worker: int, round: int, steps: int, p: float) -> int:
    """Slots that the worker needs for ``steps`` steps, on the coins of `coins`."""
    if p >= 1:
        return steps
    rng = _stream(seed, worker, round, _COINS)
    slots = taken = 0
    while True:
        # Chunks of one stream: the first tau coins are those of a deadline round.
        landed = np.flatnonzero(rng.random(steps) < p)
        if taken + landed.size >= steps:
            return slots + int(landed[steps - taken - 1]) + 1
        taken += landed.size
        slots += steps


@dataclass(frozen=True)
class Round:
    """One round of a simulated run.

    Parameters
    ----------
    number : int
        1, 2, ...
    start, end : ndarray
        The slot at which each hub starts and ends the round. After a mixing that hubs
        wait for, the next start is the same for all.
    mixes : bool
        Whether the hubs mix at its end.
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
    network: HubNetwork, tau: int, q: int, slots: int, seed: int, wait_for_all: bool = False
) -> Iterator[Round]:
    """Rounds that end within ``slots`` slots, on the simulated clock.

    A deadline round lasts tau slots. A wait-for-all round of a hub lasts until its
    slowest worker has taken tau steps, and at a mixing all hubs wait for the slowest
    (rule 7).
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
                needed = slots_until(seed, worker, number, tau, float(p))
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


@dataclass
class StepBudget:
    """A budget of steps: what a simulated worker's coins gave it.

    Parameters
    ----------
    steps : int
        Steps to take in this round.
    """

    steps: int
    taken: int = field(default=0, init=False)

    def pace(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield batches, from the start again at their end, until the steps are taken."""
        if self.taken >= self.steps:
            return
        for batch in _cycle(batches):
            yield batch
            self.taken += 1
            # Here, not at the top: no batch is read that no step will use.
            if self.taken >= self.steps:
                return


@dataclass
class TimeBudget:
    """A budget of real time: tau slots of some seconds, at most one step a slot (rule 5).

    Parameters
    ----------
    tau : int
        Slots in the round.
    slot : float
        Seconds a slot.
    clock, sleep : callable
        Seconds now, and waiting; other than the real ones only in tests.
    """

    tau: int
    slot: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    taken: int = field(default=0, init=False)

    def pace(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield a batch a slot, until the next step would end after the budget."""
        start = self.clock()
        longest, slot = 0.0, 0
        for batch in _cycle(batches):
            now = self.clock() - start
            begin = max(now, slot * self.slot)
            # A step that would run past the budget is not begun: the reply must be in time.
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


def budget(config: Mapping[str, Any]) -> StepBudget | TimeBudget:
    """Budget that a round's config gives a worker.

    In a ClientApp::

        budget = mll_flower.slots.budget(msg.content["config"])
        for batch in budget.pace(trainloader):
            ...one step...

    Parameters
    ----------
    config : Mapping
        The message's config: ``tau`` and ``slot-seconds`` for a budget of time; ``steps``,
        or ``tau`` alone, for so many steps; ``tau`` with ``rate``, ``seed``, ``worker`` and
        ``round`` for the steps that simulated coins give.
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
