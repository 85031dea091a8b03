"""One hub: its model, its workers' weights, and the average of its sub-network (rule 1)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from mll_flower.averaging import AbsentRule, absent_factors, average_records, combine, is_finite
from mll_flower.collector import Absence, absence_of
from mll_flower.hub_aggregation import in_dtypes_of
from mll_flower.layout import Flat, Layout, Vector, array_view


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
        Rule 6: what happens to the shares of absent workers.
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
        result = HubRound()
        order = {node: place for place, node in enumerate(self.nodes)}
        for reply in sorted(replies, key=lambda r: order.get(r.metadata.src_node_id, len(order))):
            usable = self._read(reply)
            if isinstance(usable, Arrival):
                result.arrived.append(usable)
            else:
                result.absent.append(usable)
        if self.strategy is not None:  # its state must never see a NaN
            self._drop_not_finite(result)
        average = self._sum(round, result)
        # A strategy is asked once a round: its state moves, and it may empty the replies.
        if self.strategy is None and not is_finite(average):
            # Only now is it worth looking through every model for the one that spoils it.
            self._drop_not_finite(result)
            average = self._sum(round, result)
        if is_finite(average):
            self.model = average
        else:
            why = "the models are finite, but their average is not: the hub keeps its own"
            result.absent += [Absent(a.node, Absence.NOT_FINITE, why) for a in result.arrived]
            result.arrived = []
        return result

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

    def _sum(self, round: int, result: HubRound) -> Flat:
        """z(d) = sum over arrived v(i) x(i) + (sum over absent v(i)) y(d)."""
        if not result.arrived:
            return self.model
        # In the workers' order, whoever is absent: the same sums to the last bit.
        here = {a.node for a in result.arrived}
        asked = here | {a.node for a in result.absent}
        nodes = [node for node in self.nodes if node in asked]
        weights = [self.weight_of(node) for node in nodes]
        factors, own = absent_factors(weights, [n in here for n in nodes], self.absent_rule)
        if self.strategy is not None:
            messages = [a.message for a in result.arrived]
            arrays, _ = self.strategy.aggregate_train(round, messages)
            if arrays is None:
                return self.model
            average = self.layout.flatten(in_dtypes_of(self.layout, arrays))
            return combine([average, self.model], [1 - own, own]) if own else average
        records: list[Mapping[str, Array | Vector]] = [a.arrays for a in result.arrived]
        if own:
            records.append(self.layout.arrays(self.model))
            factors.append(own)
        return average_records(self.layout, records, factors)

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

    def _drop_not_finite(self, result: HubRound) -> None:
        for arrival in list(result.arrived):
            if not is_finite(self.layout.flatten(arrival.arrays)):
                why = "its model has a NaN or an infinity"
                result.arrived.remove(arrival)
                result.absent.append(Absent(arrival.node, Absence.NOT_FINITE, why))


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
