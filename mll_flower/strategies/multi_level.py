"""`MultiLevelStrategy`: all hubs of a multi-level network on one Flower grid.

The loop is Flower's own ``Strategy.start``. A round of it is a round of the paper: every
hub sends its model to its workers and averages what comes back (`Hub.average`); after
every q rounds the hubs mix through H. What the strategy returns, and what is evaluated,
is the averaged model u.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log
from numpy.typing import NDArray

from mll_flower.algorithm.graphs import hub_graph
from mll_flower.algorithm.mixing import is_file, mixing_matrix
from mll_flower.algorithm.network import HubNetwork
from mll_flower.grids.node_identity import ask_identity, wait_for_nodes
from mll_flower.models.hub_mixing import mix_models
from mll_flower.models.subnetwork_average import AbsentRule
from mll_flower.strategies.base import HubRoundsStrategy, MetricsFunction, RoundReport, WorkerConfig

Assign = str | Callable[[int], int]


class MultiLevelStrategy(HubRoundsStrategy):
    """Multi-Level Local SGD with all hubs on one grid.

    Parameters
    ----------
    network : HubNetwork, optional
        Hubs, workers, weights and graph. Its weights are used as they are, and a node that
        leaves is an absent worker.
    hubs, graph : int and str, Path or networkx.Graph, optional
        Instead of ``network``: the number of hubs and their graph. Workers are the nodes
        that are connected, and their weights come with their replies.
    assign : "even", "node-config:KEY" or callable
        With ``hubs``: which hub a node belongs to. ``even`` deals nodes out in turn;
        ``node-config:KEY`` asks each node for that key of its node config (its ClientApp
        must call `mll_flower.answer_identity`); a function maps a node id to a hub number.
    workers : Mapping[int, int], optional
        With ``network``: the worker number of each node id; else in the order of their ids.
    mixing : str or Path
        How H is made (`mll_flower.mixing_matrix`), or a file that holds it.
    tau, slot : int and float, optional
        Slots in a round and seconds a slot; sent to the nodes as ``tau`` and
        ``slot-seconds`` for those that honour budgets.
    q : int
        Rounds between two mixings.
    deadline : float, optional
        Seconds after which a round ends without those who have not answered.
    absent : {"keep", "renormalise"}
        Whether absent workers' shares stay with the model that their hub sent.
    inner_strategy : Strategy, optional
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
        slot: float | None = None,
        q: int = 1,
        deadline: float | None = None,
        absent: AbsentRule = "keep",
        inner_strategy: Strategy | None = None,
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
        train_metrics_aggr_fn: MetricsFunction | None = None,
        evaluate_metrics_aggr_fn: MetricsFunction | None = None,
    ) -> None:
        if (network is None) == (hubs is None):
            raise ValueError("give either network= or hubs= (with graph=), not both or neither")
        if isinstance(assign, str) and assign != "even" and not assign.startswith("node-config:"):
            raise ValueError(f"assign={assign!r}: give 'even', 'node-config:KEY' or a function")
        if hubs is not None and hubs < 1:
            raise ValueError(f"hubs={hubs}: there must be at least one")
        if workers is not None:
            _check_workers(workers, network)
        self.network = network
        self.graph = network.graph if network else hub_graph(graph, hubs or 0)
        super().__init__(
            len(self.graph),
            tau=tau,
            slot=slot,
            q=q,
            deadline=deadline,
            absent=absent,
            inner_strategy=inner_strategy,
            worker_config=worker_config,
            on_round=on_round,
            weighted_by_key=weighted_by_key,
            weights_given=network is not None,
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_train_nodes=min_train_nodes,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=min_available_nodes,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            train_metrics_aggr_fn=train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn,
        )
        self.assign = assign
        self.workers = workers
        self.mixing = mixing
        self.node_timeout = node_timeout
        self._h: tuple[bytes, NDArray[np.float64]] | None = None
        # A wrong H fails here, before anything starts; a file's needs the shares, which
        # come with the first replies unless there is a network.
        if network is not None:
            mixing_matrix(network.graph, network.b, mixing)
        elif not is_file(mixing):
            mixing_matrix(self.graph, np.full(len(self.graph), 1 / len(self.graph)), mixing)

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

    def mixing_matrix(self) -> NDArray[np.float64]:
        """H for the present shares; made anew only when these have changed."""
        b = self.shares()
        if self._h is None or self._h[0] != b.tobytes():
            self._h = b.tobytes(), mixing_matrix(self.graph, b, self.mixing)
        return self._h[1]

    def _mix(self) -> tuple[dict[str, str], dict[str, float]]:
        models = mix_models([hub.model for hub in self.hubs], self.mixing_matrix())
        for hub, model in zip(self.hubs, models, strict=True):
            hub.model = model
        return {}, {}

    def _enrol(self, grid: Grid) -> None:
        if self.network is not None:
            if not self.worker_of:
                self._enrol_workers(self.network, grid)
            return
        first = not self.worker_of
        if first:
            needed = max(self.min_available_nodes, self.number_of_hubs)
            nodes = wait_for_nodes(grid, needed, self.node_timeout)
        else:  # later on, whoever is not connected has left the network
            nodes = sorted(grid.get_node_ids())
        seated = {node for hub in self.hubs for node in hub.nodes}
        try:
            places = self._places([n for n in nodes if n not in seated], grid)
        except (RuntimeError, ValueError) as error:
            if first:
                raise
            log(WARNING, "Round %d: new nodes have no part in it: %s", self.round + 1, error)
            places = {}
        self._seat(places, gone=seated - set(nodes))
        if first and not all(hub.nodes for hub in self.hubs):
            empty = [d for d, hub in enumerate(self.hubs) if not hub.nodes]
            raise ValueError(f"hubs {empty} have no worker: assign at least one node to each hub")

    def _enrol_workers(self, network: HubNetwork, grid: Grid) -> None:
        nodes = wait_for_nodes(grid, network.workers, self.node_timeout, among=self.workers)
        if len(nodes) > network.workers:
            raise ValueError(
                f"{len(nodes)} nodes for the {network.workers} workers of the network, so that "
                f"some belong to no hub: connect {network.workers}, or say with workers= which "
                "node is which worker"
            )
        places = {}
        for place, node in enumerate(nodes):
            worker = place if self.workers is None else self.workers[node]
            d = int(network.hub_of[worker])
            places[node] = d, worker
            self.hubs[d].weights[node] = float(network.w[worker])
        self._seat(places)

    def _places(self, nodes: list[int], grid: Grid) -> dict[int, tuple[int, int]]:
        """Hub and number of each new node."""
        told: dict[int, Any] = {}
        if nodes and isinstance(self.assign, str) and self.assign != "even":
            key = self.assign.removeprefix("node-config:")
            # Those who are there already do not wait longer than a round for new ones.
            limit = self.deadline if self.worker_of else None
            timeout = min(self.node_timeout, limit or self.node_timeout)
            told = {n: i.get(key) for n, i in ask_identity(grid, nodes, timeout).items()}
        places = {}
        free = len(self.worker_of)
        for node in nodes:
            number = self.worker_of.get(node, free)  # a node that comes back is who it was
            free += number == free
            hub: Any = number % self.number_of_hubs
            if callable(self.assign):
                hub = self.assign(node)
            elif told:
                hub = told[node]
            if not isinstance(hub, (int, np.integer)) or not 0 <= hub < self.number_of_hubs:
                raise ValueError(
                    f"node {node} belongs to no hub: assign={self.assign!r} gave {hub!r}, "
                    f"expected a hub number from 0 to {self.number_of_hubs - 1}"
                )
            places[node] = int(hub), number
        return places


def _check_workers(workers: Mapping[int, int], network: HubNetwork | None) -> None:
    if network is None:
        raise ValueError("workers= says which worker of a network a node is: give network= too")
    if sorted(workers.values()) != list(range(network.workers)):
        raise ValueError(
            f"workers={dict(workers)}: each of the workers 0 to {network.workers - 1} of the "
            "network must be exactly one node"
        )
