"""What `MultiLevelStrategy` and `GossipingHubStrategy` share: rounds of hubs with their workers."""

from __future__ import annotations

import copy
import random
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.app.typing import ConfigRecordValues
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from flwr.supercore import log
from numpy.typing import NDArray

from mll_flower.algorithm.schedule import check_periods
from mll_flower.grids.deadline import DeadlineGrid
from mll_flower.models.layout import Flat, Layout
from mll_flower.models.subnetwork_average import ABSENT_RULES, AbsentRule
from mll_flower.models.sums import distance, sum_models
from mll_flower.strategies.hub import Hub, HubRound
from mll_flower.strategies.inner_strategy import ask_through, fit

MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]
WorkerConfig = Callable[[int, int], Mapping[str, ConfigRecordValues]]


@dataclass(frozen=True)
class RoundReport:
    """What happened in a round; given to ``on_round`` after it.

    Parameters
    ----------
    number : int
        1, 2, ..., counted from the start of training, resumed runs included.
    mixed : bool
        Whether the hubs mixed at its end.
    hubs : list[HubRound]
        Arrivals and absences of each hub.
    spread : ndarray
        Distance of each hub's z(d) from the averaged model, before mixing.
    silent : dict[str, str]
        Neighbours that took no part in the mixing, and why (one hub of a deployment).
    column : dict[str, float]
        The weights with which the hub mixed, by hub id (one hub of a deployment).
    """

    number: int
    mixed: bool
    hubs: list[HubRound]
    spread: NDArray[np.float64]
    silent: dict[str, str] = field(default_factory=dict)
    column: dict[str, float] = field(default_factory=dict)


