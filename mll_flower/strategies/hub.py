"""One hub on a Flower grid: its model, its workers and their weights, and its average.

The strategies of this package hold one `Hub` per hub of the network (`GossipingHubStrategy`
has one in all) and give it the replies of its workers at the end of each round.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from logging import WARNING

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log

from mll_flower.grids.absences import Absence, absence_of
from mll_flower.models._average_and_mix import Summands
from mll_flower.models.layout import Flat, Layout, Vector, array_view
from mll_flower.models.subnetwork_average import (
    AVERAGE_NOT_FINITE,
    AbsentRule,
    WorkerAbsent,
    absent_factors,
    subnetwork_average,
)
from mll_flower.models.sums import RecordSum, is_finite, sum_models
from mll_flower.strategies.inner_replies import make_alike
from mll_flower.strategies.inner_strategy import node_minimums, restore_dtypes
from mll_flower.strategies.reply_limits import MAX_WEIGHT, ReplyLimits, UpdateNorms, oversized
from mll_flower.strategies.reports import Absent, Arrival, HubRound

Record = Mapping[str, Array | Vector]
_NO_LIMITS = ReplyLimits()


@dataclass
class Received:
    """What a hub got from its workers in a round.

    Parameters
    ----------
    asked : list of int
        The nodes that were asked, in the hub's order.
    arrived : dict
        Node -> its reply, if that can be read; also of some who turn out to be absent.
    absent : dict
        Node -> why it is absent.
    claimed : dict
        Node -> the weight that its reply brings.
    """

    asked: list[int]
    arrived: dict[int, Arrival]
    absent: dict[int, Absent]
    claimed: dict[int, float]

    def weights(self) -> dict[int, float]:
        """Return the weights of those who are not absent."""
        return {node: w for node, w in self.claimed.items() if node not in self.absent}

    def outcome(self) -> HubRound:
        """Return who arrived and who did not."""
        return HubRound(
            [self.arrived[node] for node in self.asked if node not in self.absent],
            [self.absent[node] for node in self.asked if node in self.absent],
        )


class Hub:
    """A hub of the network.

    Its workers' node ids are in ``nodes``, in the order in which their models are summed, and
    their weights w(i) in ``weights``, by node id. The strategy that makes the hub fills in both.

    Parameters
    ----------
    layout : Layout
        Names, shapes and dtypes of its model.
    model : Flat
        y(d), the model to start from.
    weighted_by_key : str or None
        The metric of a reply that holds its worker's weight; None if replies hold no weight.
    absent : {"keep", "renormalise"}
        What happens to the shares of absent workers.
    inner_strategy : Strategy, optional
        A strategy of Flower's whose ``aggregate_train`` replaces the weighted average.
    limits : ReplyLimits
        How far the workers are believed.
    """

    def __init__(
        self,
        layout: Layout,
        model: Flat,
        weighted_by_key: str | None,
        absent: AbsentRule = "keep",
        inner_strategy: Strategy | None = None,
        limits: ReplyLimits = _NO_LIMITS,
    ) -> None:
        self.layout = layout
        self.model = model
        self.weighted_by_key = weighted_by_key
        self.absent_rule = absent
        self.inner_strategy = inner_strategy
        self.inner_minimums = node_minimums(inner_strategy)
        self.limits = limits
        self._norms = UpdateNorms(layout, limits.max_update_norm)
        self.has_new_model = False  # whether the last round changed it
        self.nodes: list[int] = []
        self.weights: dict[int, float] = {}
        self.usual_weight = 1.0  # the network's mean weight, for a hub that knows no worker's
        self.last_weight: float | None = None  # the last sum that was positive

    @property
    def weight(self) -> float:
        """Sum of the workers' weights, always positive.

        A hub that has lost all its workers, or whose workers all weigh nothing, keeps its last
        sum; if it never had one, it counts as one worker of the usual weight.
        """
        total = sum(self.weight_of(node) for node in self.nodes)
        if total > 0 and self._has_reports:
            self.last_weight = total
        elif total > 0:
            return total
        return self.usual_weight if self.last_weight is None else self.last_weight

    @property
    def reported_weight(self) -> float:
        """The same from what the workers have reported, and 0 as long as none has reported any.

        For a hub that knows nothing of the other hubs' weights, and hence no usual one. Before the
        first report, a ``last_weight`` that was given to the hub counts.
        """
        return self.weight if self._has_reports else self.last_weight or 0.0

    @property
    def _has_reports(self) -> bool:
        """Whether a worker has reported a positive weight, or none has to."""
        return self.weighted_by_key is None or any(self.weights.values())

    def weight_of(self, node: int) -> float:
        """Return w(i); for a worker whose weight is not known yet, the mean of the known ones."""
        if node in self.weights:
            return self.weights[node]
        return sum(self.weights.values()) / len(self.weights) if self.weights else self.usual_weight

    def average(
        self,
        round: int,
        replies: Iterable[Message],
        missing: Mapping[int, Absent] | None = None,
    ) -> HubRound:
        """Set the hub's model to z(d), the average of the replies of the workers it asked.

        A worker that was not asked (because of sampling) has no part in the round. One that
        was asked and sent nothing usable is absent. If nobody arrives, if those who arrive weigh
        nothing, or if no average can be used, the hub keeps its model.

        Parameters
        ----------
        round : int
            The number of the round.
        replies : Iterable[Message]
            The replies of the hub's workers, some of which may be errors.
        missing : Mapping[int, Absent], optional
            Nodes of the network that were asked, but for which there is no reply.
        """
        return self.aggregate(round, self.receive(replies, missing))

    def receive(
        self, replies: Iterable[Message], missing: Mapping[int, Absent] | None = None
    ) -> Received:
        """Read the replies of a round; see `average`."""
        reply_of = {reply.metadata.src_node_id: reply for reply in replies}
        missing = missing or {}
        # In the hub's order, whatever that of the replies: sums are then the same to the bit.
        asked = [node for node in self.nodes if node in reply_of or node in missing]
        arrived: dict[int, Arrival] = {}
        absent: dict[int, Absent] = {}
        claimed: dict[int, float] = {}
        for node in asked:
            result = self._read(reply_of[node], claimed) if node in reply_of else missing[node]
            if isinstance(result, Arrival):
                arrived[node] = result
            else:
                absent[node] = result
        # A NaN must never get into an inner strategy's state.
        if self._norms.is_on or self.inner_strategy is not None:
            absent.update(self._norms.judge(self.model, arrived))
        if self.inner_strategy is not None:
            usable = {n: a.message for n, a in arrived.items() if n not in absent}
            absent.update(make_alike(self.inner_strategy, usable, self.limits))
        return Received(asked, arrived, absent, claimed)

    def aggregate(self, round: int, received: Received) -> HubRound:
        """Set the hub's model to z(d), the average of what it has received; see `average`."""
        average = self._aggregate(round, received)
        self.has_new_model = average is not None
        if average is not None:
            self.model = average
        return received.outcome()

    def summands(self, received: Received) -> Summands | None:
        """Return what the weighted average z(d) is the sum of, with the weights of this round.

        None if the hub has no new model, or one that is not a weighted average.
        """
        asked, absent = received.asked, received.absent
        weights = [self.weight_of(node) for node in asked]
        here = [node not in absent for node in asked]
        if self.inner_strategy is not None or not any(itertools.compress(weights, here)):
            return None
        factors, kept = absent_factors(weights, here, self.absent_rule)
        models: list[Record] = [received.arrived[n].arrays for n in asked if n not in absent]
        if kept:
            return Summands([*models, self.layout.arrays(self.model)], [*factors, kept])
        return Summands(models, factors)

    def _aggregate(self, round: int, received: Received) -> Flat | None:
        """Return z(d), and add those who turn out to be absent; only who arrives has a new weight.

        The rejected reply of a worker says nothing about its weight, which stays what it was.
        """
        asked, arrived, absent = received.asked, received.arrived, received.absent
        before = dict(self.weights)
        while True:
            self.weights = before | received.weights()
            if self.inner_strategy is None:
                average, dropped = self._weighted_average(asked, arrived, absent)
            else:
                usable = {n: arrival for n, arrival in arrived.items() if n not in absent}
                average, dropped = self._inner_aggregate(self.inner_strategy, round, asked, usable)
            new = [node for node in dropped if node not in absent]
            absent.update({n: Absent(n, Absence.NOT_FINITE, dropped[n]) for n in new})
            if all(received.claimed.get(node) == before.get(node) for node in new):
                return average
            if average is None:
                self.weights = before | received.weights()
                return None

    def _weighted_average(
        self, asked: list[int], arrived: Mapping[int, Arrival], absent: Mapping[int, Absent]
    ) -> tuple[Flat | None, dict[int, str]]:
        """Return the sub-network average, and why each absent node is absent from it."""

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
            new_sum=lambda: RecordSum(self.layout),
            finite=lambda record: is_finite(self.layout.flatten(record)),
        )
        return average.model, {asked[place]: why for place, why in average.absent.items()}

    def _inner_aggregate(
        self, strategy: Strategy, round: int, asked: list[int], arrived: Mapping[int, Arrival]
    ) -> tuple[Flat | None, dict[int, str]]:
        """Let the inner strategy aggregate, with the rule for absent workers applied to the result.

        The strategy is called once per round, as each call changes its state and may empty the
        replies.
        """
        usable = list(arrived)
        if not any(self.weight_of(node) for node in usable):
            return None, {}
        weights = [self.weight_of(node) for node in asked]
        _, kept = absent_factors(weights, [node in usable for node in asked], self.absent_rule)
        try:
            arrays, _ = strategy.aggregate_train(round, [arrived[node].message for node in usable])
        except ZeroDivisionError:  # all weigh nothing by the metric that the strategy goes by
            arrays = None
        if arrays is None:
            log(WARNING, "Round %d: %s returned no model", round, type(strategy).__name__)
            return None, {}
        average = self.layout.flatten(restore_dtypes(self.layout, arrays))
        if kept:
            average = sum_models([average, self.model], [1 - kept, kept])
        if is_finite(average):
            return average, {}
        return None, dict.fromkeys(usable, AVERAGE_NOT_FINITE)

    def _read(self, reply: Message, claimed: dict[int, float]) -> Arrival | Absent:
        """Check a reply; ``claimed`` gets the worker's weight that it brings."""
        node = reply.metadata.src_node_id
        if reply.has_error():
            return Absent(node, *absence_of(reply))
        content = reply.content
        if why := self.limits.too_large(content):
            return Absent(node, Absence.TOO_LARGE, why)
        if len(content.array_records) != 1:
            count = len(content.array_records)
            return Absent(node, Absence.NO_MODEL, f"{count} ArrayRecords, expected one")
        key, arrays = next(iter(content.array_records.items()))
        mismatch = oversized(self.layout, arrays) or _unreadable(arrays)
        if not mismatch and (cast := _with_model_dtypes(self.layout, arrays)) is not arrays:
            content[key] = arrays = cast  # in the reply, too, which an inner strategy reads
        mismatch = mismatch or self.layout.mismatch(arrays)
        if mismatch:
            return Absent(node, Absence.WRONG_SHAPE, mismatch)
        metrics = next(iter(content.metric_records.values()), MetricRecord())
        if self.weighted_by_key is not None:
            if len(content.metric_records) > 1:
                why = f"{len(content.metric_records)} MetricRecords, expected one with the weight"
                return Absent(node, Absence.NO_WEIGHT, why)
            weight = metrics.get(self.weighted_by_key)
            if not isinstance(weight, (int, float)) or not 0 <= weight < math.inf:
                shown = repr(weight)[:60]
                why = f"metric {self.weighted_by_key!r} is {shown}, expected a number from 0 on"
                return Absent(node, Absence.NO_WEIGHT, why)
            believed = self.limits.believed_weight(node, weight)
            if believed > MAX_WEIGHT:
                why = f"metric {self.weighted_by_key!r} is above {MAX_WEIGHT:g}"
                return Absent(node, Absence.NO_WEIGHT, why)
            if believed is not weight:
                metrics[self.weighted_by_key] = believed  # an inner strategy reads it there
            claimed[node] = believed
        return Arrival(node, arrays, metrics, reply)


