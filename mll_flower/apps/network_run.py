"""One simulated run of the whole network: a thin user of `MultiLevelStrategy`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from flwr.supercore import log

from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.schedule import Round
from mll_flower.config import RunConfig
from mll_flower.grids.node_identity import ask_identity, wait_for_nodes
from mll_flower.models.checkpoint import FILE, load_checkpoint, save_checkpoint
from mll_flower.models.layout import Flat
from mll_flower.models.sums import sum_models
from mll_flower.results.plots import plot_run
from mll_flower.results.recorder import Recorder
from mll_flower.strategies.base import RoundReport
from mll_flower.strategies.multi_level import MultiLevelStrategy
from mll_flower.training.run_engine import hosted_workers, run_engine


def run_network(
    grid: Grid,
    values: Mapping[str, Any],
    on_message: Callable[[], None] | None = None,
    plots: bool = True,
    threads: int | None = None,
) -> Path:
    """Run the network that a run config describes; return where the results are.

    Parameters
    ----------
    grid : Grid
        The nodes.
    values : Mapping
        The run config.
    on_message : callable, optional
        Called after each message's round.
    plots : bool
        Whether to draw the run when it has ended.
    threads : int, optional
        How many an evaluation uses; all cores if None.
    """
    run = _NetworkRun(grid, RunConfig.from_run_config(values), on_message, threads)
    output = run.play()
    if plots:
        plot_run(output)
    return output


class _NetworkRun:
    """The parts of a run, and what happens after each of its rounds."""

    def __init__(
        self,
        grid: Grid,
        config: RunConfig,
        on_message: Callable[[], None] | None,
        threads: int | None,
    ) -> None:
        self.grid = grid
        self.on_message = on_message
        self.threads = threads
        self.config = config
        self.engine = run_engine(config)
        self.workers, examples = self._ask_nodes()
        self.network = config.network(examples)
        self.schedule: list[Round] = config.schedule()
        self.span = config.rounds_per_message(len(self.schedule))
        self.recorder = Recorder(
            config,
            self.network,
            self.engine,
            self.schedule,
            lambda node: hosted_workers(config, self.workers[node]),
        )
        self.strategy = MultiLevelStrategy(
            self._pooled(),
            workers=self.workers,
            mixing=config.mixing,
            q=max(1, config.q // self.span),
            absent=config.absent_rule,
            worker_config=self._order,
            on_round=self._after_round,
            node_timeout=config.node_timeout,
        )
        self.strategy.fraction_evaluate = 0.0  # the averaged model is evaluated here

    def play(self) -> Path:
        """Run Flower's loop over the rounds that are left."""
        messages = len(self.schedule) // self.span
        restored = self._restore() if self.config.resume else []
        done = self.strategy.round
        self.recorder.start()
        log(
            logging.INFO,
            "%d hubs, %d workers, %d rounds; results go to %s",
            self.network.hubs,
            self.network.workers,
            len(self.schedule),
            self.recorder.output,
        )
        quiet = logging.getLogger("flwr")
        level = quiet.level
        quiet.setLevel(logging.WARNING)  # a line a round is for short runs; there is a bar
        try:
            result = self.strategy.start(
                self.grid,
                self.engine.layout.record(self.engine.initial()),
                num_rounds=messages - done,
                timeout=self.config.reply_timeout,
                evaluate_fn=self._after_message,
            )
        finally:
            quiet.setLevel(level)
        if result.arrays:
            model = self.engine.layout.flatten(result.arrays)
        else:  # the checkpoint was that of the last round
            shares = self.network.hub_weights / self.network.hub_weights.sum()
            model = sum_models(restored, shares.tolist())
        self.recorder.finish(model)
        return self.recorder.output

    def _restore(self) -> list[Flat]:
        """Go on from a checkpoint; return its hub models."""
        checkpoint = load_checkpoint(self.config.resume)
        self.recorder.resume(self.config.resume, checkpoint.extra)
        self.strategy.restore(checkpoint.round // self.span, checkpoint.models)
        return checkpoint.models

    def _ask_nodes(self) -> tuple[dict[int, int], list[int]]:
        """Ask every node who it is; return node -> place in the network, and example counts."""
        config, shape = self.config, self.config.network()
        expected = config.nodes
        remedy = f"use --federation-config 'num-supernodes={expected}'"
        first = wait_for_nodes(self.grid, 1, config.node_timeout)[:1]
        told = ask_identity(self.grid, first, config.node_timeout)[first[0]]
        if told["num-partitions"] < expected:
            raise RuntimeError(
                f"there are {told['num-partitions']} SuperNodes; pool={config.pool!r} with "
                f"{shape.hubs} hubs and {shape.workers} workers needs {expected}: {remedy}"
            )
        # All of them: nodes come in any order, and those that host nothing may come first.
        nodes = wait_for_nodes(self.grid, int(told["num-partitions"]), config.node_timeout)
        places: dict[int, int] = {}
        examples = [0] * shape.workers
        for node, told in ask_identity(self.grid, nodes, config.node_timeout).items():
            if told["workers"]:
                places[node] = told["partition-id"]
            for worker, count in zip(told["workers"], told["examples"], strict=True):
                examples[worker] = count
        if len(places) != expected or 0 in examples:
            raise RuntimeError(
                f"{len(places)} of {len(nodes)} nodes host a part of the network, which needs "
                f"{expected}: {remedy}"
            )
        return places, examples

    def _pooled(self) -> HubNetwork:
        """Return the network as the server side sees it: with pools, one node a hub."""
        if self.config.pool == "worker":
            return self.network
        graph: nx.Graph[int] = self.network.graph
        hubs = np.arange(self.network.hubs)
        return HubNetwork(graph, hubs, self.network.hub_weights.copy(), np.ones(hubs.size))

    def _rounds_of(self, message: int) -> list[Round]:
        return self.schedule[(message - 1) * self.span : message * self.span]

    def _order(self, place: int, message: int) -> Mapping[str, Any]:
        """What a node is asked for: rounds, learning rates and its workers' weights."""
        rounds = self._rounds_of(message)
        members = self.network.members(place) if self.config.pool == "hub" else [place]
        hub = int(self.network.hub_of[members[0]])
        return {
            "rounds": [r.number for r in rounds],
            "learning-rates": [self.config.learning_rate_at(int(r.start[hub])) for r in rounds],
            "weights": [float(self.network.w[i]) for i in members],
        }

    def _after_round(self, report: RoundReport) -> None:
        rounds = self._rounds_of(report.number)
        self.recorder.round(report, rounds)
        if self.on_message is not None:
            self.on_message()

    def _after_message(self, server_round: int, arrays: ArrayRecord) -> None:
        """Evaluate the averaged model and save the hubs', when that is due."""
        message = self.strategy.round
        if server_round == 0 and message:
            return  # a resumed run has done both already
        rounds = self._rounds_of(message) if message else []
        last = message == len(self.schedule) // self.span
        if last or message * self.span % self.config.evaluate_rounds() == 0:
            self._evaluate(rounds, self.engine.layout.flatten(arrays))
        every = self.strategy.q * self.config.checkpoint_every
        if every and message and message % every == 0:
            # After the evaluation, so that a resumed run has it.
            save_checkpoint(
                self.recorder.output / FILE,
                message * self.span,
                self.engine.layout,
                [hub.model for hub in self.strategy.hubs],
                self.recorder.state(),
            )

    def _evaluate(self, rounds: list[Round], model: Flat) -> None:
        started = time.monotonic()
        limit, threads = self.config.evaluate_limit or None, self.threads
        train_loss, _ = self.engine.evaluate(model, "train", limit=limit, threads=threads)
        test_loss, accuracy = self.engine.evaluate(model, "test", threads=threads)
        self.recorder.evaluation(
            rounds, train_loss, test_loss, accuracy, time.monotonic() - started
        )
