"""`HubRoundsStrategy`: rounds of one or more hubs with their workers, on Flower's own loop.

This is what `MultiLevelStrategy` (all hubs on one grid) and `GossipingHubStrategy` (one hub that
gossips with its neighbours) share. A round: every hub sends its model to its workers, averages
what comes back, and after every q rounds mixes with its neighbours.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.app.typing import ConfigRecordValues
from flwr.serverapp import Grid
from flwr.supercore import log
from numpy.typing import NDArray

from mll_flower.algorithm.schedule import check_periods
from mll_flower.grids.deadline import DeadlineGrid
from mll_flower.models.layout import Flat
from mll_flower.models.subnetwork_average import ABSENT_RULES, AbsentRule
from mll_flower.models.sums import distance, sum_models
from mll_flower.strategies.arguments import (
    check_choice,
    check_fedavg_arguments,
    check_function,
    check_seconds,
)
from mll_flower.strategies.asked import AskedNodes, expire_late
from mll_flower.strategies.corrections.corrector import Corrector
from mll_flower.strategies.evaluators import EvaluatedModel
from mll_flower.strategies.history import History
from mll_flower.strategies.hub import Hub, Received
from mll_flower.strategies.hub_evaluation import HubEvaluationStrategy
from mll_flower.strategies.inner_strategy import (
    InnerStrategy,
    inner_train_messages,
    lower_node_minimums,
)
from mll_flower.strategies.reply_limits import ReplyLimits
from mll_flower.strategies.reports import HubRound, MultiLevelResult, RoundReport

WorkerConfig = Callable[[int, int], Mapping[str, ConfigRecordValues]]


class HubRoundsStrategy(HubEvaluationStrategy):
    """Rounds of one or more hubs; subclasses decide how nodes join hubs and how hubs mix.

    Arguments that are not listed here are those of `MultiLevelStrategy`.

    Parameters
    ----------
    hubs : int
        Number of hubs.
    weights_given : bool
        Whether the subclass knows the workers' weights, so that those in replies are ignored.
    corrector : Corrector, optional
        What a run with corrections that go past the paper does differently.
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
        inner_strategy: InnerStrategy | None,
        worker_config: WorkerConfig | None,
        on_round: Callable[[RoundReport], None] | None,
        node_timeout: float,
        weighted_by_key: str | None,
        evaluate: EvaluatedModel = "averaged",
        weights_given: bool = False,
        max_examples: float | None = None,
        max_update_norm: float | str | None = None,
        max_metrics: int | None = None,
        max_reply_bytes: int | None = None,
        corrector: Corrector | None = None,
        **fedavg: Any,
    ) -> None:
        check_fedavg_arguments({**fedavg, "weighted_by_key": weighted_by_key})
        check_periods(1 if tau is None else tau, q)
        if slot is not None:
            check_seconds("slot", slot)
        if slot is not None and tau is None:
            raise ValueError(f"slot={slot} without tau: give tau, the number of slots in a round")
        check_choice("absent", absent, ABSENT_RULES)
        check_function("worker_config", worker_config, "a function of a worker and a round")
        check_function("on_round", on_round, "a function of a RoundReport")
        super().__init__(
            deadline,
            node_timeout,
            evaluate,
            hubs=hubs,
            absent=absent,
            inner_strategy=inner_strategy,
            weighted_by_key=weighted_by_key,
            weights_given=weights_given,
            limits=ReplyLimits(max_examples, max_update_norm, max_metrics, max_reply_bytes),
            **fedavg,
        )
        self.tau = tau
        self.slot = slot
        self.q = q
        self.worker_config = worker_config
        self.on_round = on_round
        self.corrector = corrector
        self.worker_of: dict[int, int] = {}  # node id -> worker number
        self._asked = AskedNodes()  # in the present round

    @abstractmethod
    def _update_workers(self, grid: Grid) -> None:
        """Bring the hubs' workers up to date with the nodes that are connected."""

    @abstractmethod
    def _mix(self) -> tuple[dict[str, str], dict[str, float]]:
        """Mix the hubs' models; return ``silent`` and ``column`` of the `RoundReport`."""

    def _settings(self) -> dict[str, object]:
        """Return what was set, beside the arguments of FedAvg; None for what was not."""
        inner = self.inner_strategy
        return {
            "q": self.q,
            "tau": self.tau,
            "slot": self.slot,
            "deadline": self.deadline,
            "absent": self.absent,
            "inner_strategy": inner and type(self._inner_strategies[0]).__name__,
            **self.limits.settings(),
            **(self.corrector.shown() if self.corrector is not None else {}),
            "evaluate": self.evaluate,
            "node_timeout": self.node_timeout,
            "worker_config": self.worker_config and "given",
            "on_round": self.on_round and "given",
        }

    def summary(self) -> None:
        """Log all settings of the strategy."""
        log(INFO, "\t├──> Multi-level:")
        for name, value in self._settings().items():
            if value is not None:
                log(INFO, "\t│\t├── %s: %s", name, value)
        if self.equal_weights:
            log(INFO, "\t│\t├── weights: all equal, whatever the replies say")
        elif not self.weights_in_replies:
            log(INFO, "\t│\t├── weights: those of the network, whatever the replies say")
        super().summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> MultiLevelResult:
        """Run Flower's own loop on a grid whose rounds end at the deadline.

        Parameters
        ----------
        grid : Grid
            The nodes.
        initial_arrays : ArrayRecord
            The model to start from. A strategy that has run before goes on from its hubs' models
            if this is the model that it returned last, and starts afresh from any other one.
            After `restore` it says only what the model looks like.
        num_rounds, timeout, train_config, evaluate_config, evaluate_fn
            As in Flower's ``Strategy.start``.

        Raises
        ------
        RuntimeError
            If no hub got a new model in any round.
        """
        timeout = min(timeout, self.deadline or timeout)
        if not isinstance(grid, DeadlineGrid):
            grid = DeadlineGrid(grid, timeout)
        self._history = History()
        result = super().start(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )
        self._check_run(self._history)
        return MultiLevelResult(
            **vars(result),
            train_metrics_hubs=self._history.train_metrics,
            evaluate_metrics_hubs=self._history.evaluate_metrics,
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages with which every hub sends its model to its own workers."""
        if self.fraction_train == 0.0:
            return []
        self._adopt(arrays, first=server_round == 1)
        self._update_workers(grid)
        self.round += 1
        if self.corrector is not None:
            self.corrector.prepare(self.round, self.hubs)
        config = ConfigRecord({**config, "server-round": server_round, "round": self.round})
        if self.tau is not None:
            config["tau"] = self.tau
        if self.slot is not None:
            config["slot-seconds"] = self.slot
        messages = []
        for hub, record in zip(self.hubs, self.hub_models(), strict=True):
            messages += self._messages(hub, record, config, grid)
        if self.corrector is not None:
            messages = self.corrector.begin(self.hubs, messages)
        # A DeadlineGrid returns a reply for every message; any other may return fewer.
        complete = isinstance(grid, DeadlineGrid)
        self._asked = AskedNodes() if complete else AskedNodes(messages)
        return expire_late(messages, self.deadline, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average in every hub and mix every q rounds; return the averaged model u."""
        if not self.hubs:
            return None, None
        results = self._average_in_hubs(replies)
        contents = [a.message.content for result in results for a in result.arrived]
        metrics = self._average_metrics(contents, self.train_metrics_aggr_fn)
        results = [self._with_metrics(result, metrics) for result in results]
        self._history.train_metrics[server_round] = [result.metrics for result in results]
        self._mix_and_report(results)
        u = self.averaged_model()
        self._last.remember(u)
        return u, metrics

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
            lower_node_minimums(hub.inner_strategy, hub.inner_minimums, len(hub.nodes))

    def _messages(
        self, hub: Hub, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages with which one hub starts a round."""
        if not hub.nodes:
            return []
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
        replies = list(replies)
        missing = self._asked.without_reply(replies)
        if self.corrector is not None:
            replies, missing = self.corrector.usable(self.hubs, replies, missing)
        for reply in replies:
            if reply.metadata.src_node_id in hub_of:
                received[hub_of[reply.metadata.src_node_id]].append(reply)
        results = self._aggregate_in_hubs(
            [hub.receive(of, missing) for hub, of in zip(self.hubs, received, strict=True)]
        )
        self._update_usual_weights()
        for d, result in enumerate(results):
            for absent in result.absent:
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
        return results

    def _aggregate_in_hubs(self, received: Sequence[Received]) -> list[HubRound]:
        """Set every hub's model to z(d), the average of what it has received."""
        results = []
        for d, (hub, of) in enumerate(zip(self.hubs, received, strict=True)):
            results.append(hub.aggregate(self.round, of))
            if self.corrector is not None:
                self.corrector.average(d, hub, results[-1])
        return results

    def _update_usual_weights(self) -> None:
        known = [weight for hub in self.hubs for weight in hub.weights.values()]
        for hub in self.hubs:
            hub.usual_weight = sum(known) / len(known) if any(known) else 1.0

    def _mix_and_report(self, results: list[HubRound]) -> None:
        """Mix if that is due, and report the round."""
        wanted = self.on_round is not None  # else nobody needs the models from before the mixing
        z = [hub.model for hub in self.hubs] if wanted else []
        b = self.shares().tolist()
        mixes = self.round % self.q == 0
        silent, column = self._mix() if mixes else ({}, {})
        met = sum(weight > 0 for weight in column.values()) > 1
        trained = any(hub.has_new_model for hub in self.hubs)
        evaluation = self._history.add_round(self.round, results, trained, met)
        if self.on_round is not None:
            measure = partial(_spread, z, b)
            report = RoundReport(self.round, mixes, results, measure, silent, column, evaluation)
            self.on_round(report)

    def _with_metrics(self, result: HubRound, of_all: MetricRecord | None) -> HubRound:
        """Return a hub's round with the average of the metrics of its workers."""
        if len(self.hubs) == 1:
            return replace(result, metrics=of_all)
        contents = [arrival.message.content for arrival in result.arrived]
        return replace(result, metrics=self._average_metrics(contents, self.train_metrics_aggr_fn))

    def _check_run(self, history: History) -> None:
        """Raise RuntimeError at the end of a run that has changed no model."""
        history.check()


def _spread(models: Sequence[Flat], shares: Sequence[float]) -> NDArray[np.float64]:
    """Return the distance of each hub's model from their average."""
    u = sum_models(models, shares) if len(models) > 1 else models[0]
    return np.array([distance(model, u) for model in models])
