"""Run one hub of a deployment, by real time: `GossipingHubStrategy` with records and checkpoints.

This is what the project's ServerApp does when the run config says ``role = "hub"``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import networkx as nx
from flwr.serverapp import Grid
from flwr.supercore import log
from safetensors.numpy import save_file

from mll_flower.apps.hub_record import HubRecord
from mll_flower.config import RunConfig
from mll_flower.deployment.hub_gossip import start_gossip
from mll_flower.deployment.hub_state import BEGUN, MODEL_FILE, Phase, hub_directory
from mll_flower.deployment.mixing_column import mixing_column
from mll_flower.deployment.network_file import load_network
from mll_flower.deployment.shared_terms import layout_term
from mll_flower.gossip import Gossip
from mll_flower.grids.deadline import DeadlineGrid
from mll_flower.models.checkpoint import FILE, load_checkpoint, save_checkpoint
from mll_flower.models.layout import Flat
from mll_flower.strategies.gossiping import GossipingHubStrategy
from mll_flower.strategies.reports import RoundReport
from mll_flower.training.run_engine import ALONE, run_engine

# Seconds between two looks for replies: more often would only keep the SuperLink busy.
_POLL = 0.5
# Seconds that a hub that has come back waits for the rest of its workers, if it has one.
_RETURN_WAIT = 30.0


def run_hub(grid: Grid, values: Mapping[str, Any]) -> Path:
    """Run the hub that a run config names; return the folder of its results.

    Parameters
    ----------
    grid : Grid
        The grid of the hub's workers.
    values : Mapping
        The run config.
    """
    run = _HubRun(grid, values)
    try:
        return run.play()
    except BaseException as error:
        run.record.phase(Phase.FAILED, error=f"{type(error).__name__}: {error}"[:500])
        run.gossip.close()
        raise


class _HubRun:
    """The parts of a hub, and what happens before, between and after its rounds."""

    def __init__(self, grid: Grid, values: Mapping[str, Any]) -> None:
        self.config = config = RunConfig.from_run_config(values, check=False)
        self.network = network = load_network(str(values["network"]))
        self.entry = network.hub(str(values["hub"]))
        folder = Path(config.output) if config.output else hub_directory(network, self.entry.id)
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.grid = DeadlineGrid(grid, network.round_deadline, _POLL)
        run, insecure = str(values.get("run-name") or network.name), values.get("insecure") is True
        # First of all, so that neighbours that start earlier can reach this hub.
        self.gossip = start_gossip(network, self.entry.id, run, insecure=insecure)
        self.record = HubRecord(self.folder, run, self.entry.id, self.gossip)
        self.record.phase(Phase.STARTING, pid=os.getpid())
        try:
            # It makes the initial model and evaluates; it trains no worker.
            self.engine = run_engine(replace(config, partition="iid"), ALONE)
            self.gossip.agree_on(model_layout=layout_term(self.engine.layout))
            self.strategy = GossipingHubStrategy(
                self.gossip,
                q=network.q,
                rounds=network.rounds,
                gossip_deadline=network.gossip_deadline,
                mixing_column=mixing_column(network, config, self.entry.id),
                tau=network.tau,
                slot=network.slot,
                deadline=network.round_deadline,
                absent=config.absent_rule,
                on_round=self._after_round,
                weighted_by_key="weight",
                min_available_nodes=1,
                node_timeout=config.node_timeout,
                fraction_evaluate=0.0,
            )
        except BaseException:
            self.gossip.close()
            raise

    def play(self) -> Path:
        """Run Flower's loop over the rounds that are left."""
        start = self.engine.layout.record(self.engine.initial())
        resumed = self._resume()
        self._wait_for_workers(resumed)
        if not resumed:
            levels = nx.diameter(self.network.graph) + 1
            wait_for_neighbours(self.gossip, self.record, levels, self.config.node_timeout)
        behind = self.network.q * self.network.round_deadline + self.network.gossip_deadline
        if self.strategy.catch_up(behind, None if resumed else start) and not resumed:
            self.record.event("joined", round=self.strategy.round)
        self.record.event("begins", round=self.strategy.round, resumed=resumed)
        left = max(0, self.network.rounds - self.strategy.round)
        self.record.phase(Phase.TRAINING)
        log(INFO, "Hub %s: %d rounds to go; results in %s", self.entry.id, left, self.folder)
        self.strategy.start(self.grid, start, num_rounds=left, timeout=self.network.round_deadline)
        self._finish()
        return self.folder

    def _resume(self) -> bool:
        """Go on from the checkpoint of this run, if one exists; return whether it does."""
        path = self.folder / FILE
        if not path.is_file():
            return False
        checkpoint = load_checkpoint(path)
        if checkpoint.extra["run"] != self.gossip.run:
            log(WARNING, "%s belongs to run %r: not used", path, checkpoint.extra["run"])
            return False
        if checkpoint.layout != self.engine.layout:
            raise ValueError(
                f"{path} holds another model than this run trains: give the run another name in "
                "the network file, or move the checkpoint away"
            )
        self.record.complete(checkpoint.extra["row"])
        self.strategy.restore(checkpoint.round, checkpoint.models)
        since = time.time() - checkpoint.extra["row"]["time"]
        self.gossip.pace.begin(checkpoint.round // self.network.q, since)
        self.strategy.known_weights = {
            int(node): weight for node, weight in checkpoint.extra["weights"].items()
        }
        log(INFO, "Hub %s goes on after round %d", self.entry.id, checkpoint.round)
        return True

    def _wait_for_workers(self, resumed: bool) -> None:
        """Wait for all workers; begin without some of them rather than not at all."""
        expected, started = self.entry.workers, time.monotonic()
        self.record.phase(Phase.WAITING_FOR_WORKERS)
        while True:
            count = len(list(self.grid.get_node_ids()))
            waited = time.monotonic() - started
            if count >= expected or waited >= self.config.node_timeout:
                break
            if resumed and count and waited >= _RETURN_WAIT:
                break
            time.sleep(0.5)
        if count < expected:
            log(WARNING, "%d of %d workers are connected after %.0f s", count, expected, waited)

    def _after_round(self, report: RoundReport) -> None:
        hub = self.strategy.hubs[0]
        row = self.record.row(
            report,
            self.strategy,
            self.grid,
            self.config.learning_rate_at((report.number - 1) * self.network.tau),
        )
        if report.mixed and report.number % self.config.evaluate_rounds() == 0:
            started = time.monotonic()
            loss, accuracy = self.engine.evaluate(
                hub.model, "test", limit=self.config.evaluate_limit or None
            )
            row.update(
                test_loss=loss, accuracy=accuracy, evaluation_seconds=time.monotonic() - started
            )
        # The checkpoint first, with the row in it: a crash between the two loses neither.
        save_checkpoint(
            self.folder / FILE,
            report.number,
            self.engine.layout,
            [hub.model],
            {"run": self.gossip.run, "weights": hub.weights, "row": row},
        )
        self.record.write(row)

    def _finish(self) -> None:
        model = self.strategy.hubs[0].model if self.strategy.hubs else self._restored_model()
        save_file(self.engine.layout.arrays(model), self.folder / MODEL_FILE)
        # A neighbour that was silent may still come for this hub's last snapshot.
        grace = self.network.gossip_deadline if self.record.silent else 1.0
        self.record.phase(Phase.FINISHING)
        self.gossip.close(grace)
        self.record.phase(Phase.FINISHED)

    def _restored_model(self) -> Flat:
        """Return the model of a hub that came back after the run's last round."""
        path = self.folder / FILE
        return load_checkpoint(path).models[0] if path.is_file() else self.engine.initial()


def wait_for_neighbours(gossip: Gossip, record: HubRecord, levels: int, timeout: float) -> None:
    """Wait until all hubs have their workers, so that all begin together.

    A hub sees only its neighbours, so readiness spreads in levels: a hub that is ready is at
    level 1, and then one level above the lowest of its neighbours. At level n, all hubs within
    n - 1 links are ready. A hub whose time is up begins, and its neighbours with it.

    Parameters
    ----------
    gossip : Gossip
        The hub's link to its neighbours.
    record : HubRecord
        Publishes the hub's own level.
    levels : int
        The level at which all hubs are ready: the diameter of the hub graph, and 1.
    timeout : float
        Seconds to wait at most.
    """
    end = time.monotonic() + timeout
    level = 1
    level_of: dict[str, int] = {}
    while level < levels and time.monotonic() < end:
        record.phase(Phase.READY, level=level)
        time.sleep(0.3)
        for peer, answer in gossip.peer_status(2.0).items():
            status = answer.status if answer.status.get("run") == gossip.run else {}
            if status.get("phase") in BEGUN:
                return
            its_level = status.get("level")
            level_of[peer] = its_level if isinstance(its_level, int) else 0
        level = min(levels, 1 + min(level_of.values(), default=levels))
    if level < levels:
        lowest = min(level_of.values(), default=0)
        slow = ", ".join(peer for peer, reached in level_of.items() if reached == lowest)
        log(WARNING, "Hub %s did not get ready in time: this hub begins", slow)
