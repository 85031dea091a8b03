"""What a strategy reports: about a round (who arrived, who was absent and why, how hubs mixed),
and at the end of a run.

A `RoundReport` goes to the ``on_round`` function that a user gives to a strategy; ``start``
returns a `MultiLevelResult`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from mll_flower.grids.absences import Absence


@dataclass(frozen=True)
class Arrival:
    """A reply that can be averaged.

    Parameters
    ----------
    node : int
        Id of the node that sent it.
    arrays : ArrayRecord
        The model in it.
    metrics : MetricRecord
        The metrics in it; empty if it has none.
    message : Message
        The whole reply.
    """

    node: int
    arrays: ArrayRecord
    metrics: MetricRecord
    message: Message


@dataclass(frozen=True)
class Absent:
    """A worker that was asked and counts as having taken no step in this round.

    Parameters
    ----------
    node : int
        Id of its node.
    cause : Absence
        The kind of cause.
    why : str
        What exactly happened.
    """

    node: int
    cause: Absence
    why: str


@dataclass(frozen=True)
class HubRound:
    """The workers that one hub asked in a round, in the order in which the hub sums them.

    Parameters
    ----------
    arrived : list[Arrival]
        Those whose replies are in the average.
    absent : list[Absent]
        Those whose replies are not.
    metrics : MetricRecord or None
        The average of the metrics of those who arrived; None if there is none.
    """

    arrived: list[Arrival]
    absent: list[Absent]
    metrics: MetricRecord | None = None


@dataclass(frozen=True)
class RoundReport:
    """What happened in a round; given to ``on_round`` after it.

    A report holds the replies of the round, with their models: keep what you need of it rather
    than all reports of a long run.

    Parameters
    ----------
    number : int
        1, 2, ..., counted from the start of training, across resumed runs.
    mixed : bool
        Whether the hubs mixed at the end of the round.
    hubs : list[HubRound]
        Arrivals, absences and metrics, one entry per hub.
    measure_spread : callable
        Computes ``spread``.
    silent : dict[str, str]
        Neighbours that took no part in the mixing, and why. Only from `GossipingHubStrategy`.
    column : dict[str, float]
        The weights with which the hub mixed, by hub id. Only from `GossipingHubStrategy`.
    evaluation : list of MetricRecord or None
        For each hub, the average of the metrics with which its workers evaluated after the round;
        None if nobody did. The list is filled in when the evaluation is over: ``on_round`` is
        called before it.
    """

    number: int
    mixed: bool
    hubs: list[HubRound]
    measure_spread: Callable[[], NDArray[np.float64]] = field(repr=False, compare=False)
    silent: dict[str, str] = field(default_factory=dict)
    column: dict[str, float] = field(default_factory=dict)
    evaluation: list[MetricRecord | None] = field(default_factory=list)

    @cached_property
    def spread(self) -> NDArray[np.float64]:
        """Distance of each hub's average z(d) from the averaged model u, before mixing.

        Computed when it is asked for: in large models it takes as long as an average.
        """
        return self.measure_spread()


HubMetrics = list[MetricRecord | None]
"""One entry per hub: the average of its workers' metrics; None if there is none."""


@dataclass(repr=False)
class MultiLevelResult(Result):
    """Flower's ``Result``, with the metrics of each hub.

    Parameters
    ----------
    train_metrics_hubs : dict[int, list[MetricRecord | None]]
        By round, one entry per hub: the average of the metrics that its workers sent with
        their models.
    evaluate_metrics_hubs : dict[int, list[MetricRecord | None]]
        By round, one entry per hub: the average of the metrics with which its workers evaluated.
    """

    train_metrics_hubs: dict[int, HubMetrics] = field(default_factory=dict)
    evaluate_metrics_hubs: dict[int, HubMetrics] = field(default_factory=dict)
