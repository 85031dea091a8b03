"""Verdicts: whether runs with several seeds support a claim.

A claim becomes one number per seed, its *margin*, which is positive when that seed supports it.
A claim *holds* if the 95 % confidence interval of the mean margin (Student's t over the seeds)
lies above zero, *does not hold* if it lies below, and is *not resolved at this scale* otherwise.
Set-ups are compared seed by seed: the same seed gives the same initial model and, where set-ups
divide the data alike, the same data.
One seed has no spread and resolves nothing, except whether an accuracy exceeds a fixed number:
there the interval is that of a proportion of the test images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from experiments.figures import KINDS, Claim

HOLDS, FAILS, OPEN = "holds", "does not hold", "not resolved at this scale"

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
    sides = {name: np.asarray(values[name], dtype=np.float64) for name in _names(claim)}
    left, right, margins, compared = _compare(claim, sides, labels)
    seeds = len(margins)
    mean = float(np.mean(margins))
    error = math.nan
    if seeds > 1:
        error = float(stats.t.ppf(0.975, seeds - 1) * stats.sem(margins))
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


def _names(claim: Claim) -> list[str]:
    return [*claim.left, *claim.right, *([claim.target] if claim.target else [])]


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
    raise ValueError(f"a claim of kind {claim.kind!r} is not known: use {', '.join(KINDS)}")


def _sd(numbers: np.ndarray) -> float:
    return float(np.std(numbers, ddof=1)) if len(numbers) > 1 else math.nan
