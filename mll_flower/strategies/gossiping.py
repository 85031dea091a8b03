"""`GossipingHubStrategy`: one hub of a deployment, which gossips with its neighbours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log

from mll_flower.gossip import Gossip, Snapshot, mix_with_neighbours
from mll_flower.grids.node_identity import wait_for_nodes
from mll_flower.models.layout import Layout
from mll_flower.models.subnetwork_average import AbsentRule
from mll_flower.models.sums import sum_models
from mll_flower.strategies.base import HubRoundsStrategy, RoundReport, WorkerConfig


class GossipingHubStrategy(HubRoundsStrategy):
    """One hub of a multi-level network as a Flower strategy.

    Its workers are the nodes of its own grid; a node that leaves or joins changes the hub's
    weight, which the neighbours learn with the next mixing's snapshot.

    Parameters
    ----------
    gossip : Gossip
        The link to the neighbours, `mll_flower.gossip.GrpcGossip` or in process.
    q : int
        Rounds between two mixings.
    rounds : int, optional
        Rounds of the whole run, after which nothing more is done. A hub that has caught up
        with its neighbours has fewer to go than it was started with.
    gossip_deadline : float
        Seconds after which a neighbour counts as silent at a mixing (rule 9).
    mixing_column : Mapping[str, float], optional
        H[j, d] by hub id, for an H that was made beforehand. Without it the metropolis
        weights are computed from what the neighbours' snapshots tell.
    tau, slot : int and float, optional
        Slots in a round and seconds a slot; sent to the nodes as ``tau`` and
        ``slot-seconds`` for those that honour budgets.
    deadline, absent, inner_strategy, worker_config, on_round, node_timeout
        As in `MultiLevelStrategy`.
    weighted_by_key : str or None
        Metric in a reply that is its worker's weight; None weighs all equally.
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
        tau: int | None = None,
        slot: float | None = None,
        deadline: float | None = None,
        absent: AbsentRule = "keep",
        inner_strategy: Strategy | None = None,
        worker_config: WorkerConfig | None = None,
        on_round: Callable[[RoundReport], None] | None = None,
        node_timeout: float = 300.0,
        weighted_by_key: str | None = "num-examples",
        **fedavg: Any,
    ) -> None:
        super().__init__(
            1,
            tau=tau,
            q=q,
            deadline=deadline,
            absent=absent,
            inner_strategy=inner_strategy,
            worker_config=worker_config,
            on_round=on_round,
            weighted_by_key=weighted_by_key,
            slot=slot,
            **fedavg,
        )
        self.gossip = gossip
        self.rounds = rounds
        self.gossip_deadline = gossip_deadline
        self.mixing_column = mixing_column
        self.node_timeout = node_timeout
        self.known_weights: dict[int, float] = {}
        self._ahead: int | None = None
        self._over = False

    @property
    def mixing_number(self) -> int:
        """How many mixings the rounds so far amount to."""
        return self.round // self.q

    def catch_up(self, timeout: float, like: ArrayRecord | None = None) -> bool:
        """Go on at the round in which the neighbours are; for hubs that start or come back late.

        Waits, at most ``timeout`` seconds, until a neighbour that is ahead completes a mixing,
        so that the next mixing comes for both at about the same time.

        Parameters
        ----------
        timeout : float
            Seconds to wait at most.
        like : ArrayRecord, optional
            Given by a hub that has no model of its own to go on with: arrays of the kind that
            it expects. It takes the mean of its neighbours' models, by their weights.

        Returns
        -------
        bool
            Whether there was anything to catch up with.
        """
        seen = self.gossip.latest_mixing()
        if seen is None or seen <= self.mixing_number:
            return False
        end = time.monotonic() + timeout
        newest = seen
        while newest == seen and time.monotonic() < end:
            time.sleep(0.2)
            newest = max(self.gossip.latest_mixing() or seen, seen)
        log(INFO, "Neighbours are at mixing %d, this hub was at %d", newest, self.mixing_number)
        self.round = newest * self.q
        if like is not None:
            self._adopt(Layout.of(like), timeout)
        return True

    def _adopt(self, layout: Layout, timeout: float) -> None:
        """Start from the neighbours' newest models."""
        expected = layout.arrays(layout.empty())
        theirs = list(self.gossip.fetch_latest(timeout, expected).arrived.values())
        if theirs:
            total = sum(snapshot.weight for snapshot in theirs)
            models = [layout.flatten(snapshot.arrays) for snapshot in theirs]
            self._restored = [sum_models(models, [s.weight / total for s in theirs])]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the hub's model to its workers, unless the run is over."""
        self._over = self.rounds is not None and self.round >= self.rounds
        return [] if self._over else super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average, and mix every q rounds; then go on where the neighbours are."""
        if self._over:
            return None, None
        result = super().aggregate_train(server_round, replies)
        # A neighbour that is one mixing ahead waits there: this hub's next one is the same. To
        # go past it would only make the two overtake each other for ever.
        if self._ahead is not None and self._ahead > self.mixing_number + 1:
            log(WARNING, "A neighbour is at mixing %d: this hub goes on there", self._ahead)
            self.round = self._ahead * self.q
        self._ahead = None
        return result

    def _make_hubs(self, arrays: ArrayRecord) -> None:
        super()._make_hubs(arrays)
        self.hubs[0].weights.update(self.known_weights)

    def _enrol(self, grid: Grid) -> None:
        if self.worker_of:
            nodes = self._connected(grid)
        else:
            nodes = wait_for_nodes(grid, self.min_available_nodes, self.node_timeout)
        hub = self.hubs[0]
        new = [n for n in nodes if n not in hub.nodes]
        numbers: dict[int, int] = {}
        for node in new:
            numbers[node] = self.worker_of.setdefault(node, len(self.worker_of))
        gone = set(hub.nodes) - set(nodes)
        if gone or (new and self.round):
            log(INFO, "Round %d: %d workers joined, %d left", self.round + 1, len(new), len(gone))
        self._seat({node: (0, number) for node, number in numbers.items()}, gone)

    def _connected(self, grid: Grid) -> list[int]:
        """Nodes that are there; if none is, wait for one, but no longer than a round lasts."""
        end = time.monotonic() + (self.deadline or 0.0)
        while True:
            nodes = sorted(grid.get_node_ids())
            if nodes or time.monotonic() >= end:
                return nodes
            time.sleep(0.5)

    def _mix(self) -> tuple[dict[str, str], dict[str, float]]:
        hub = self.hubs[0]
        own = Snapshot(
            run=self.gossip.run,
            mixing=self.mixing_number,
            hub=self.gossip.hub,
            weight=hub.weight,
            degree=len(self.gossip.neighbours),
            arrays=hub.layout.arrays(hub.model),
        )
        self.gossip.publish(own)
        exchange = self.gossip.exchange(self.mixing_number, self.gossip_deadline)
        for peer, why in exchange.silent.items():
            log(WARNING, "Mixing %d: hub %s is silent: %s", self.mixing_number, peer, why)
        mixed, column = mix_with_neighbours(own, exchange, self.mixing_column)
        hub.model = hub.layout.flatten(mixed)
        self._ahead = exchange.ahead
        return exchange.silent, column