class HubRoundsStrategy(FedAvg):
    """Rounds of one or more hubs; how nodes join and how hubs mix is left to subclasses."""

    def __init__(
        self,
        hubs: int,
        *,
        tau: int | None,
        q: int,
        deadline: float | None,
        absent: AbsentRule,
        inner_strategy: Strategy | None,
        worker_config: WorkerConfig | None,
        on_round: Callable[[RoundReport], None] | None,
        weighted_by_key: str | None,
        slot: float | None = None,
        weights_given: bool = False,
        **fedavg: Any,
    ) -> None:
        super().__init__(weighted_by_key=weighted_by_key or "num-examples", **fedavg)
        check_periods(1 if tau is None else tau, q)
        if slot is not None and not slot > 0:
            raise ValueError(f"slot={slot}: must be a positive number of seconds")
        if slot is not None and tau is None:
            raise ValueError(f"slot={slot} without tau: give tau, the number of slots in a round")
        if absent not in ABSENT_RULES:
            raise ValueError(f"absent={absent!r}: choose one of {', '.join(ABSENT_RULES)}")
        if deadline is not None and not deadline > 0:
            raise ValueError(f"deadline={deadline}: must be a positive number of seconds")
        self.number_of_hubs = hubs
        self.tau = tau
        self.slot = slot
        self.q = q
        self.deadline = deadline
        self.absent: AbsentRule = absent
        self.inner_strategy = inner_strategy
        self.worker_config = worker_config
        self.on_round = on_round
        # Equal weights hold for metrics too; weights that are given replace those of replies.
        self.equal = weighted_by_key is None
        self.weighted = not self.equal and not weights_given
        self.hubs: list[Hub] = []
        self.round = 0
        self.worker_of: dict[int, int] = {}
        self._restored: list[Flat] | None = None

    @abstractmethod
    def _enrol(self, grid: Grid) -> None:
        """Give every node that is connected a place in a hub."""

    @abstractmethod
    def _mix(self) -> tuple[dict[str, str], dict[str, float]]:
        """Mix the hubs' models; say who was silent and which weights were used."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run Flower's own loop, on a grid whose rounds end on time."""
        timeout = min(timeout, self.deadline or timeout)
        if not isinstance(grid, DeadlineGrid):
            grid = DeadlineGrid(grid, timeout)
        return super().start(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Every hub sends its own model to its own workers."""
        if self.fraction_train == 0.0:
            return []
        if not self.hubs:
            self._make_hubs(arrays)
        self._enrol(grid)
        self.round += 1
        config = ConfigRecord({**config, "server-round": server_round, "round": self.round})
        if self.tau is not None:
            config["tau"] = self.tau
        if self.slot is not None:
            config["slot-seconds"] = self.slot
        return [message for hub in self.hubs for message in self._ask(hub, config, grid)]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average in every hub, mix every q rounds; return the averaged model."""
        if not self.hubs:
            return None, None
        results = self._average(replies)
        middle = self.average()
        spread = np.array([distance(hub.model, middle) for hub in self.hubs])
        mixes = self.round % self.q == 0
        silent, column = self._mix() if mixes else ({}, {})
        if self.on_round is not None:
            self.on_round(RoundReport(self.round, mixes, results, spread, silent, column))
        return self.hubs[0].layout.record(self.average()), self._train_metrics(results)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the metrics of an evaluation, as FedAvg does."""
        if not self.equal:
            return super().aggregate_evaluate(server_round, replies)
        usable, _ = self._check_and_log_replies(replies, is_train=False, validate=False)
        return self._metrics([reply.content for reply in usable], self.evaluate_metrics_aggr_fn)

    def average(self) -> Flat:
        """u: the hubs' models, weighted by their shares b."""
        b = self.shares().tolist()
        return sum_models([hub.model for hub in self.hubs], b) if len(b) > 1 else self.hubs[0].model

    def shares(self) -> NDArray[np.float64]:
        """b(d): each hub's share of all weights."""
        weights = np.array([hub.weight for hub in self.hubs])
        return np.asarray(weights / weights.sum())

    def restore(self, round: int, models: Sequence[Flat]) -> None:
        """Continue after ``round`` rounds with the hub models that these led to."""
        if len(models) != self.number_of_hubs:
            raise ValueError(f"{len(models)} models for {self.number_of_hubs} hubs")
        self.round = round
        self._restored = list(models)

    def _make_hubs(self, arrays: ArrayRecord) -> None:
        layout = Layout.of(arrays)
        start = layout.flatten(arrays)
        for d in range(self.number_of_hubs):
            model = self._restored[d] if self._restored else start
            key = self.weighted_by_key if self.weighted else None
            strategy = copy.deepcopy(self.inner_strategy)
            self.hubs.append(Hub(layout, model, key, self.absent, strategy))

    def _seat(self, places: Mapping[int, tuple[int, int]], gone: Iterable[int] = ()) -> None:
        """Enter new nodes (node -> hub and worker number) and strike off those that are gone."""
        away = set(gone)
        for node, (d, worker) in places.items():
            self.worker_of[node] = worker
            self.hubs[d].nodes.append(node)
        for hub in self.hubs:
            hub.nodes = sorted(
                (n for n in hub.nodes if n not in away), key=self.worker_of.__getitem__
            )
            fit(hub.strategy, self.inner_strategy, len(hub.nodes))

    def _ask(self, hub: Hub, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        if not hub.nodes:
            return []
        arrays = hub.layout.record(hub.model)
        # A copy for each hub: Flower's strategies write into the config that they are given.
        config = ConfigRecord(dict(config))
        if hub.strategy is not None:
            messages = ask_through(hub.strategy, self.round, arrays, config, grid, hub.nodes)
        else:
            record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
            messages = [Message(record, node, MessageType.TRAIN) for node in self._sample(hub)]
        return [self._personal(m) for m in messages] if self.worker_config else messages

    def _sample(self, hub: Hub) -> list[int]:
        wanted = max(1, self.min_train_nodes, int(len(hub.nodes) * self.fraction_train))
        return hub.nodes if wanted >= len(hub.nodes) else random.sample(hub.nodes, wanted)

    def _personal(self, message: Message) -> Message:
        """Return the message with what ``worker_config`` has for its worker."""
        assert self.worker_config is not None
        node, content = message.metadata.dst_node_id, message.content
        key = next(iter(content.config_records), self.configrecord_key)
        more = self.worker_config(self.worker_of[node], self.round)
        config = ConfigRecord({**content.config_records.get(key, {}), **more})
        return Message(RecordDict({**content, key: config}), node, message.metadata.message_type)

    def _average(self, replies: Iterable[Message]) -> list[HubRound]:
        hub_of = {node: d for d, hub in enumerate(self.hubs) for node in hub.nodes}
        received: list[list[Message]] = [[] for _ in self.hubs]
        for reply in replies:
            if reply.metadata.src_node_id in hub_of:
                received[hub_of[reply.metadata.src_node_id]].append(reply)
        results = []
        for d, (hub, messages) in enumerate(zip(self.hubs, received, strict=True)):
            results.append(hub.average(self.round, messages))
            for absent in results[-1].absent:
                log(
                    WARNING,
                    "Round %d, hub %d: worker %d (node %d) is absent, %s: %s",
                    self.round,
                    d,
                    self.worker_of[absent.node],
                    absent.node,
                    absent.cause,
                    absent.why[-500:],
                )
        known = [weight for hub in self.hubs for weight in hub.weights.values()]
        for hub in self.hubs:
            hub.usual_weight = sum(known) / len(known) if known else 1.0
        return results

    def _train_metrics(self, results: list[HubRound]) -> MetricRecord | None:
        contents = [a.message.content for result in results for a in result.arrived]
        return self._metrics(contents, self.train_metrics_aggr_fn)

    def _metrics(self, contents: list[RecordDict], average: MetricsFunction) -> MetricRecord | None:
        """Average metrics; None where they cannot be, which never stops a run."""
        key = self.weighted_by_key
        if self.equal:
            contents = [_weighing_one(content, key) for content in contents]
        records = [list(content.metric_records.values()) for content in contents]
        if not records or not all(len(r) == 1 and key in r[0] for r in records):
            return None
        kinds = {
            tuple(sorted((k, len(v) if isinstance(v, list) else 0) for k, v in r[0].items()))
            for r in records
        }
        if len(kinds) > 1:
            log(WARNING, "Replies have different metrics, which are not averaged: %s", kinds)
            return None
        return average(contents, key)


def _weighing_one(content: RecordDict, key: str) -> RecordDict:
    metrics = {k: MetricRecord({**m, key: 1}) for k, m in content.metric_records.items()}
    return RecordDict({**content, **metrics})
