"""Prune candidates by theory, before anything is played.

The bound of `mll_flower.algorithm.any_rate_theory` has four terms. Of two candidates that both wait
or both do not, the noise is the same. If one of them makes more progress per second (the first
term), and has neither a larger term of mixing nor of drift, it is the better one whatever the
constants of the problem are: the other is dominated. What is left is ordered by the bound at its
best step size, with all constants 1, and only the first are played. Theory assumes that all workers
draw from one distribution, so of each graph the best with q = 1 and the best with q > 1 are played
whatever it says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mll_flower.algorithm.any_rate_theory import any_rate_bound
from mll_flower.algorithm.theory import Problem
from mll_flower.planning.candidates import Candidate, Costs, network_of
from mll_flower.timing.clock import FloatArray

# The length of the run for which the bound orders candidates: slots without any transfer.
_SLOTS = 1000
_STEP_SIZES = np.geomspace(1e-4, 1.0, 41)
# A term that is larger by less than this factor counts as equal.
_EQUAL = 1 + 1e-9


@dataclass(frozen=True)
class Theory:
    """What theory says of a candidate.

    Parameters
    ----------
    candidate : Candidate
        The candidate.
    seconds_per_step : float
        Seconds per step of an average worker.
    bytes_per_step : float
        Bytes sent meanwhile.
    mixing, drift : float
        The bound's terms of disagreement, without the factors that all candidates share.
    bound : float
        The bound at the best step size, in a time that is the same for all.
    """

    candidate: Candidate
    seconds_per_step: float
    bytes_per_step: float
    mixing: float
    drift: float
    bound: float

    def dominates(self, other: Theory, bytes_count: bool) -> bool:
        """Return whether this candidate is at least as good in everything, and better in one."""
        ours, theirs = self._costs(bytes_count), other._costs(bytes_count)
        no_worse = all(a <= b * _EQUAL for a, b in zip(ours, theirs, strict=True))
        better = any(a * _EQUAL < b for a, b in zip(ours, theirs, strict=True))
        return no_worse and better

    def _costs(self, bytes_count: bool) -> list[float]:
        costs = [self.seconds_per_step, self.mixing, self.drift]
        return [*costs, self.bytes_per_step] if bytes_count else costs


def judge(candidate: Candidate, costs: Costs, weights: FloatArray) -> Theory:
    """Work out the terms of a candidate."""
    network = network_of(candidate, costs, weights)
    rate = float(network.a @ network.p)
    per_slot = costs.seconds_per_slot(candidate)
    problem = Problem(L=1.0, sigma2=1.0, beta=0.0, gap=1.0)
    # A zeta of 1 - 1e-16 would divide by zero.
    value = min(candidate.zeta, 1 - 1e-9)
    shape = (network, value, candidate.tau, candidate.q)
    terms = any_rate_bound(*shape, 1.0, problem)
    slots = max(1, round(_SLOTS * costs.clock.slot / per_slot))
    best = min(any_rate_bound(*shape, float(eta), problem, slots)["total"] for eta in _STEP_SIZES)
    rounds = candidate.q
    return Theory(
        candidate,
        per_slot / rate,
        costs.bytes_after(candidate, rounds) / (rounds * candidate.tau * rate),
        terms["mixing"],
        terms["drift"],
        best,
    )


def prune(
    judged: list[Theory], most: int, bytes_count: bool
) -> tuple[list[Candidate], dict[Candidate, str]]:
    """Return the candidates to play, best bound first, and why the others are not played.

    Parameters
    ----------
    judged : list of Theory
        Candidates that all wait, or all do not.
    most : int
        How many are played at most.
    bytes_count : bool
        Whether bytes are limited, so that one that sends more may not dominate.
    """
    ordered = sorted(judged, key=lambda theory: theory.bound)
    why: dict[Candidate, str] = {}
    first_of = {_kind(theory.candidate): theory for theory in reversed(ordered)}
    for theory in ordered:
        if theory is first_of[_kind(theory.candidate)]:
            continue
        better = [other for other in ordered if other.dominates(theory, bytes_count)]
        if better:
            names = min(better, key=lambda other: other.bound).candidate.name
            why[theory.candidate] = f"theory: {names} is better in every term"
    left = [theory.candidate for theory in ordered if theory.candidate not in why]
    played = first_and_best(left, most, _kind)
    for candidate in left:
        if candidate not in played:
            why[candidate] = f"theory: {most} others have lower bounds"
    return played, why


def _kind(candidate: Candidate) -> tuple[str, bool]:
    return candidate.graph, candidate.q > 1


def first_and_best(
    ordered: list[Candidate],
    most: int,
    kind: Callable[[Candidate], object] = lambda candidate: candidate.graph,
) -> list[Candidate]:
    """Return the first of each kind and then the best, at most so many, in their order.

    Parameters
    ----------
    ordered : list of Candidate
        Best first.
    most : int
        How many are wanted.
    kind : callable
        What tells kinds apart: the graph by default.
    """
    first_of = {kind(candidate): candidate for candidate in reversed(ordered)}
    first = [candidate for candidate in ordered if candidate is first_of[kind(candidate)]]
    others = [candidate for candidate in ordered if candidate not in first]
    chosen = (first + others)[:most]
    return [candidate for candidate in ordered if candidate in chosen]
