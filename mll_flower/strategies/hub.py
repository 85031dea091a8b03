"""One hub: its model, its workers' weights, and the average of its sub-network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from mll_flower.grids.absences import Absence, absence_of
from mll_flower.models.layout import Flat, Layout, Vector, array_view
from mll_flower.models.subnetwork_average import (
    AVERAGE_NOT_FINITE,
    NOT_FINITE,
    AbsentRule,
    WorkerAbsent,
    absent_factors,
    subnetwork_average,
)
from mll_flower.models.sums import RecordSum, is_finite, sum_models
from mll_flower.strategies.inner_strategy import in_dtypes_of

Record = Mapping[str, Array | Vector]


@dataclass(frozen=True)
class Arrival:
    """A reply that can be averaged."""

    node: int
    arrays: ArrayRecord
    metrics: MetricRecord
    message: Message


@dataclass(frozen=True)
class Absent:
    """A worker that counts as having taken no step in this round, and why."""

    node: int
    cause: Absence
    why: str


@dataclass
class HubRound:
    """What a round brought to a hub."""

    arrived: list[Arrival] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)


class Hub:
    """A hub of the network.

    Parameters
    ----------
    layout : Layout
        How its model is laid out.
    model : Flat
        y(d), the model to start from.
    weighted_by_key : str or None
        Metric in a reply that is its worker's weight; None when weights are given, or all 1.
    absent : {"keep", "renormalise"}
        What happens to the shares of absent workers.
    strategy : Strategy, optional
        A Flower strategy whose ``aggregate_train`` takes the v-average's place.
    weights : Mapping[int, float], optional
        w(i) by node id, when they are given and not learned from replies.
    """

    def __init__(
        self,
        layout: Layout,
        model: Flat,
        weighted_by_key: str | None,
        absent: AbsentRule = "keep",
        strategy: Strategy | None = None,
        weights: Mapping[int, float] | None = None,
    ) -> None:
        self.layout = layout
        self.model = model
        self.weighted_by_key = weighted_by_key
        self.absent_rule = absent
        self.strategy = strategy
        self.nodes: list[int] = []  # its workers, in the order in which they are summed
        self.weights: dict[int, float] = dict(weights or {})
        self.usual_weight = 1.0  # of a worker in the network, for hubs that know none yet
        self._weight = 1.0

    def average(self, round: int, replies: Iterable[Message]) -> HubRound:
        """Set the hub's model to z(d), from the replies of those who were asked.

        A worker that was not asked (sampling) has no part in the round; one that was asked
        and sent nothing usable is absent.
        """
        arrived: dict[int, Arrival] = {}
        absent: dict[int, Absent] = {}
        for reply in replies:
            usable = self._read(reply)
            if isinstance(usable, Arrival):
                arrived[usable.node] = usable
            else:
                absent[usable.node] = usable
        # In the workers' order, whoever is absent: the same sums to the last bit.
        asked = [node for node in self.nodes if node in arrived or node in absent]
        if self.strategy is None:
            average, gone = self._weighted_average(asked, arrived, absent)
        else:
            average, gone = self._aggregate(self.strategy, round, asked, arrived)
        for node, why in gone.items():
            absent.setdefault(node, Absent(node, Absence.NOT_FINITE, why))
        if average is not None:
            self.model = average
        return HubRound(
            [arrived[node] for node in asked if node not in absent],
            [absent[node] for node in asked if node in absent],
        )

    def _weighted_average(
        self, asked: list[int], arrived: Mapping[int, Arrival], absent: Mapping[int, Absent]
    ) -> tuple[Flat | None, dict[int, str]]:
        """Return the sub-network average, and who is absent from it."""

        def model_of(place: int) -> Record:
            node = asked[place]
            if node in absent:
                raise WorkerAbsent(absent[node].why)
            return arrived[node].arrays

        sent: Record = self.layout.arrays(self.model)
        average = subnetwork_average(
            sent,
            [self.weight_of(node) for node in asked],
            model_of,
            self.absent_rule,
            lambda: RecordSum(self.layout),
            lambda record: is_finite(self.layout.flatten(record)),
        )
        return average.model, {asked[place]: why for place, why in average.absent.items()}

    def _aggregate(
        self, strategy: Strategy, round: int, asked: list[int], arrived: Mapping[int, Arrival]
    ) -> tuple[Flat | None, dict[int, str]]:
        """Let the inner strategy aggregate; the shares of absent workers stay with the hub's model.

        It is asked once per round: its state moves, and it may empty the replies. And its
        state must never see a NaN, so that models are looked through first.
        """
        gone = {
            node: NOT_FINITE
            for node, arrival in arrived.items()
            if not is_finite(self.layout.flatten(arrival.arrays))
        }
        here = [node for node in asked if node in arrived and node not in gone]
        if not here:
            return None, gone
        weights = [self.weight_of(node) for node in asked]
        _, kept = absent_factors(weights, [node in here for node in asked], self.absent_rule)
        arrays, _ = strategy.aggregate_train(round, [arrived[node].message for node in here])
        if arrays is None:
            return None, gone
        average = self.layout.flatten(in_dtypes_of(self.layout, arrays))
        if kept:
            average = sum_models([average, self.model], [1 - kept, kept])
        if is_finite(average):
            return average, gone
        return None, {**dict.fromkeys(here, AVERAGE_NOT_FINITE), **gone}

    @property
    def weight(self) -> float:
        """The sum of the weights of the hub's workers; of the last ones while it has none."""
        if self.nodes:
            self._weight = sum(self.weight_of(node) for node in self.nodes)
        return self._weight

    def weight_of(self, node: int) -> float:
        """w(i); until a worker's weight is known, the mean of the known ones."""
        if node in self.weights:
            return self.weights[node]
        return sum(self.weights.values()) / len(self.weights) if self.weights else self.usual_weight

    def _read(self, reply: Message) -> Arrival | Absent:
        node = reply.metadata.src_node_id
        if reply.has_error():
            return Absent(node, *absence_of(reply))
        content = reply.content
        if len(content.array_records) != 1:
            count = len(content.array_records)
            return Absent(node, Absence.NO_MODEL, f"{count} ArrayRecords, expected one")
        arrays = next(iter(content.array_records.values()))
        mismatch = self.layout.mismatch(arrays) or _unreadable(arrays)
        if mismatch:
            return Absent(node, Absence.WRONG_SHAPE, mismatch)
        metrics = next(iter(content.metric_records.values()), MetricRecord())
        if self.weighted_by_key is not None:
            if len(content.metric_records) > 1:
                why = f"{len(content.metric_records)} MetricRecords, expected one with the weight"
                return Absent(node, Absence.NO_WEIGHT, why)
            weight = metrics.get(self.weighted_by_key)
            if not isinstance(weight, (int, float)) or not 0 < weight < math.inf:
                why = f"metric {self.weighted_by_key!r} is {weight!r}, expected a positive number"
                return Absent(node, Absence.NO_WEIGHT, why)
            self.weights[node] = weight
        return Arrival(node, arrays, metrics, reply)


def _unreadable(arrays: ArrayRecord) -> str | None:
    """Say which array does not hold what it claims; None if all do."""
    for name, array in arrays.items():
        try:
            vector = array_view(array)
        except (ValueError, SyntaxError, IndexError) as error:
            return f"{name!r} cannot be read: {error}"
        claimed = np.dtype(array.dtype).newbyteorder("=")  # as `array_view` reads it
        if vector.dtype != claimed or vector.size != math.prod(array.shape):
            return f"{name!r} holds {vector.size} {vector.dtype}, not {array.shape} {array.dtype}"
    return None
