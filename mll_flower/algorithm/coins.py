"""Coins: which workers take a gradient step in which slot, and on which mini-batches.

In a slot worker i takes a gradient step with probability p(i). Everything random depends only
on (run seed, worker, round), so a run gives the same numbers however its workers are scheduled,
packed into processes, or resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mll_flower.algorithm._random_streams import Streams, stream

# The two independent random streams that a worker has in each round.
_COINS, _BATCHES = 0, 1


def coins(seed: int, worker: int, round: int, tau: int, p: float) -> NDArray[np.bool_]:
    """Toss a Bernoulli(p) coin for each of the round's tau slots: does the worker take a step?"""
    return stream(seed, worker, round, _COINS).random(tau) < p


def step_count(seed: int, worker: int, round: int, tau: int, p: float) -> int:
    """Count the steps that the worker takes in the round's tau slots: Binomial(tau, p)."""
    return tau if p >= 1 else int(np.count_nonzero(coins(seed, worker, round, tau, p)))


def step_counts(
    seed: int, workers: Sequence[int], rounds: Sequence[int], tau: int, p: Sequence[float]
) -> NDArray[np.int64]:
    """Return `step_count` of several workers, with rates p, in several rounds.

    Returns
    -------
    ndarray
        The counts, with one row per round and one column per worker.
    """
    streams = Streams(seed, _COINS)
    drawn = np.zeros((len(rounds), len(workers), tau))  # zeros: rate 1 needs no coins
    for round, rows in zip(rounds, drawn, strict=True):
        for worker, rate, row in zip(workers, p, rows, strict=True):
            if rate < 1:
                streams(worker, round).random(out=row)
    heads = drawn < np.asarray(p, dtype=np.float64)[:, None]
    counts: NDArray[np.int64] = np.add.reduce(heads, axis=2, dtype=np.int64)
    return counts


def batch_rng(seed: int, worker: int, round: int) -> np.random.Generator:
    """Return the random generator of the worker's mini-batches in the round."""
    return stream(seed, worker, round, _BATCHES)


def batch_rngs(seed: int) -> Callable[[int, int], np.random.Generator]:
    """Return a cheaper form of `batch_rng` for many workers and rounds.

    Returns
    -------
    callable
        ``rngs(worker, round)``: the generator of `batch_rng`, valid only until the next call.
    """
    return Streams(seed, _BATCHES)


def slots_until(seed: int, worker: int, round: int, steps: int, p: float) -> int:
    """Count the slots that the worker needs for ``steps`` steps, on the coins of `coins`."""
    if p >= 1:
        return steps
    rng = stream(seed, worker, round, _COINS)
    slots = taken = 0
    while True:
        # All chunks are from one stream, so the first tau coins are those of a deadline round.
        heads = np.flatnonzero(rng.random(steps) < p)
        if taken + heads.size >= steps:
            return slots + int(heads[steps - taken - 1]) + 1
        taken += heads.size
        slots += steps
