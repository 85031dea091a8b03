"""Coins: which workers take a gradient step in which slot, and on which mini-batches.

In a slot worker i takes a gradient step with probability p(i). Everything random depends on
(run seed, worker, round) alone, so that a run gives the same numbers however its workers are
scheduled, packed into processes, or resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

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