def _unreadable(arrays: ArrayRecord) -> str | None:
    """Return what is wrong with the bytes of an array; None if all arrays can be read."""
    for name, array in arrays.items():
        try:
            vector = array_view(array)
            claimed = np.dtype(array.dtype).newbyteorder("=")  # `array_view` converts to it
        except (TypeError, ValueError, SyntaxError, IndexError) as error:
            return f"{name!r} cannot be read: {error}"
        if vector.dtype != claimed or vector.size != math.prod(array.shape):
            return f"{name!r} holds {vector.size} {vector.dtype}, not {array.shape} {array.dtype}"
    return None


def _with_model_dtypes(layout: Layout, arrays: ArrayRecord) -> ArrayRecord:
    """Return a worker's model with floats in the model's dtypes; the same record if they are."""
    other = {
        name: np.dtype(dtype)
        for name, dtype in zip(layout.names, layout.dtypes, strict=True)
        if name in arrays and arrays[name].dtype != dtype
    }
    other = {
        name: dtype
        for name, dtype in other.items()
        if dtype.kind == "f" and np.dtype(arrays[name].dtype).kind == "f"
    }
    if not other:
        return arrays
    with np.errstate(over="ignore"):  # too large a number becomes an infinity: not finite
        return ArrayRecord(
            {
                name: Array(array.numpy().astype(other[name])) if name in other else array
                for name, array in arrays.items()
            }
        )
