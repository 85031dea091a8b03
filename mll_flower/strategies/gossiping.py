"""`GossipingHubStrategy`: one hub of a deployment, which gossips with its neighbours.

Every hub runs this strategy on a grid of its own, with Flower's own loop. No process sees the
whole network: at a mixing the hub publishes its model, collects those of its neighbours for as
long as the gossip deadline allows, and mixes what has arrived.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.supercore import log

from mll_flower.algorithm.corrections import Corrections
from mll_flower.gossip import Gossip, Snapshot, mix_with_neighbours, wait_for_hubs
from mll_flower.gossip.local_mixing import mixing_weights
from mll_flower.gossip.start_barrier import BEGUN
from mll_flower.grids.node_identity import wait_for_nodes
from mll_flower.models.layout import Flat, Layout, Vector
from mll_flower.models.subnetwork_average import AbsentRule
from mll_flower.models.sums import sum_models
from mll_flower.strategies.arguments import check_kind, check_seconds, check_whole
from mll_flower.strategies.base import HubRoundsStrategy, WorkerConfig
from mll_flower.strategies.corrections.gossip import GossipCorrector
from mll_flower.strategies.corrections.settings import check_gossip, make_corrector
from mll_flower.strategies.history import History
from mll_flower.strategies.inner_strategy import InnerStrategy
from mll_flower.strategies.reports import MultiLevelResult, RoundReport


class GossipingHubStrategy(HubRoundsStrategy):
    """One hub of a multi-level network as a Flower strategy.

    Its workers are the nodes of its own grid. A node that leaves or joins changes the hub's
    weight, which its neighbours learn at the next mixing.

    Parameters
    ----------
    gossip : Gossip
        The link to the neighbours: `mll_flower.gossip.grpc_client.GrpcGossip`, or
        `mll_flower.gossip.InProcessGossip` for hubs in one process.
    q : int
        Rounds between two mixings.
    rounds : int, optional
        Rounds of the whole run, after which the strategy does nothing more. A hub that skips
        rounds to catch up with its neighbours gets there before ``num_rounds`` rounds.
    gossip_deadline : float
        Seconds after which a neighbour counts as silent at a mixing. Its weight in this hub's
        mix then goes to this hub's own model.
    mixing_column : Mapping[str, float], optional
        H[j, d] by hub id, for an H that was made beforehand. Without it the hub computes
        metropolis weights from the weights and degrees that its neighbours publish.
    tau, slot : int and float, optional
        Slots per round and seconds per slot; sent to the nodes as ``tau`` and
        ``slot-seconds``, for ClientApps that use `mll_flower.budget`.
    neighbour_timeout : float, optional
        Seconds that `start` waits until all hubs are ready, so that they begin together; then
        it begins with those that are. ``node_timeout`` if not given; 0 to begin at once. A hub
        that goes on after `restore` or `catch_up` does not wait.
    deadline, absent, inner_strategy, worker_config, on_round, node_timeout, max_examples, \
