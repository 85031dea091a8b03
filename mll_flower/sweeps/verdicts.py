"""Verdicts: whether runs with several seeds support a claim.

A claim becomes one number per seed, its *margin*, which is positive when that seed supports it.
A claim *holds* if the 95 % confidence interval of the mean margin (Student's t over the seeds)
lies above zero, *does not hold* if it lies below, and is *not resolved at this scale* otherwise.
Set-ups are compared seed by seed: the same seed gives the same initial model and, where set-ups
divide the data alike, the same data.
One seed has no spread and resolves nothing, except whether an accuracy exceeds a fixed number:
there the interval is that of a proportion of the test images.

A claim that is not resolved has an *outlook*: the number of seeds at which its interval would
exclude zero, if the mean and the spread of its margins stayed what they are; or that the margin is
so near zero that its sign is not known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from mll_flower.sweeps.setups import KINDS, Claim

HOLDS, FAILS, OPEN = "holds", "does not hold", "not resolved at this scale"

MOST_SEEDS = 100
"""A margin that would need more seeds than these counts as zero."""

Values = Mapping[str, Sequence[float]]
"""For each set-up, by name, one number per seed."""


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, and the numbers that decide it.

    Parameters
    ----------
    claim : str
        The claim as a sentence.
    metric : str
        What was measured.
    left, right : str
        Labels of the two numbers that are compared.
    left_mean, left_sd, right_mean, right_sd : float
        Mean and standard deviation of each number over the seeds (nan for one seed).
    margin, error : float
        Mean margin and half the width of its 95 % confidence interval.
    seeds : int
        Number of seeds.
    verdict : str
        `HOLDS`, `FAILS` or `OPEN`.
    """

    claim: str
    metric: str
    left: str
    right: str
    left_mean: float
    left_sd: float
    right_mean: float
    right_sd: float
    margin: float
    error: float
    seeds: int
    verdict: str

    @property
    def text(self) -> str:
        """The verdict, with its outlook if it is open."""
        if self.verdict != OPEN:
            return self.verdict
        return f"{OPEN}: {outlook(self.margin, self.error, self.seeds)}"


def judge(
    claim: Claim, values: Values, labels: Mapping[str, str], test_rows: int | None = None
) -> Verdict:
    """Decide whether a claim holds.

    Parameters
    ----------
    claim : Claim
        The claim.
    values : Mapping
        For each set-up its numbers in the claim's metric, one per seed, in the same order.
    labels : Mapping
        For each set-up its label.
    test_rows : int, optional
        Number of images on which an accuracy was measured.
    """
    sides = {name: np.asarray(values[name], dtype=np.float64) for name in claim.names}
    left, right, margins, compared = _compare(claim, sides, labels)
    seeds = len(margins)
    mean = float(np.mean(margins))
    error = interval(margins)
    if claim.kind == "above" and seeds == 1 and test_rows:
        share = float(left[0])
        error = 1.96 * math.sqrt(max(share * (1 - share), 0.0) / test_rows)
    verdict = OPEN
    if math.isfinite(mean) and math.isfinite(error) and abs(mean) > error:
        verdict = HOLDS if mean > 0 else FAILS
    return Verdict(
        claim.text,
        claim.metric,
        *compared,
        float(np.mean(left)),
        _sd(left),
        float(np.mean(right)),
        _sd(right),
        mean,
        error,
        seeds,
        verdict,
    )


def seeds_needed(margin: float, error: float, seeds: int) -> int | None:
    """Return the number of seeds whose 95 % interval would exclude zero.

    Parameters
    ----------
    margin, error : float
        Mean margin and half the width of its interval, which are taken to stay: the mean as it is,
        and the standard deviation that the width implies.
    seeds : int
        Number of seeds that gave them.

    Returns
    -------
    int or None
        None if more than `MOST_SEEDS` are needed, or the spread is not known (one seed).
    """
    if seeds < 2 or not math.isfinite(margin) or not math.isfinite(error):
        return None
    sd = error * math.sqrt(seeds) / _quantile(seeds)
    for number in range(2, MOST_SEEDS + 1):
        if _quantile(number) * sd / math.sqrt(number) < abs(margin):
            return number
    return None


def outlook(margin: float | None, error: float | None, seeds: int) -> str:
    """Say what would resolve a claim that is not resolved.

    Parameters
    ----------
    margin, error, seeds
        As in `seeds_needed`; None for a number that is not finite.
    """
    if margin is None or not math.isfinite(margin):
        return "a run diverged"
    if seeds < 2 or error is None or not math.isfinite(error):
        return "one seed shows no spread"
    number = seeds_needed(margin, error, seeds)
    if number is None:
        return f"the margin is at zero: its sign would need more than {MOST_SEEDS} seeds"
    return f"about {number} seeds would resolve it"


def _compare(
    claim: Claim, sides: Mapping[str, np.ndarray], labels: Mapping[str, str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[str, str]]:
    """Return the two numbers and the margin for each seed, and the labels of the numbers."""
    first = sides[claim.left[0]]
    if claim.kind == "above":
        bound = np.full_like(first, claim.threshold)
        return first, bound, first - bound, (labels[claim.left[0]], "the bound")
    other = sides[claim.right[0]]
    names = (labels[claim.left[0]], labels[claim.right[0]])
    if claim.kind == "lower":
        return first, other, other - first, names
    if claim.kind == "higher":
        return first, other, first - other, names
    if claim.kind == "nearer":
        aim, target = sides[claim.target], labels[claim.target]
        near, far = np.abs(first - aim), np.abs(other - aim)
        return near, far, far - near, (f"{names[0]} to {target}", f"{names[1]} to {target}")
    if claim.kind == "similar":
        group = np.stack([sides[name] for name in claim.left])
        spread, gap = np.ptp(group, axis=0), np.abs(group.mean(axis=0) - other)
        return spread, gap, gap - spread, ("largest difference among them", f"to {names[1]}")
    if claim.kind == "within-noise":
        change, noise = np.abs(first - other), np.full_like(other, _sd(other))
        return change, noise, noise - change, (f"{names[0]}, change", f"{names[1]}, sd of seeds")
    raise ValueError(f"a claim of kind {claim.kind!r} is not known: use {', '.join(KINDS)}")


def interval(numbers: np.ndarray, level: float = 0.95) -> float:
    """Return half the width of the mean's confidence interval; nan for one number."""
    return _quantile(len(numbers), level) * _sd(numbers) / math.sqrt(len(numbers))


def _quantile(number: int, level: float = 0.95) -> float:
    """Return how many standard errors of the mean of so many numbers reach a level, either way."""
    return float(stdtrit(number - 1, (1 + level) / 2)) if number > 1 else math.nan


def _sd(numbers: np.ndarray) -> float:
    return float(np.std(numbers, ddof=1)) if len(numbers) > 1 else math.nan
