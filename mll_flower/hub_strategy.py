"""`HubStrategy`: one hub of a deployment, which gossips with its neighbours."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from logging import INFO, WARNING
from typing import Any

from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log

from mll_flower.averaging import AbsentRule
from mll_flower.gossip import Gossip, Snapshot, mix
from mll_flower.identity import wait_for_nodes
from mll_flower.strategy_base import HubsStrategy, RoundReport, WorkerConfig


class HubStrategy(HubsStrategy):
    """One hub of a multi-level network as a Flower strategy.

    Its workers are the nodes of its own grid; a node that leaves or joins changes the hub's
    weight, which the neighbours learn with the next mixing's snapshot.

    Parameters
    ----------
    gossip : Gossip
        The link to the neighbours, `mll_flower.gossip.NetworkGossip` or in process.
    q : int
        Rounds between two mixings.
    gossip_deadline : float
        Seconds after which a neighbour counts as silent at a mixing (rule 9).
    mixing_column : Mapping[str, float], optional
        H[j, d] by hub id, for an H that was made beforehand. Without it the metropolis
        weights are computed from what the neighbours' snapshots tell.
    tau, slot : int and float, optional
        Slots in a round and seconds a slot; sent to the nodes as ``tau`` and
        ``slot-seconds`` for those that honour budgets.
    deadline, absent, hub_strategy, worker_config, on_round, node_timeout
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
        gossip_deadline: float = 10.0,
        mixing_column: Mapping[str, float] | None = None,
        tau: int | None = None,
        slot: float | None = None,
        deadline: float | None = None,
        absent: AbsentRule = "keep",
        hub_strategy: Strategy | None = None,
        worker_config: WorkerConfig | None = None,
        on_round: Callable[[RoundReport], None] | None = None,
        node_timeout: float = 300.0,
        weighted_by_key: str | None = "num-examples",
        **fedavg: Any,
    ) -> None:
        if slot is not None:
            worker_config = _with_slot(worker_config, slot)
        super().__init__(
            1,
            tau=tau,
            q=q,
            deadline=deadline,
            absent=absent,
            hub_strategy=hub_strategy,
            worker_config=worker_config,
            on_round=on_round,
            weighted_by_key=weighted_by_key,
            **fedavg,
        )
        self.gossip = gossip
        self.gossip_deadline = gossip_deadline
        self.mixing_column = mixing_column
        self.node_timeout = node_timeout

    @property
    def mixing_number(self) -> int:
        """How many mixings the rounds so far amount to."""
        return self.round // self.q

    def catch_up(self, timeout: float) -> None:
        """After a restart, go on at the round in which the neighbours are.

        Waits, at most ``timeout`` seconds, until a neighbour that is ahead completes a mixing,
        so that the next mixing comes for both at about the same time.
        """
        seen = self.gossip.latest_mixing()
        if seen is None or seen <= self.mixing_number:
            return
        end = time.monotonic() + timeout
        newest = seen
        while newest == seen and time.monotonic() < end:
            time.sleep(0.2)
            newest = max(self.gossip.latest_mixing() or seen, seen)
        log(INFO, "Neighbours are at mixing %d, this hub was at %d", newest, self.mixing_number)
        self.round = newest * self.q

    def _enrol(self, grid: Grid) -> None:
        nodes = (
            sorted(grid.get_node_ids())
            if self.worker_of
            else wait_for_nodes(grid, self.min_available_nodes, self.node_timeout)
        )
        new = [n for n in nodes if n not in self.worker_of or n not in self.hubs[0].nodes]
        numbers = {n: self.worker_of.get(n, len(self.worker_of) + i) for i, n in enumerate(new)}
        gone = set(self.hubs[0].nodes) - set(nodes)
        if gone or (new and self.round):
            log(INFO, "Round %d: %d workers joined, %d left", self.round + 1, len(new), len(gone))
        self._seat({node: (0, number) for node, number in numbers.items()}, gone)

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
        mixed, column = mix(own, exchange, self.mixing_column)
        hub.model = hub.layout.flatten(mixed)
        if exchange.ahead is not None and exchange.ahead > self.mixing_number:
            log(WARNING, "A neighbour is at mixing %d: this hub goes on there", exchange.ahead)
            self.round = exchange.ahead * self.q
        return exchange.silent, column


def _with_slot(worker_config: WorkerConfig | None, slot: float) -> WorkerConfig:
    def config(worker: int, round: int) -> Mapping[str, Any]:
        more = worker_config(worker, round) if worker_config else {}
        return {"slot-seconds": slot, **more}

    return config
