"""What a strategy reports about a round: who arrived, who was absent and why, and how hubs mixed.

A `RoundReport` goes to the ``on_round`` function that a user gives to a strategy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
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
    """

    arrived: list[Arrival]
    absent: list[Absent]


@dataclass(frozen=True)
class RoundReport:
    """What happened in a round; given to ``on_round`` after it.

    Parameters
    ----------
    number : int
        1, 2, ..., counted from the start of training, across resumed runs.
    mixed : bool
        Whether the hubs mixed at the end of the round.
    hubs : list[HubRound]
        Arrivals and absences, one entry per hub.
    spread : ndarray
        Distance of each hub's average z(d) from the averaged model u, before mixing.
    silent : dict[str, str]
        Neighbours that took no part in the mixing, and why. Only from `GossipingHubStrategy`.
    column : dict[str, float]
        The weights with which the hub mixed, by hub id. Only from `GossipingHubStrategy`.
    """

    number: int
    mixed: bool
    hubs: list[HubRound]
    spread: NDArray[np.float64]
    silent: dict[str, str] = field(default_factory=dict)
    column: dict[str, float] = field(default_factory=dict)
