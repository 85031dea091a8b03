"""`HubEvaluationStrategy`: nodes evaluate u or their hub's model; nobody is waited for for ever."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from mll_flower.strategies.arguments import check_choice, check_seconds
from mll_flower.strategies.asked import expire_late
from mll_flower.strategies.evaluators import (
    EVALUATED_MODELS,
    EvaluatedModel,
    Evaluators,
    sample_size,
)
from mll_flower.strategies.history import History
from mll_flower.strategies.hub_models import HubModelsStrategy
from mll_flower.strategies.metrics import MetricsFunction, average_metrics
from mll_flower.strategies.reports import HubMetrics


class HubEvaluationStrategy(HubModelsStrategy):
    """Evaluation on the nodes, with the metrics of each hub.

    Parameters
    ----------
    deadline, node_timeout, evaluate
        As in `mll_flower.MultiLevelStrategy`.
    **models
        The arguments of `HubModelsStrategy`.
    """

    def __init__(
        self, deadline: float | None, node_timeout: float, evaluate: EvaluatedModel, **models: Any
    ) -> None:
        if deadline is not None:
            check_seconds("deadline", deadline)
        check_seconds("node_timeout", node_timeout, zero=True)
        check_choice("evaluate", evaluate, EVALUATED_MODELS)
        super().__init__(**models)
        self.deadline = deadline
        self.node_timeout = node_timeout
        self.evaluate: EvaluatedModel = evaluate
        self._evaluators = Evaluators(min(deadline or node_timeout, node_timeout))
        self._history = History()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages with which nodes are asked to evaluate; never wait for ever."""
        if self.fraction_evaluate == 0.0:
            return []
        config["server-round"] = server_round
        minimum = max(self.min_available_nodes, self.min_evaluate_nodes)
        nodes = self._evaluators.connected(grid, minimum)
        asked: list[tuple[ArrayRecord, list[int]]] = [(arrays, nodes)]
        if self.evaluate == "hub" and self.hubs:
            members = [[node for node in nodes if node in hub.nodes] for hub in self.hubs]
            asked = list(zip(self.hub_models(arrays), members, strict=True))
        messages = []
        for model, own in asked:
            wanted = sample_size(len(own), self.fraction_evaluate, self.min_evaluate_nodes)
            record = RecordDict({self.arrayrecord_key: model, self.configrecord_key: config})
            messages += [
                Message(record, node, MessageType.EVALUATE) for node in random.sample(own, wanted)
            ]
        return expire_late(messages, self.deadline, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the metrics of an evaluation: of all nodes, as FedAvg does, and of each hub."""
        usable, _ = self._check_and_log_replies(replies, is_train=False, validate=False)
        if not usable:
            return None
        contents = [reply.content for reply in usable]
        metrics = self._average_metrics(contents, self.evaluate_metrics_aggr_fn)
        of_hubs: HubMetrics = []
        for hub in self.hubs:
            own = [r.content for r in usable if r.metadata.src_node_id in set(hub.nodes)]
            one = len(self.hubs) == 1 and len(own) == len(usable)
            of_hubs.append(
                metrics if one else self._average_metrics(own, self.evaluate_metrics_aggr_fn)
            )
        self._history.evaluation[:] = of_hubs  # that of the RoundReport, too
        self._history.evaluate_metrics[server_round] = of_hubs
        return metrics

    def _average_metrics(
        self, contents: list[RecordDict], average: MetricsFunction
    ) -> MetricRecord | None:
        return average_metrics(contents, self.weighted_by_key, average, self.equal_weights)
