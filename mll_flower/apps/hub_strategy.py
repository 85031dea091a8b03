"""`DeployedHubStrategy`: one hub of a deployment, with its records, its checkpoints and its end.

`mll_flower.multi_level` makes it for any ServerApp that ``mll-flower hub`` has started.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.supercore import log
from safetensors.numpy import save_file

from mll_flower.apps.hub_checkpoint import HubCheckpoint
from mll_flower.apps.hub_log import HubLog, log_differences, say_who_decides
from mll_flower.apps.hub_record import HubRecord, add_evaluation, plain
from mll_flower.deployment.given_weights import given_weight, largest_weight
from mll_flower.deployment.hub_gossip import start_gossip
from mll_flower.deployment.hub_place import HubPlace
from mll_flower.deployment.hub_state import HUB_LOG, MODEL_FILE, Phase, hub_directory
from mll_flower.deployment.mixing_column import mixing_column
from mll_flower.deployment.network_file import NetworkFile, load_network
from mll_flower.deployment.shared_terms import layout_term
from mll_flower.deployment.trust import Trust
from mll_flower.grids.auto_deadline import AutoDeadline
from mll_flower.grids.deadline import DeadlineGrid
from mll_flower.models.checkpoint import FILE
from mll_flower.models.layout import Flat, Layout
from mll_flower.models.subnetwork_average import AbsentRule
from mll_flower.models.sums import distance
from mll_flower.strategies.given_model import restored_model
from mll_flower.strategies.gossiping import GossipingHubStrategy
from mll_flower.strategies.inner_strategy import InnerStrategy
from mll_flower.strategies.multi_level import MultiLevelStrategy
from mll_flower.strategies.reports import MultiLevelResult, RoundReport
from mll_flower.strategies.robust import robust_strategy

# Seconds between two looks for replies: more often would only keep the SuperLink busy.
_POLL = 0.5
# Seconds that a hub that has come back waits for the rest of its workers, if it has one.
_RETURN_WAIT = 30.0
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class DeployedHubStrategy(GossipingHubStrategy):
    """One hub of a deployment, by real time: `GossipingHubStrategy` with records and checkpoints.

    Parameters
    ----------
    place : HubPlace
        Which hub of which network file.
    app : MultiLevelStrategy
        What the app asked for; the network file decides about all that the sites must agree on.
    given : Collection[str]
        Names of the arguments that the app gave.
    """

    def __init__(self, place: HubPlace, app: MultiLevelStrategy, given: Collection[str]) -> None:
        self.deployment = network = load_network(place.network)
        self.entry = network.hub(place.hub)
        folder = Path(place.folder) if place.folder else hub_directory(network, self.entry.id)
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        run = place.run or network.name
        # First of all, so that neighbours that start earlier can reach this hub.
        gossip = start_gossip(network, self.entry.id, run, insecure=place.insecure)
        self._log = HubLog(self.folder / HUB_LOG)
        tensorboard = network.run_config.get("tensorboard") is True
        self.record = HubRecord(self.folder, run, self.entry.id, gossip, tensorboard)
        self._checkpoint = HubCheckpoint(self.folder / FILE, run, self.entry.id)
        self.record.phase(Phase.STARTING, pid=os.getpid())
        node_timeout = float(network.run_config.get("node-timeout", app.node_timeout))
        weights_equal = app.equal_weights or (
            "weighted_by_key" not in given and network.run_config.get("weights") == "equal"
        )
        try:
            super().__init__(
                gossip,
                q=network.q,
                rounds=network.rounds,
                gossip_deadline=network.gossip_deadline,
                mixing_column=mixing_column(network, self.entry.id),
                tau=network.tau,
                slot=network.slot,
                deadline=network.round_deadline,
                absent=cast(AbsentRule, network.absent),
                inner_strategy=_inner_strategy(network.trust, app),
                worker_config=app.worker_config,
                on_round=self._after_round,
                node_timeout=node_timeout,
                weighted_by_key=None if weights_equal else app.weighted_by_key,
                fraction_train=app.fraction_train,
                fraction_evaluate=app.fraction_evaluate,
                # A hub goes on with the workers that it has.
                min_train_nodes=1,
                min_evaluate_nodes=1,
                min_available_nodes=1,
                arrayrecord_key=app.arrayrecord_key,
                configrecord_key=app.configrecord_key,
                train_metrics_aggr_fn=app.train_metrics_aggr_fn,
                evaluate_metrics_aggr_fn=app.evaluate_metrics_aggr_fn,
                max_neighbour_norm=network.trust.max_neighbour_norm,
                corrections=network.corrections,
                step_size=app.step_size,
                **_reply_limits(network, self.entry.id, app),
            )
        except BaseException:
            gossip.close()
            self._log.close()
            raise
        self.app = app
        self.known_weight = given_weight(network, self.entry.id)
        self._evaluate: Evaluate | None = None
        self._evaluation: MetricRecord | None = None  # of the present round
        self._grid: DeadlineGrid | None = None
        self._auto_deadline: AutoDeadline | None = None
        if network.auto_deadline:
            self._auto_deadline = AutoDeadline(network.least_deadline, network.round_deadline)
        self._disagreement: float | None = None  # of the present round
        self._layout: Layout | None = None
        self._initial: Flat | None = None
        log_differences(app, given, network)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> MultiLevelResult:
        """Begin with the other hubs, or go on from a checkpoint; run the rounds that are left.

        The number of rounds and their deadline are those of the network file. ``evaluate_fn``
        gets this hub's own model, and the number of the round in the whole run.
        """
        if num_rounds != self.deployment.rounds:
            say_who_decides("num_rounds", num_rounds, self.deployment.rounds)
        if not isinstance(grid, DeadlineGrid):
            grid = DeadlineGrid(grid, self.deployment.round_deadline, _POLL)
        self._grid, self._evaluate = grid, evaluate_fn
        self._layout = Layout.of(initial_arrays)
        self._initial = self._layout.flatten(initial_arrays)
        self.gossip.agree_on(model_layout=layout_term(self._layout))
        if not self._begun:
            self._begin(grid, initial_arrays, self._layout)
        left = max(0, self.deployment.rounds - self.round)
        log(INFO, "Hub %s: %d rounds to go; results in %s", self.entry.id, left, self.folder)
        result = super().start(
            grid,
            initial_arrays,
            left,
            self.deployment.round_deadline,
            train_config,
            evaluate_config,
            self._evaluation_of if evaluate_fn is not None else None,
        )
        result.arrays = self._layout.record(self._model())
        return result

    def finish(self) -> None:
        """Save the hub's model and end its gossip; the run is over."""
        if self._layout is None:
            raise RuntimeError(
                "the app never called strategy.start(), so that this hub did nothing"
            )
        save_file(self._layout.arrays(self._model()), self.folder / MODEL_FILE)
        # A neighbour that was silent may still come for this hub's last snapshot.
        grace = self.gossip_deadline if self.record.silent else 1.0
        self.record.phase(Phase.FINISHING)
        self.gossip.close(grace)
        self.record.phase(Phase.FINISHED)
        self._log.close()

    def fail(self, error: BaseException) -> None:
        """Publish that the hub's run has failed, and end its gossip."""
        log(ERROR, "Hub %s has failed", self.entry.id, exc_info=error)
        with suppress(OSError):  # a full disk, perhaps, which is why it has failed
            self.record.phase(Phase.FAILED, error=f"{type(error).__name__}: {error}"[:500])
        self.gossip.close()
        self._log.close()

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the metrics of the workers' evaluation, and record them."""
        metrics = super().aggregate_evaluate(server_round, replies)
        if metrics is not None and not self._run_over:
            self.record.event("evaluated by workers", round=self.round, metrics=plain(metrics))
        return metrics

    def _begin(self, grid: Grid, initial_arrays: ArrayRecord, layout: Layout) -> None:
        resumed = self._resume(layout)
        self._wait_for_workers(grid, resumed)
        if not resumed:
            self.record.phase(Phase.READY)
        lead = 1 if self._meet_neighbours() else 0
        behind = self.q * self.deployment.round_deadline + self.gossip_deadline
        if self.catch_up(behind, None if resumed else initial_arrays, lead) and not resumed:
            self.record.event("joined", round=self.round)
        self.record.event("begins", round=self.round, resumed=resumed)
        self.record.phase(Phase.TRAINING)

    def _resume(self, layout: Layout) -> bool:
        """Go on from the checkpoint of this run, if a usable one exists; return whether it does."""
        checkpoint = self._checkpoint.load(layout)
        if checkpoint is None:
            self.record.mend()
            return False
        self.record.complete(checkpoint.extra["row"])
        self.restore(checkpoint.round, checkpoint.models, checkpoint.state)
        since = time.time() - checkpoint.extra["row"]["time"]
        self.gossip.pace.begin(checkpoint.round // self.q, since)
        self.known_weights = {
            int(node): weight for node, weight in checkpoint.extra["weights"].items()
        }
        self.known_weight = checkpoint.extra["row"]["weight"] or self.known_weight
        log(INFO, "Hub %s goes on after round %d", self.entry.id, checkpoint.round)
        return True

    def _wait_for_workers(self, grid: Grid, resumed: bool) -> None:
        """Wait for all workers; begin without some of them rather than not at all."""
        expected, started, seen = self.entry.workers, time.monotonic(), -1
        while True:
            count = len(list(grid.get_node_ids()))
            if count != seen:
                seen = count
                self.record.phase(Phase.WAITING_FOR_WORKERS, workers=count)
            waited = time.monotonic() - started
            if count >= expected or waited >= self.node_timeout:
                break
            if resumed and count and waited >= _RETURN_WAIT:
                break
            time.sleep(0.5)
        if count < expected:
            log(WARNING, "%d of %d workers are connected after %.0f s", count, expected, waited)

    def _after_round(self, report: RoundReport) -> None:
        assert self._grid is not None
        hub = self.hubs[0]
        row = self.record.row(report, self, self._grid)
        row["disagreement"], self._disagreement = self._disagreement, None
        self._choose_deadline(report, self._grid)
        on_round: Callable[[RoundReport], Any] | None = self.app.on_round
        added = on_round(report) if on_round is not None else None
        row.update(plain(dict(added or {})))
        if self._evaluate is not None:
            started = time.monotonic()
            self._evaluation = self._evaluate(report.number, hub.layout.record(hub.model))
            if self._evaluation is not None:
                add_evaluation(row, self._evaluation, time.monotonic() - started)
        # The checkpoint first, with the row in it: a crash between the two loses neither.
        learned = self.correction_state()
        self._checkpoint.save(report.number, hub.layout, hub.model, hub.weights, row, learned)
        self.record.write(row)

    def _mix(self) -> tuple[dict[str, str], dict[str, float]]:
        """Mix, and measure how far that moves the hub's model: how far from its neighbours it was.

        Unknown if no neighbour took part.
        """
        hub = self.hubs[0]
        before = hub.model
        silent, column = super()._mix()
        if sum(share > 0 for share in column.values()) > 1:
            self._disagreement = _distance(before, hub.model)
        return silent, column

    def _choose_deadline(self, report: RoundReport, grid: DeadlineGrid) -> None:
        """Choose the deadline of the next round, if the network file leaves that to the hub."""
        if self._auto_deadline is not None:
            result = report.hubs[0]
            asked = [a.node for a in result.arrived] + [a.node for a in result.absent]
            grid.seconds = self._auto_deadline.observe(asked, grid.arrivals, grid.failures)
            self.deadline = grid.seconds

    def _evaluation_of(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Return what the evaluation after this round gave, to Flower's loop."""
        if server_round:
            return None if self._run_over else self._evaluation
        if self.round:  # a hub that goes on has evaluated its model before
            return None
        assert self._evaluate is not None
        metrics = self._evaluate(0, arrays)
        if metrics is not None:
            self.record.event("evaluated", round=0, metrics=plain(metrics))
        return metrics

    def _publish(self, **status: Any) -> None:
        self.record.publish(**status)

    def _model(self) -> Flat:
        """Return the hub's model, also if it came back after the run's last round."""
        if self.hubs:
            return self.hubs[0].model
        assert self._layout is not None
        assert self._initial is not None
        if self._restored_models:
            return restored_model(self._layout, self._restored_models[0])
        return self._initial


def _reply_limits(network: NetworkFile, hub: str, app: MultiLevelStrategy) -> dict[str, Any]:
    """Return how far workers are believed: as the network file says, or else the app."""
    limits = {**app.limits.settings(), **network.trust.reply_limits}
    largest = largest_weight(network, hub)
    return limits if largest is None else {**limits, "max_examples": largest}


def _distance(a: Flat, b: Flat) -> float | None:
    """Return the Euclidean distance of two models; None if it is not finite."""
    found = distance(a, b)
    return float(f"{found:.6g}") if math.isfinite(found) else None


def _inner_strategy(trust: Trust, app: MultiLevelStrategy) -> InnerStrategy | None:
    """Return what aggregates inside the hub: as the network file says, or else the app."""
    if trust.inner_strategy is None:
        return app.inner_strategy
    return robust_strategy(
        trust.inner_strategy,
        fraction_train=app.fraction_train,
        weighted_by_key=app.weighted_by_key,
        arrayrecord_key=app.arrayrecord_key,
        configrecord_key=app.configrecord_key,
        **trust.inner_options,
    )
