"""One hub of a deployment: a thin user of `GossipingHubStrategy`, by real time."""

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

from mll_flower.apps.hub_record import BEGUN, HubRecord
from mll_flower.config import RunConfig
from mll_flower.deployment.connect import connect
from mll_flower.deployment.mixing_column import mixing_column
from mll_flower.deployment.network_file import load_network
from mll_flower.grids.deadline import DeadlineGrid
from mll_flower.models.checkpoint import FILE, load_checkpoint, save_checkpoint
from mll_flower.models.layout import Flat
from mll_flower.strategies.base import RoundReport
from mll_flower.strategies.gossiping import GossipingHubStrategy
from mll_flower.training.engine import Engine
from mll_flower.training.run_engine import ALONE, run_engine

# A round of a deployment lasts seconds; looking more often only keeps the SuperLink busy.
_POLL = 0.5
# Seconds that a hub waits, after the first worker is there, for the others when it comes back.
_RETURN = 30.0


def run_hub(grid: Grid, values: Mapping[str, Any]) -> Path:
    """Run the hub that a run config names; return where its results are."""
    run = _HubRun(grid, values)
    try:
        return run.play()
    except BaseException as error:
        run.record.phase("failed", error=f"{type(error).__name__}: {error}"[:500])
        run.gossip.close()
        raise


class _HubRun:
    """The parts of a hub, and what happens after each of its rounds."""

    def __init__(self, grid: Grid, values: Mapping[str, Any]) -> None:
        self.config = config = RunConfig.from_run_config(values, check=False)
        self.network = network = load_network(str(values["network"]))
        self.entry = network.hub(str(values["hub"]))
        folder = config.output or str(network.path.parent / "state" / f"hub-{self.entry.id}")
        self.folder = Path(folder).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.grid = DeadlineGrid(grid, network.round_deadline, _POLL)
        run, insecure = str(values.get("run-name") or network.name), values.get("insecure") is True
        # First of all, so that neighbours that are early see this hub.
        self.gossip = connect(network, self.entry.id, run, insecure=insecure)
        self.record = HubRecord(self.folder, run, self.entry.id, self.gossip)
        self.record.phase("starting", pid=os.getpid())
        try:
            self.engine = _engine(config)
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
        self._await_workers(resumed)
        if not resumed:
            self._await_neighbours()
        behind = self.network.q * self.network.round_deadline + self.network.gossip_deadline
        if self.strategy.catch_up(behind, None if resumed else start) and not resumed:
            self.record.event("joined", round=self.strategy.round)
        self.record.event("begins", round=self.strategy.round, resumed=resumed)
        left = max(0, self.network.rounds - self.strategy.round)
        self.record.phase("training")
        log(INFO, "Hub %s: %d rounds to go; results in %s", self.entry.id, left, self.folder)
        self.strategy.start(self.grid, start, num_rounds=left, timeout=self.network.round_deadline)
        self._finish()
        return self.folder

    def _resume(self) -> bool:
        """Go on from the checkpoint of this run, if there is one."""
        path = self.folder / FILE
        if not path.is_file():
            return False
        checkpoint = load_checkpoint(path)
        if checkpoint.extra["run"] != self.gossip.run:
            log(WARNING, "%s is of run %r: not used", path, checkpoint.extra["run"])
            return False
        if checkpoint.layout != self.engine.layout:
            raise ValueError(
                f"{path} holds another model than this run trains: give the run another name in "
                "the network file, or move the checkpoint away"
            )
        self.record.complete(checkpoint.extra["row"])
        self.strategy.restore(checkpoint.round, checkpoint.models)
        self.strategy.known_weights = {
            int(node): weight for node, weight in checkpoint.extra["weights"].items()
        }
        log(INFO, "Hub %s goes on after round %d", self.entry.id, checkpoint.round)
        return True

    def _await_workers(self, resumed: bool) -> None:
        """Wait for all workers; begin without some of them rather than not at all."""
        expected, started = self.entry.workers, time.monotonic()
        self.record.phase("waiting for workers")
        while True:
            count = len(list(self.grid.get_node_ids()))
            waited = time.monotonic() - started
            if count >= expected or waited >= self.config.node_timeout:
                break
            if resumed and count and waited >= _RETURN:
                break
            time.sleep(0.5)
        if count < expected:
            log(WARNING, "%d of %d workers are there after %.0f s", count, expected, waited)

    def _await_neighbours(self) -> None:
        """Begin together: wait until all hubs have their workers, as far as neighbours tell.

        A hub that is ready is at level 1, and one level above the lowest of its neighbours:
        at level n all hubs within n - 1 links are ready. Whoever waits in vain begins, and
        its neighbours with it.
        """
        end = time.monotonic() + self.config.node_timeout
        top = nx.diameter(self.network.graph) + 1
        level = 1
        levels: dict[str, int] = {}
        while level < top and time.monotonic() < end:
            self.record.phase("ready", level=level)
            time.sleep(0.3)
            for peer, answer in self.gossip.peer_status(2.0).items():
                told = answer.status if answer.status.get("run") == self.gossip.run else {}
                if told.get("phase") in BEGUN:
                    return
                levels[peer] = int(told.get("level", 0))
            level = min(top, 1 + min(levels.values(), default=top))
        if level < top:
            waiting = ", ".join(p for p, n in levels.items() if n == min(levels.values()))
            log(WARNING, "Hub %s did not get ready in time: this hub begins", waiting)

    def _after_round(self, report: RoundReport) -> None:
        hub = self.strategy.hubs[0]
        row = self.record.row(
            report,
            self.strategy,
            self.grid,
            self.config.learning_rate_at((report.number - 1) * self.network.tau),
        )
        if report.mixed and self._evaluation_is_due(report.number):
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

    def _evaluation_is_due(self, number: int) -> bool:
        return number % self.config.evaluate_rounds() == 0

    def _finish(self) -> None:
        model = self.strategy.hubs[0].model if self.strategy.hubs else self._restored_model()
        save_file(self.engine.layout.arrays(model), self.folder / "model.safetensors")
        # A neighbour that was silent may still come for this hub's last snapshot.
        grace = self.network.gossip_deadline if self.record.silent else 1.0
        self.record.phase("finishing")
        self.gossip.close(grace)
        self.record.phase("finished")

    def _restored_model(self) -> Flat:
        """Return the model of a hub that came back after the run's last round."""
        path = self.folder / FILE
        return load_checkpoint(path).models[0] if path.is_file() else self.engine.initial()


def _engine(config: RunConfig) -> Engine:
    """Return an engine that makes the initial model and evaluates; it trains nobody."""
    return run_engine(replace(config, partition="iid"), ALONE)