max_update_norm, max_metrics, max_reply_bytes
        As in `MultiLevelStrategy`.
    weighted_by_key : str or None
        The metric of a reply that holds its worker's weight; None weighs all equally.
    max_neighbour_norm : float or str, optional
        Largest Euclidean distance between a neighbour's model and this hub's own at a mixing: a
        number, or a multiple such as ``"5x"`` of the running median of such distances. A model
        above it is refused, and neither end uses the link at this mixing.
    corrections, step_size
        As in `MultiLevelStrategy`; all hubs must have the same. ``rate="inverse"`` needs
        ``mean_rate``. With ``hub="exact-diffusion"`` a given ``mixing_column`` must be of an H
        without eigenvalues below -1/3.
    **fedavg
        Further arguments of Flower's ``FedAvg``.
    """

    def __init__(
        self,
        gossip: Gossip,
        *,
        q: int = 1,
        rounds: int | None = None,
        gossip_deadline: float = 10.0,
        mixing_column: Mapping[str, float] | None = None,
        neighbour_timeout: float | None = None,
        tau: int | None = None,
        slot: float | None = None,
        deadline: float | None = None,
        absent: AbsentRule = "keep",
        inner_strategy: InnerStrategy | None = None,
        worker_config: WorkerConfig | None = None,
        on_round: Callable[[RoundReport], None] | None = None,
        node_timeout: float = 300.0,
        weighted_by_key: str | None = "num-examples",
        max_examples: float | None = None,
        max_update_norm: float | str | None = None,
        max_metrics: int | None = None,
        max_reply_bytes: int | None = None,
        max_neighbour_norm: float | str | None = None,
        corrections: Corrections | None = None,
        step_size: Callable[[int], float] | None = None,
        **fedavg: Any,
    ) -> None:
        check_kind("gossip", gossip, Gossip, "a Gossip, such as InProcessGossip(...)")
        check_seconds("gossip_deadline", gossip_deadline)
        if rounds is not None:
            check_whole("rounds", rounds, 0)
        check_gossip(corrections)
        corrector = make_corrector(
            corrections,
            tau=tau,
            q=q,
            absent=absent,
            inner_strategy=inner_strategy,
            step_size=step_size,
            worker_key=lambda node: node,
            kind=GossipCorrector,
        )
        super().__init__(
            1,
            corrector=corrector,
            tau=tau,
            slot=slot,
            q=q,
            deadline=deadline,
            absent=absent,
            inner_strategy=inner_strategy,
            worker_config=worker_config,
            on_round=on_round,
            node_timeout=node_timeout,
            weighted_by_key=weighted_by_key,
            max_examples=max_examples,
            max_update_norm=max_update_norm,
            max_metrics=max_metrics,
            max_reply_bytes=max_reply_bytes,
            **fedavg,
        )
        self.corrector: GossipCorrector | None = corrector
        self.gossip = gossip
        gossip.limit_distance(max_neighbour_norm)
        self.rounds = rounds
        self.gossip_deadline = gossip_deadline
        self.mixing_column = mixing_column
        self.neighbour_timeout = node_timeout if neighbour_timeout is None else neighbour_timeout
        self.known_weights: dict[int, float] = {}  # by node id, from a checkpoint
        self.known_weight: float | None = None  # of the hub, before its workers report theirs
        self._neighbour_mixing: int | None = None  # of the neighbour that is furthest ahead
        self._run_over = False
        self._begun = False

    @property
    def mixing_number(self) -> int:
        """Number of mixings up to the present round."""
        return self.round // self.q

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
        """Wait for the workers and the other hubs, then run Flower's own loop."""
        if not self._begun:
            wait_for_nodes(grid, self.min_available_nodes, self.node_timeout)
            self._meet_neighbours()
        return super().start(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )

    def _meet_neighbours(self) -> bool:
        """Wait for the other hubs if the run begins; return whether they begin together."""
        self._begun = True
        if self.round == 0:
            return wait_for_hubs(self.gossip, self._publish, self.neighbour_timeout)
        self._publish(start=BEGUN)
        return False

    def _publish(self, **status: Any) -> None:
        """Add to the status that the neighbours see."""
        self.gossip.update_status(**status)

    def catch_up(self, timeout: float, like: ArrayRecord | None = None, lead: int = 0) -> bool:
        """Jump to the neighbours' round; for hubs that start late or return.

        Waits, at most ``timeout`` seconds, until a neighbour that is ahead completes a mixing,
        so that both reach the next mixing at about the same time.

        Parameters
        ----------
        timeout : float
            Seconds to wait at most.
        like : ArrayRecord, optional
            For a hub that has no model of its own: arrays with the names, shapes and dtypes
            that it expects. It starts from the weighted mean of its neighbours' models.
        lead : int
            Mixings by which neighbours may be ahead without this hub's catching up: 1 for
            hubs that began together, as the faster one waits at its next mixing.

        Returns
        -------
        bool
            Whether a neighbour was ahead.
        """
        seen = self.gossip.latest_mixing()
        if seen is None or seen <= self.mixing_number + lead:
            return False
        end = time.monotonic() + timeout
        newest = seen
        while newest == seen and time.monotonic() < end:
            time.sleep(0.2)
            newest = max(self.gossip.latest_mixing() or seen, seen)
        log(INFO, "Neighbours are at mixing %d, this hub was at %d", newest, self.mixing_number)
        self.round = newest * self.q
        if like is not None:
            self._start_from_neighbours(Layout.of(like), timeout)
        return True

    def _start_from_neighbours(self, layout: Layout, timeout: float) -> None:
        """Take the weighted mean of the neighbours' newest models as the hub's model."""
        expected = self._published(layout, layout.empty())
        snapshots = list(self.gossip.fetch_latest(timeout, expected).arrived.values())
        if snapshots:
            models = [layout.flatten(snapshot.arrays) for snapshot in snapshots]
            weights = [snapshot.weight for snapshot in snapshots]
            if not any(weights):  # none of them knows its weight yet
                weights = [1.0] * len(snapshots)
            shares = [weight / sum(weights) for weight in weights]
            self._restored_models = [sum_models(models, shares)]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the hub's model to its workers, unless the run is over."""
        self._run_over = self.rounds is not None and self.round >= self.rounds
        return [] if self._run_over else super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average, mix every q rounds, and catch up with neighbours that are far ahead."""
        if self._run_over:
            return None, None
        result = super().aggregate_train(server_round, replies)
        # A neighbour that is one mixing ahead waits for this hub at its next one. Skipping
        # that mixing would only make the two hubs overtake each other for ever.
        ahead = self._neighbour_mixing
        if ahead is not None and ahead > self.mixing_number + 1:
            log(WARNING, "A neighbour is at mixing %d: this hub continues there", ahead)
            self.round = ahead * self.q
        self._neighbour_mixing = None
        return result

    def _check_run(self, history: History) -> None:
        # A hub that has come back may have only a few rounds left, and no worker in them.
        if not self._resumed:
            super()._check_run(history)

    def _settings(self) -> dict[str, object]:
        column = None if self.mixing_column is None else dict(self.mixing_column)
        return {
            "hub": self.gossip.hub,
            "neighbours": ", ".join(self.gossip.neighbours),
            "gossip_deadline": self.gossip_deadline,
            "rounds": self.rounds,
            "mixing_column": column,
            "max_neighbour_norm": self.gossip.max_distance,
            **super()._settings(),
        }

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask workers to evaluate the hub's model, unless the run is over or none is connected."""
        if self._run_over or (self.fraction_evaluate and not list(grid.get_node_ids())):
            return []
        return super().configure_evaluate(server_round, arrays, config, grid)

    def _make_hubs(self, arrays: ArrayRecord) -> None:
        super()._make_hubs(arrays)
        self.hubs[0].weights.update(self.known_weights)
        self.hubs[0].last_weight = self.known_weight

    def _update_workers(self, grid: Grid) -> None:
        if self.worker_of or self._resumed:  # a hub that has come back goes on without workers
            nodes = self._connected_nodes(grid)
        else:
            nodes = wait_for_nodes(grid, self.min_available_nodes, self.node_timeout)
        hub = self.hubs[0]
        joined: dict[int, tuple[int, int]] = {}
        for node in nodes:
            if node not in hub.nodes:
                joined[node] = 0, self.worker_of.setdefault(node, len(self.worker_of))
        left = set(hub.nodes) - set(nodes)
        if left or (joined and self.round):
            counts = len(joined), len(left)
            log(INFO, "Round %d: %d workers joined, %d left", self.round + 1, *counts)
        self._change_workers(joined, left)

    def _connected_nodes(self, grid: Grid) -> list[int]:
        """Return the connected nodes; if none is, wait for one, at most as long as a round."""
        end = time.monotonic() + (self.deadline or 0.0)
        while True:
            nodes = sorted(grid.get_node_ids())
            if nodes or time.monotonic() >= end:
                return nodes
            time.sleep(0.5)

    def _mix(self) -> tuple[dict[str, str], dict[str, float]]:
        hub, corrector = self.hubs[0], self.corrector
        own = Snapshot(
            run=self.gossip.run,
            mixing=self.mixing_number,
            hub=self.gossip.hub,
            weight=hub.reported_weight,
            degree=len(self.gossip.neighbours),
            arrays=self._published(hub.layout, hub.model),
            links=corrector.uses if corrector is not None else {},
        )
        self.gossip.publish(own)
        if not own.weight:
            why = "no worker has reported its weight yet"
            log(INFO, "Mixing %d: %s, so that this hub weighs nothing", self.mixing_number, why)
        exchange = self.gossip.exchange(self.mixing_number, self.gossip_deadline)
        for peer, why in exchange.silent.items():
            log(WARNING, "Mixing %d: hub %s is silent: %s", self.mixing_number, peer, why)
        if corrector is None:
            mixed, column = mix_with_neighbours(own, exchange, self.mixing_column)
            hub.model = hub.layout.flatten(mixed)
        else:
            positive = corrector.settings.hub != "none"
            column = mixing_weights(own, exchange, self.mixing_column, positive)
            arrived, silent = exchange.arrived, list(exchange.silent)
            hub.model = corrector.mix_with(hub, own.hub, arrived, silent, column)
        self._neighbour_mixing = exchange.ahead
        return exchange.silent, column

    def _published(self, layout: Layout, model: Flat) -> dict[str, Vector]:
        """Return the arrays that the hub offers to its neighbours."""
        if self.corrector is None:
            return layout.arrays(model)
        return self.corrector.published(layout, model)
