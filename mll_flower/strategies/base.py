"""`HubRoundsStrategy`: rounds of one or more hubs with their workers, on Flower's own loop.

This is what `MultiLevelStrategy` (all hubs on one grid) and `GossipingHubStrategy` (one hub that
gossips with its neighbours) share. A round: every hub sends its model to its workers, averages
what comes back, and after every q rounds mixes with its neighbours.
"""

from __future__ import annotations

import copy
import random
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from mll_flower.strategies.hub import Hub
from mll_flower.strategies.inner_strategy import inner_train_messages, lower_node_minimums
from mll_flower.strategies.reports import HubRound, RoundReport

MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]
WorkerConfig = Callable[[int, int], Mapping[str, ConfigRecordValues]]


class HubRoundsStrategy(FedAvg):
    """Rounds of one or more hubs; subclasses decide how nodes join hubs and how hubs mix.

    Arguments that are not listed here are those of `MultiLevelStrategy`.

    Parameters
    ----------
    hubs : int
        Number of hubs.
    weights_given : bool
        Whether the subclass knows the workers' weights, so that those in replies are ignored.
    **fedavg
        Further arguments of Flower's ``FedAvg``.
    """

    def __init__(
        self,
        hubs: int,
        *,
        tau: int | None,
        slot: float | None,
        q: int,
        deadline: float | None,
        absent: AbsentRule,
        inner_strategy: Strategy | None,
        worker_config: WorkerConfig | None,
        on_round: Callable[[RoundReport], None] | None,
        node_timeout: float,
        weighted_by_key: str | None,
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
        self.node_timeout = node_timeout
        self.equal_weights = weighted_by_key is None  # of models and of metrics
        self.weights_in_replies = not self.equal_weights and not weights_given
        self.hubs: list[Hub] = []
        self.round = 0
        self.worker_of: dict[int, int] = {}  # node id -> worker number
        self._restored_models: list[Flat] | None = None

    @abstractmethod
    def _update_workers(self, grid: Grid) -> None:
        """Bring the hubs' workers up to date with the nodes that are connected."""

    @abstractmethod
    def _mix(self) -> tuple[dict[str, str], dict[str, float]]:
        """Mix the hubs' models; return ``silent`` and ``column`` of the `RoundReport`."""

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
        """Run Flower's own loop on a grid whose rounds end at the deadline."""
        timeout = min(timeout, self.deadline or timeout)
        if not isinstance(grid, DeadlineGrid):
            grid = DeadlineGrid(grid, timeout)
        return super().start(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages with which every hub sends its model to its own workers."""
        if self.fraction_train == 0.0:
            return []
        if not self.hubs:
            self._make_hubs(arrays)
        self._update_workers(grid)
        self.round += 1
        config = ConfigRecord({**config, "server-round": server_round, "round": self.round})
        if self.tau is not None:
            config["tau"] = self.tau
        if self.slot is not None:
            config["slot-seconds"] = self.slot
        return [message for hub in self.hubs for message in self._messages(hub, config, grid)]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average in every hub and mix every q rounds; return the averaged model u."""
        if not self.hubs:
            return None, None
        results = self._average_in_hubs(replies)
        u = self.averaged_model()
        spread = np.array([distance(hub.model, u) for hub in self.hubs])
        mixes = self.round % self.q == 0
        silent, column = self._mix() if mixes else ({}, {})
        if self.on_round is not None:
            self.on_round(RoundReport(self.round, mixes, results, spread, silent, column))
        contents = [a.message.content for result in results for a in result.arrived]
        metrics = self._average_metrics(contents, self.train_metrics_aggr_fn)
        return self.hubs[0].layout.record(self.averaged_model()), metrics

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the metrics of an evaluation, as FedAvg does."""
        if not self.equal_weights:
            return super().aggregate_evaluate(server_round, replies)
        usable, _ = self._check_and_log_replies(replies, is_train=False, validate=False)
        contents = [reply.content for reply in usable]
        return self._average_metrics(contents, self.evaluate_metrics_aggr_fn)

    def averaged_model(self) -> Flat:
        """Return u: the sum of the hubs' models, weighted by their shares b(d)."""
        b = self.shares().tolist()
        return sum_models([hub.model for hub in self.hubs], b) if len(b) > 1 else self.hubs[0].model

    def shares(self) -> NDArray[np.float64]:
        """Return b(d): each hub's share of all weights."""
        weights = np.array([hub.weight for hub in self.hubs])
        return np.asarray(weights / weights.sum())

    def restore(self, round: int, models: Sequence[Flat]) -> None:
        """Continue an earlier run.

        Parameters
        ----------
        round : int
            The last round of that run.
        models : Sequence[Flat]
            The hubs' models after it.
        """
        if len(models) != self.number_of_hubs:
            raise ValueError(f"{len(models)} models for {self.number_of_hubs} hubs: give one each")
        self.round = round
        self._restored_models = list(models)

    def _make_hubs(self, arrays: ArrayRecord) -> None:
        layout = Layout.of(arrays)
        initial = layout.flatten(arrays)
        key = self.weighted_by_key if self.weights_in_replies else None
        for d in range(self.number_of_hubs):
            model = self._restored_models[d] if self._restored_models else initial
            inner_strategy = copy.deepcopy(self.inner_strategy)
            self.hubs.append(Hub(layout, model, key, self.absent, inner_strategy))

    def _change_workers(
        self, joined: Mapping[int, tuple[int, int]], left: Iterable[int] = ()
    ) -> None:
        """Add nodes to hubs (node id -> hub, worker number), and remove those that have left."""
        for node, (d, worker) in joined.items():
            self.worker_of[node] = worker
            self.hubs[d].nodes.append(node)
        removed = set(left)
        for hub in self.hubs:
            remaining = [node for node in hub.nodes if node not in removed]
            hub.nodes = sorted(remaining, key=self.worker_of.__getitem__)
            lower_node_minimums(hub.inner_strategy, self.inner_strategy, len(hub.nodes))

    def _messages(self, hub: Hub, config: ConfigRecord, grid: Grid) -> list[Message]:
        """Return the messages with which one hub starts a round."""
        if not hub.nodes:
            return []
        arrays = hub.layout.record(hub.model)
        # One copy per hub: Flower's strategies write into the config that they are given.
        config = ConfigRecord(dict(config))
        if hub.inner_strategy is not None:
            messages = inner_train_messages(
                hub.inner_strategy, self.round, arrays, config, grid, hub.nodes
            )
        else:
            record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
            messages = [Message(record, n, MessageType.TRAIN) for n in self._sample_nodes(hub)]
        return [self._with_worker_config(m) for m in messages] if self.worker_config else messages

    def _sample_nodes(self, hub: Hub) -> list[int]:
        wanted = max(1, self.min_train_nodes, int(len(hub.nodes) * self.fraction_train))
        return hub.nodes if wanted >= len(hub.nodes) else random.sample(hub.nodes, wanted)

    def _with_worker_config(self, message: Message) -> Message:
        """Return a message with the config that is meant for its worker alone added to it."""
        assert self.worker_config is not None
        node, content = message.metadata.dst_node_id, message.content
        key = next(iter(content.config_records), self.configrecord_key)
        more = self.worker_config(self.worker_of[node], self.round)
        config = ConfigRecord({**content.config_records.get(key, {}), **more})
        return Message(RecordDict({**content, key: config}), node, message.metadata.message_type)

    def _average_in_hubs(self, replies: Iterable[Message]) -> list[HubRound]:
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

    def _average_metrics(
        self, contents: list[RecordDict], average: MetricsFunction
    ) -> MetricRecord | None:
        """Average metrics; return None if they cannot be averaged, which never stops a run."""
        key = self.weighted_by_key
        if self.equal_weights:
            contents = [_with_weight_one(content, key) for content in contents]
        records = [list(content.metric_records.values()) for content in contents]
        if not records or not all(len(r) == 1 and key in r[0] for r in records):
            return None
        kinds = {
            tuple(sorted((k, len(v) if isinstance(v, list) else 0) for k, v in r[0].items()))
            for r in records
        }
        if len(kinds) > 1:
            log(WARNING, "Metrics are not averaged, because replies have different ones: %s", kinds)
            return None
        return average(contents, key)


def _with_weight_one(content: RecordDict, key: str) -> RecordDict:
    """Return a reply's content with 1 as the weight in its metrics."""
    metrics = {k: MetricRecord({**m, key: 1}) for k, m in content.metric_records.items()}
    return RecordDict({**content, **metrics})
