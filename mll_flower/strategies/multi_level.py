"""`MultiLevelStrategy`: all hubs of a multi-level network on one Flower grid.

The loop is Flower's own ``Strategy.start``. In one round every hub sends its model to its workers
and averages what comes back (`Hub.average`); after every q rounds the hubs mix through H. This is
a round of the paper if every node is one worker; in a simulation whose nodes host whole hubs, one
round of the strategy covers several (`mll_flower.apps.network_run`). What the strategy returns,
and what is evaluated, is the averaged model u.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from logging import WARNING
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from flwr.serverapp import Grid
from flwr.supercore import log
from numpy.typing import NDArray

from mll_flower.algorithm.corrections import Corrections
from mll_flower.algorithm.graphs import hub_graph
from mll_flower.algorithm.mixing import is_file, mixing_matrix
from mll_flower.algorithm.network import HubNetwork
from mll_flower.grids.node_identity import ask_identity, wait_for_nodes
from mll_flower.models._average_and_mix import average_and_mix
from mll_flower.models.hub_mixing import mix_models
from mll_flower.models.subnetwork_average import AbsentRule
from mll_flower.strategies.arguments import check_kind, check_whole
from mll_flower.strategies.base import HubRoundsStrategy, WorkerConfig
from mll_flower.strategies.corrections.settings import make_corrector
from mll_flower.strategies.evaluators import EvaluatedModel
from mll_flower.strategies.hub import Received
from mll_flower.strategies.inner_strategy import InnerStrategy
from mll_flower.strategies.metrics import MetricsFunction
from mll_flower.strategies.reports import HubRound, RoundReport

Assign = str | Callable[[int], int]


class MultiLevelStrategy(HubRoundsStrategy):
    """Multi-Level Local SGD with all hubs on one grid.

    Parameters
    ----------
    network : HubNetwork, optional
        Hubs, workers, weights and graph. Weights in replies are ignored, and a node that
        leaves counts as an absent worker.
    hubs, graph : int and str, Path or networkx.Graph, optional
        Instead of ``network``: the number of hubs and their graph. The workers are the nodes
        that are connected, and their weights come with their replies.
    assign : "even", "node-config:KEY" or callable
        With ``hubs``: which hub a node belongs to. ``even`` deals the nodes out in turn;
        ``node-config:KEY`` asks each node for that key of its node config (its ClientApp
        must call `mll_flower.answer_identity`); a function maps a node id to a hub number.
    workers : Mapping[int, int], optional
        With ``network``: node id -> worker number. Without it, workers are numbered in the
        order of their node ids.
    mixing : str or Path
        How H is made (see `mll_flower.mixing_matrix`), or a file that holds it.
    tau, slot : int and float, optional
        Slots per round and seconds per slot; sent to the nodes as ``tau`` and
        ``slot-seconds``, for ClientApps that use `mll_flower.budget`.
    q : int
        Rounds between two mixings.
    deadline : float, optional
        Seconds after which a round ends, even if some workers have not answered.
    absent : {"keep", "renormalise"}
        Whether the shares of absent workers stay with the model that their hub sent, or the
        shares of the others are scaled up.
    inner_strategy : Strategy or callable, optional
        A strategy of Flower's that aggregates inside each hub, in place of the weighted
        average; each hub gets a copy with its own state. Or a function that makes the strategy
        of a hub, ``lambda hub: ...``, for one that cannot be copied or differs between hubs.
    worker_config : callable, optional
        ``worker_config(worker, round)``: config for one worker's message alone.
    on_round : callable, optional
        Called with a `RoundReport` after each round.
    node_timeout : float
        Seconds to wait for nodes to connect, and for them to answer which hub they belong to.
    evaluate : {"averaged", "hub"}
        What the nodes evaluate: the averaged model u, or each node the model of its own hub.
    max_examples : float, optional
        Largest weight of a worker: one whose reply claims more counts as this much.
    max_update_norm : float or str, optional
        Largest Euclidean distance between a reply's model and the one that the hub sent: a number,
        or a multiple such as ``"5x"`` of the running median of the hub's workers. A reply above
        it is absent as ``too-large``.
    max_metrics, max_reply_bytes : int, optional
        Most values in the metrics of a reply, and most bytes of all its records; a reply with
        more is absent as ``too-large``, and is not read.
    corrections : Corrections, optional
        Which corrections that go past the paper are on; see docs/theory.md. With
        ``rate="inverse"`` the rates are those of ``network``, if any is below 1, and measured
        from the replies otherwise.
    step_size : callable, optional
        With corrections: the step size of a round, ``lambda round: ...``, if it changes during
        the run.
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
        inner_strategy: InnerStrategy | None = None,
        worker_config: WorkerConfig | None = None,
        on_round: Callable[[RoundReport], None] | None = None,
        node_timeout: float = 300.0,
        evaluate: EvaluatedModel = "averaged",
        max_examples: float | None = None,
        max_update_norm: float | str | None = None,
        max_metrics: int | None = None,
        max_reply_bytes: int | None = None,
        corrections: Corrections | None = None,
        step_size: Callable[[int], float] | None = None,
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
            raise ValueError("give either network= or hubs= (with graph=), and not both")
        if network is not None:
            check_kind("network", network, HubNetwork, "a HubNetwork, as HubNetwork.build(...)")
        if hubs is not None:
            check_whole("hubs", hubs, 1)
        check_kind("graph", graph, (str, Path, nx.Graph), "a name, a file or a networkx.Graph")
        check_kind("mixing", mixing, (str, Path), "the name of a rule, or a file with H")
        if callable(assign) == isinstance(assign, type) and (
            assign != "even" and not str(assign).startswith("node-config:")
        ):
            raise ValueError(f"assign={assign!r}: give 'even', 'node-config:KEY' or a function")
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
            node_timeout=node_timeout,
            evaluate=evaluate,
            weighted_by_key=weighted_by_key,
            weights_given=network is not None,
            max_examples=max_examples,
            max_update_norm=max_update_norm,
            max_metrics=max_metrics,
            max_reply_bytes=max_reply_bytes,
            corrector=make_corrector(
                corrections,
                tau=tau,
                q=q,
                absent=absent,
                inner_strategy=inner_strategy,
                step_size=step_size,
                worker_key=lambda node: self.worker_of[node],
                network=network,
            ),
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
        self.corrections = corrections or Corrections()
        self.step_size = step_size
        self.assign = assign
        self.workers = workers
        self.mixing = mixing
        self._h_of_shares: tuple[bytes, NDArray[np.float64]] | None = None
        self._has_mixed = False  # in this round, as part of averaging
        # Check H before anything starts. An H from a file can be checked only against the true
        # shares; if replies bring the weights, that happens at the first mixing.
        if network is not None:
            mixing_matrix(network.graph, network.b, mixing)
        elif not is_file(mixing):
            mixing_matrix(self.graph, np.full(len(self.graph), 1 / len(self.graph)), mixing)

    def _settings(self) -> dict[str, object]:
        degrees = sorted({degree for _, degree in self.graph.degree})
        return {
            "hubs": self.number_of_hubs,
            "graph": f"{self.graph.number_of_edges()} links, degrees {degrees}",
            "mixing": self.mixing,
            "workers": f"{self.network.workers} of a network" if self.network else None,
            "assign": None if self.network else self.assign,
            **super()._settings(),
        }

    def mixing_matrix(self) -> NDArray[np.float64]:
        """Return H for the present shares; it is computed again only when they have changed."""
        b = self.shares()
        if self._h_of_shares is None or self._h_of_shares[0] != b.tobytes():
            matrix = mixing_matrix(self.graph, b, self.mixing)
            if self.corrector is not None:
                matrix = self.corrector.safe(matrix)
            self._h_of_shares = b.tobytes(), matrix
        return self._h_of_shares[1]

    def _aggregate_in_hubs(self, received: Sequence[Received]) -> list[HubRound]:
        # Reports and corrections need every hub's average, and without a mixing the hubs keep them.
        at_once = self.on_round is None and self.corrector is None and self.round % self.q == 0
        self._has_mixed = at_once and self.number_of_hubs > 1 and self._average_and_mix(received)
        if self._has_mixed:
            return [of.outcome() for of in received]
        return super()._aggregate_in_hubs(received)

    def _average_and_mix(self, received: Sequence[Received]) -> bool:
        """Average and mix in one pass; change nothing if hubs mix differently or a z is unusual."""
        before = [dict(vars(hub)) for hub in self.hubs]
        for hub, of in zip(self.hubs, received, strict=True):
            hub.weights = hub.weights | of.weights()
        self._update_usual_weights()
        matrix = self.mixing_matrix()
        pairs = zip(self.hubs, received, strict=True)
        averages = [z for hub, of in pairs if (z := hub.summands(of)) is not None]
        model = None
        if len(averages) == len(self.hubs) and (matrix == matrix[:, :1]).all():
            model = average_and_mix(self.hubs[0].layout, averages, matrix[:, 0].tolist())
        for hub, state in zip(self.hubs, before, strict=True):
            if model is None:
                vars(hub).update(state)
            else:
                hub.model, hub.has_new_model = model, True
        return model is not None

    def _mix(self) -> tuple[dict[str, str], dict[str, float]]:
        if self._has_mixed:
            return {}, {}
        z = [hub.model for hub in self.hubs]
        if self.corrector is not None:
            weights = [hub.weight for hub in self.hubs]
            models = self.corrector.mix(z, self.mixing_matrix(), weights)
        else:
            # A model from before this round may be shared, and a report needs those of this round.
            spare = self.on_round is None and all(hub.has_new_model for hub in self.hubs)
            models = mix_models(z, self.mixing_matrix(), spare)
        for hub, model in zip(self.hubs, models, strict=True):
            hub.model = model
        return {}, {}

    def _update_workers(self, grid: Grid) -> None:
        if self.network is not None:
            if not self.worker_of:
                self._add_workers_of(self.network, grid)
            return
        first = not self.worker_of
        if first:
            needed = max(self.min_available_nodes, self.number_of_hubs)
            nodes = wait_for_nodes(grid, needed, self.node_timeout)
        else:  # a node that is no longer connected has left the network
            nodes = sorted(grid.get_node_ids())
        members = {node for hub in self.hubs for node in hub.nodes}
        try:
            joined = self._hub_and_number([n for n in nodes if n not in members], grid)
        except (RuntimeError, ValueError) as error:
            if first:
                raise
            log(WARNING, "Round %d: new nodes take no part in it: %s", self.round + 1, error)
            joined = {}
        self._change_workers(joined, left=members - set(nodes))
        if first and not all(hub.nodes for hub in self.hubs):
            empty = [d for d, hub in enumerate(self.hubs) if not hub.nodes]
            raise ValueError(f"hubs {empty} have no worker: assign at least one node to each hub")

    def _add_workers_of(self, network: HubNetwork, grid: Grid) -> None:
        """Wait for the nodes of a network, and give each its hub and its weight."""
        nodes = wait_for_nodes(grid, network.workers, self.node_timeout, among=self.workers)
        if len(nodes) > network.workers:
            raise ValueError(
                f"{len(nodes)} nodes for the {network.workers} workers of the network, so that "
                f"some belong to no hub: connect {network.workers}, or say with workers= which "
                "node is which worker"
            )
        joined = {}
        for place, node in enumerate(nodes):
            worker = place if self.workers is None else self.workers[node]
            d = int(network.hub_of[worker])
            joined[node] = d, worker
            self.hubs[d].weights[node] = float(network.w[worker])
        self._change_workers(joined)

    def _hub_and_number(self, nodes: list[int], grid: Grid) -> dict[int, tuple[int, int]]:
        """Return the hub and the worker number of each new node."""
        hub_named_by: dict[int, Any] = {}
        if nodes and isinstance(self.assign, str) and self.assign != "even":
            hub_named_by = self._ask_for_hub(nodes, self.assign.removeprefix("node-config:"), grid)
        result = {}
        free = len(self.worker_of)
        for node in nodes:
            number = self.worker_of.get(node, free)  # a node that comes back keeps its number
            free += number == free
            hub: Any = number % self.number_of_hubs
            if callable(self.assign):
                hub = self.assign(node)
            elif hub_named_by:
                hub = hub_named_by[node]
            if not isinstance(hub, (int, np.integer)) or not 0 <= hub < self.number_of_hubs:
                raise ValueError(
                    f"node {node} belongs to no hub: assign={self.assign!r} gave {hub!r}, "
                    f"expected a hub number from 0 to {self.number_of_hubs - 1}"
                )
            result[node] = int(hub), number
        return result

    def _ask_for_hub(self, nodes: list[int], key: str, grid: Grid) -> dict[int, Any]:
        """Ask nodes for a key of their node config."""
        # After the first round, workers must not wait for new nodes longer than a round lasts.
        limit = self.deadline if self.worker_of else None
        timeout = min(self.node_timeout, limit or self.node_timeout)
        answers = ask_identity(grid, nodes, timeout)
        return {node: identity.get(key) for node, identity in answers.items()}


def _check_workers(workers: Mapping[int, int], network: HubNetwork | None) -> None:
    check_kind("workers", workers, Mapping, "a mapping from node ids to worker numbers")
    if network is None:
        raise ValueError("workers= says which worker of a network a node is: give network= too")
    if sorted(workers.values()) != list(range(network.workers)):
        raise ValueError(
            f"workers={dict(workers)}: each of the workers 0 to {network.workers - 1} of the "
            "network must be exactly one node"
        )
