"""The sub-network average: what a hub makes of its workers' models at the end of a round.

    z(d) = sum over arrived v(i) x(i) + (sum over absent v(i)) y(d)

z(d) is the average of hub d, x(i) the model of worker i, v(i) its share of the hub's weights, and
y(d) the model that the hub sent. An absent worker counts as one that took no step: its share
stays with y(d). Shares never change because someone was slow. Under the other rule,
``renormalise``, the arrived shares are divided by their sum and y(d) has no part.

This is the only implementation. A hub whose workers are Flower clients of their own uses it on
their replies (`mll_flower.strategies.hub`). In a simulation one Flower client may host all
workers of a hub; it uses it on workers that it trains one after another
(`mll_flower.training.hub_rounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from mll_flower.models.layout import Flat
from mll_flower.models.sums import is_finite

AbsentRule = Literal["keep", "renormalise"]
ABSENT_RULES: tuple[AbsentRule, ...] = ("keep", "renormalise")

NOT_FINITE = "its model has a NaN or an infinity"
AVERAGE_NOT_FINITE = "the models are finite, but their average is not: the hub keeps its own"

Model = TypeVar("Model")
_Summand = TypeVar("_Summand", contravariant=True)


class WorkerAbsent(Exception):
    """Raised in place of a worker's model; the text says why there is none."""


class ModelSum(Protocol[_Summand]):
    """Adds models one by one: `mll_flower.models.sums.RunningSum` or ``RecordSum``."""

    def add(self, model: _Summand, factor: float) -> None:
        """Add a model times a factor."""

    def result(self) -> Flat:
        """Return the sum."""


@dataclass(frozen=True)
class SubnetworkAverage:
    """The outcome of a hub's round.

    Parameters
    ----------
    model : Flat or None
        z(d); None if nobody arrived, if those who did weigh nothing, or if the average is not
        finite: the hub keeps its model.
    absent : dict
        Place of each absent worker, counted from 0 in the order of the weights -> why.
    """

    model: Flat | None
    absent: dict[int, str] = field(default_factory=dict)


def subnetwork_average(
    sent: Model,
    weights: Sequence[float],
    model_of: Callable[[int], Model],
    absent_rule: AbsentRule,
    *,
    new_sum: Callable[[], ModelSum[Model]],
    finite: Callable[[Model], bool],
) -> SubnetworkAverage:
    """Average the models of a hub's workers, in their order.

    Models are searched for NaN and infinity only if their average is not finite, because the
    search costs about as much as the average. A worker whose model has one is then absent.

    Parameters
    ----------
    sent : Model
        y(d), the model that the hub sent.
    weights : Sequence[float]
        w(i) of each worker, or shares in that proportion; 0 for one that weighs nothing.
    model_of : callable
        ``model_of(place)``: the model of the worker at this place (0, 1, ...), valid until the
        next call; raises `WorkerAbsent` if there is none. A second call gives the same model.
    absent_rule : {"keep", "renormalise"}
        What becomes of the shares of absent workers.
    new_sum : callable
        Returns an empty sum of models of this kind.
    finite : callable
        Returns whether every number of a model is finite.
    """
    absent: dict[int, str] = {}
    check_each = False
    while True:
        factors, _ = absent_factors(weights, _arrived(weights, absent), absent_rule)
        places = [place for place in range(len(weights)) if place not in absent]
        absent_before = len(absent)
        total = new_sum()
        for place, factor in zip(places, factors, strict=True):
            try:
                model = model_of(place)
            except WorkerAbsent as reason:
                absent[place] = str(reason)
                continue
            if check_each and not finite(model):
                absent[place] = NOT_FINITE
                continue
            total.add(model, factor)
        if not any(w for place, w in enumerate(weights) if place not in absent):
            return SubnetworkAverage(None, absent)
        if absent_rule == "renormalise" and len(absent) > absent_before:
            continue  # the factors of those who arrived have changed
        if absent:
            _, kept = absent_factors(weights, _arrived(weights, absent), absent_rule)
            if kept:
                total.add(sent, kept)
        average = total.result()
        if is_finite(average):
            return SubnetworkAverage(average, absent)
        if check_each:
            everyone = dict.fromkeys(range(len(weights)), AVERAGE_NOT_FINITE)
            return SubnetworkAverage(None, {**everyone, **absent})
        check_each = True


def absent_factors(
    weights: Sequence[float], arrived: Sequence[bool], absent_rule: AbsentRule = "keep"
) -> tuple[list[float], float]:
    """Return the factors of the average when some of a hub's workers are absent.

    Parameters
    ----------
    weights : Sequence[float]
        w(i) of all the hub's workers.
    arrived : Sequence[bool]
        Which of them sent a model.
    absent_rule : {"keep", "renormalise"}
        Whether the absent workers' shares stay with the model that the hub sent, or the
        arrived shares are divided by their sum.

    Returns
    -------
    tuple[list[float], float]
        Factors of the arrived models, in order, and of the model that the hub sent.
        When nobody arrived, or only workers that weigh nothing, the hub's model stays, under
        either rule.
    """
    if absent_rule not in ABSENT_RULES:
        raise ValueError(f"absent={absent_rule!r}: choose one of {', '.join(ABSENT_RULES)}")
    present = [w for w, here in zip(weights, arrived, strict=True) if here]
    if not any(present):
        return [0.0] * len(present), 1.0
    if absent_rule == "renormalise":
        total = sum(present)
        return [w / total for w in present], 0.0
    total = sum(weights)
    missing = sum(w for w, here in zip(weights, arrived, strict=True) if not here)
    return [w / total for w in present], missing / total


def _arrived(weights: Sequence[float], absent: dict[int, str]) -> list[bool]:
    return [place not in absent for place in range(len(weights))]
