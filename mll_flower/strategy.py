"""`MultiLevelStrategy`: all hubs of a multi-level network on one Flower grid.

The loop is Flower's own ``Strategy.start``. A round of it is a round of the paper: every
hub sends its model to its workers and averages what comes back (`Hub.average`); after
every q rounds the hubs mix through H. What the strategy returns, and what is evaluated,
is the averaged model u.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.app.typing import ConfigRecordValues
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from flwr.supercore import log
from numpy.typing import NDArray

from mll_flower.averaging import ABSENT_RULES, AbsentRule, Flat, Layout, combine, distance, mix
from mll_flower.collector import DeadlineGrid, GridWrapper
from mll_flower.graphs import hub_graph
from mll_flower.hub import Hub, HubRound
from mll_flower.identity import ask_identity, wait_for_nodes
from mll_flower.mixing import mixing_matrix
from mll_flower.network import HubNetwork
from mll_flower.slots import check_periods

Assign = str | Callable[[int], int]
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
    spread : NDArray
        Distance of each hub's z(d) from the averaged model, before mixing.
    """

    number: int
    mixed: bool
    hubs: list[HubRound]
    spread: NDArray[np.float64]


class MultiLevelStrategy(FedAvg):
    """Multi-Level Local SGD with all hubs on one grid.

    Parameters
    ----------
    network : HubNetwork, optional
        Hubs, workers, weights and graph. Its weights are used as they are. Needs ``workers``,
        or nodes are numbered as they come.
    hubs, graph : int and str, Path or networkx.Graph, optional
        Instead of ``network``: the number of hubs and their graph. Workers are the nodes
        that connect, and their weights come with their replies.
    assign : "even", "node-config:KEY" or callable
        With ``hubs``: which hub a node belongs to. ``even`` deals nodes out in turn;
        ``node-config:KEY`` asks each node for that key of its node config (its ClientApp
        must call `mll_flower.answer_identity`); a function maps a node id to a hub number.
    workers : Mapping[int, int], optional
        With ``network``: the worker number of each node id.
    mixing : str or Path
        How H is made (`mll_flower.mixing_matrix`), or a file that holds it.
    tau : int, optional
        Slots in a round; sent to the nodes as ``tau`` for those that honour budgets.
    q : int
        Rounds between two mixings.
    deadline : float, optional
        Seconds after which a round ends without those who have not answered.
    absent : {"keep", "renormalise"}
        Whether absent workers' shares stay with the model that their hub sent.
    hub_strategy : Strategy, optional
        A Flower strategy that aggregates inside each hub, in place of the weighted average;
        each hub gets a copy with its own state.
    worker_config : callable, optional
        ``worker_config(worker, round)``: more config for one worker's message.
    on_round : callable, optional
        Called with a `RoundReport` after each round.
    node_timeout : float
        Seconds to wait for nodes to connect, and to say who they are.
    fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes, \
min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key, \
train_metrics_aggr_fn, evaluate_metrics_aggr_fn
        As in Flower's ``FedAvg``; ``fraction_train`` samples within each hub, and
        ``weighted_by_key=None`` weighs all workers equally.
    """

    def __init__(
        self,
        network: HubNetwork | None = None,
        *,
        hubs: int | None = None,
        graph: str | Path | nx.Graph[Any] = "complete",
        assign: Assign = "even",
        workers: Mapping[int, int] | None = None,
        mixing: str | Path = "auto",
        tau: int | None = None,
        q: int = 1,
        deadline: float | None = None,
        absent: AbsentRule = "keep",
        hub_strategy: Strategy | None = None,
        worker_config: WorkerConfig | None = None,
        on_round: Callable[[RoundReport], None] | None = None,
        node_timeout: float = 300.0,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str | None = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None = None,
        evaluate_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None = None,
    ) -> None:
        super().__init__(
            fraction_train,
            fraction_evaluate,
            min_train_nodes,
            min_evaluate_nodes,
            min_available_nodes,
            weighted_by_key or "num-examples",
            arrayrecord_key,
            configrecord_key,
            train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn,
        )
        check_periods(1 if tau is None else tau, q)
        if (network is None) == (hubs is None):
            raise ValueError("give either network= or hubs= (with graph=), not both or neither")
        if absent not in ABSENT_RULES:
            raise ValueError(f"absent={absent!r}: choose one of {', '.join(ABSENT_RULES)}")
        if deadline is not None and not deadline > 0:
            raise ValueError(f"deadline={deadline}: must be a positive number of seconds")
        if isinstance(assign, str) and assign != "even" and not assign.startswith("node-config:"):
            raise ValueError(f"assign={assign!r}: give 'even', 'node-config:KEY' or a function")
        self.network = network
        self.graph = network.graph if network else hub_graph(graph, hubs or 0)
        self.assign = assign
        self.workers = workers
        self.mixing = mixing
        self.tau = tau
        self.q = q
        self.deadline = deadline
        self.absent: AbsentRule = absent
        self.hub_strategy = hub_strategy
        self.worker_config = worker_config
        self.on_round = on_round
        self.node_timeout = node_timeout
        self.weighted = weighted_by_key is not None and network is None
        self.hubs: list[Hub] = []
        self.round = 0
        self._worker_of: dict[int, int] = {}
        self._restored: list[Flat] | None = None
        self._h: tuple[bytes, NDArray[np.float64]] | None = None
        if network is not None:
            mixing_matrix(network.graph, network.b, mixing)  # a wrong H fails before anything

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
        if not isinstance(grid, DeadlineGrid):
            grid = DeadlineGrid(grid, self.deadline or timeout)
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
        return [message for hub in self.hubs for message in self._ask(hub, config, grid)]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average in every hub, mix every q rounds; return the averaged model."""
        sorted_replies: list[list[Message]] = [[] for _ in self.hubs]
        hub_of = {node: d for d, hub in enumerate(self.hubs) for node in hub.nodes}
        for reply in replies:
            if reply.metadata.src_node_id in hub_of:
                sorted_replies[hub_of[reply.metadata.src_node_id]].append(reply)
        results = [
            hub.average(self.round, replies)
            for hub, replies in zip(self.hubs, sorted_replies, strict=True)
        ]
        self._log_absences(results)
        average = self.average()
        spread = np.array([distance(hub.model, average) for hub in self.hubs])
        mixes = self.round % self.q == 0
        if mixes:
            models = mix([hub.model for hub in self.hubs], self.mixing_matrix())
            for hub, model in zip(self.hubs, models, strict=True):
                hub.model = model
            average = self.average()
        if self.on_round is not None:
            self.on_round(RoundReport(self.round, mixes, results, spread))
        return self.hubs[0].layout.record(average), self._train_metrics(results)

    def average(self) -> Flat:
        """u: the hubs' models, weighted by their shares b."""
        b = self.shares().tolist()
        return combine([hub.model for hub in self.hubs], b) if len(b) > 1 else self.hubs[0].model

    def shares(self) -> NDArray[np.float64]:
        """b(d): each hub's share of all weights."""
        weights = np.array([hub.weight for hub in self.hubs])
        return np.asarray(weights / weights.sum())

    def mixing_matrix(self) -> NDArray[np.float64]:
        """H for the present shares; made anew only when these have changed."""
        b = self.shares()
        if self._h is None or self._h[0] != b.tobytes():
            self._h = b.tobytes(), mixing_matrix(self.graph, b, self.mixing)
        return self._h[1]

    def restore(self, round: int, models: Sequence[Flat]) -> None:
        """Continue after ``round`` rounds with the hub models that these led to."""
        if len(models) != len(self.graph):
            raise ValueError(f"{len(models)} models for {len(self.graph)} hubs")
        self.round = round
        self._restored = list(models)

    def summary(self) -> None:
        """Log the strategy's configuration."""
        log(
            INFO,
            "\t├──> Multi-level: %d hubs, %d links, mixing %r every %d rounds, absent %r",
            len(self.graph),
            self.graph.number_of_edges(),
            str(self.mixing),
            self.q,
            self.absent,
        )
        super().summary()

    def _make_hubs(self, arrays: ArrayRecord) -> None:
        layout = Layout.of(arrays)
        start = layout.flatten(arrays)
        for d in range(len(self.graph)):
            model = self._restored[d] if self._restored else start
            key = self.weighted_by_key if self.weighted else None
            strategy = copy.deepcopy(self.hub_strategy)
            self.hubs.append(Hub(layout, model, key, self.absent, strategy))

    def _enrol(self, grid: Grid) -> None:
        """Give every node that is connected a place in a hub."""
        needed = max(self.min_available_nodes, len(self.graph))
        if self.network is not None:
            needed = self.network.workers
        nodes = [n for n in self._connected(grid, needed) if n not in self._worker_of]
        if not nodes:
            return
        if self.network is not None:
            self._enrol_workers(nodes)
        else:
            self._enrol_in_hubs(nodes, grid)
        for d, hub in enumerate(self.hubs):
            hub.nodes.sort(key=self._worker_of.__getitem__)
            if not hub.nodes:
                raise ValueError(f"hub {d} has no worker: assign at least one node to each hub")
            _fit(hub.strategy, len(hub.nodes))

    def _connected(self, grid: Grid, needed: int) -> list[int]:
        """Wait for the nodes before the first round; later, who is gone is absent."""
        if self._worker_of:
            return sorted(grid.get_node_ids())
        return wait_for_nodes(grid, needed, self.node_timeout)

    def _enrol_workers(self, nodes: list[int]) -> None:
        assert self.network is not None
        for node in nodes:
            place = len(self._worker_of)
            worker = place if self.workers is None else self.workers.get(node, -1)
            if not 0 <= worker < self.network.workers:
                raise ValueError(
                    f"node {node} is worker {worker}: the network has the workers 0 to "
                    f"{self.network.workers - 1}"
                )
            self._worker_of[node] = worker
            hub = self.hubs[self.network.hub_of[worker]]
            hub.nodes.append(node)
            hub.weights[node] = float(self.network.w[worker])

    def _enrol_in_hubs(self, nodes: list[int], grid: Grid) -> None:
        told: dict[int, Any] = {}
        if isinstance(self.assign, str) and self.assign != "even":
            key = self.assign.removeprefix("node-config:")
            told = {n: i.get(key) for n, i in ask_identity(grid, nodes, self.node_timeout).items()}
        for node in nodes:
            number = len(self._worker_of)
            hub: Any = number % len(self.hubs)
            if callable(self.assign):
                hub = self.assign(node)
            elif told:
                hub = told[node]
            if not isinstance(hub, (int, np.integer)) or not 0 <= hub < len(self.hubs):
                raise ValueError(
                    f"node {node} belongs to no hub: assign={self.assign!r} gave {hub!r}, "
                    f"expected a hub number from 0 to {len(self.hubs) - 1}"
                )
            self._worker_of[node] = number
            self.hubs[hub].nodes.append(node)

    def _ask(self, hub: Hub, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        arrays = hub.layout.record(hub.model)
        if hub.strategy is not None:
            view = _HubView(grid, hub.nodes)
            return hub.strategy.configure_train(self.round, arrays, config, view)
        nodes = hub.nodes
        if self.fraction_train < 1.0:
            nodes = random.sample(nodes, max(1, int(len(nodes) * self.fraction_train)))
        messages = []
        for node in nodes:
            settings = config
            if self.worker_config is not None:
                more = self.worker_config(self._worker_of[node], self.round)
                settings = ConfigRecord({**config, **more})
            record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: settings})
            messages.append(Message(record, node, MessageType.TRAIN))
        return messages

    def _log_absences(self, results: list[HubRound]) -> None:
        for d, result in enumerate(results):
            for absent in result.absent:
                log(
                    WARNING,
                    "Round %d, hub %d: worker %d (node %d) is absent, %s: %s",
                    self.round,
                    d,
                    self._worker_of[absent.node],
                    absent.node,
                    absent.cause,
                    absent.why[-500:],
                )

    def _train_metrics(self, results: list[HubRound]) -> MetricRecord | None:
        contents = [a.message.content for result in results for a in result.arrived]
        if not contents or not self.weighted:
            return None
        keys = {tuple(sorted(next(iter(c.metric_records.values())))) for c in contents}
        if len(keys) > 1:
            log(WARNING, "Replies have different metrics, which are not averaged: %s", keys)
            return None
        return self.train_metrics_aggr_fn(contents, self.weighted_by_key)


class _HubView(GridWrapper):
    """The part of a grid that one hub sees: its own workers."""

    def __init__(self, grid: Grid, nodes: list[int]) -> None:
        super().__init__(grid)
        self.nodes = nodes

    def get_node_ids(self) -> Iterable[int]:
        return self.nodes


def _fit(strategy: Any, nodes: int) -> None:
    """Lower a hub strategy's minimum numbers of nodes to what the hub has.

    Flower's strategies wait without end for their minimum, which is 2 unless it is set.
    """
    while strategy is not None:
        for name in ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"):
            if hasattr(strategy, name):
                setattr(strategy, name, min(getattr(strategy, name), nodes))
        strategy = getattr(strategy, "strategy", None)
