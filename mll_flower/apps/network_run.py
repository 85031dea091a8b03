"""A simulated run of the whole network: all hubs on one Flower grid, in simulated time.

The ServerApp calls `run_network` when its role is ``network``; experiments and
``mll-flower run --in-process`` call it with a grid of their own. It is a thin user of
`MultiLevelStrategy`, which trains, and of `Recorder`, which writes the results.

Here a message and a round are two things. A simulated SuperNode hosts one worker
(``pool = "worker"``; each message then covers one round), or a whole hub (``pool = "hub"``),
whose workers it averages itself: one message then covers all rounds up to the next mixing, the next
evaluation or the end. That is an optimisation; the numbers are the same to the bit. The strategy
knows only nodes and messages: what it calls a round is one message here.
"""

from __future__ import annotations

import errno
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from flwr.supercore import log

from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.schedule import Round
from mll_flower.apps.simulated_corrections import SimulatedCorrector
from mll_flower.config import RunConfig
from mll_flower.grids.node_identity import ask_identity, wait_for_nodes
from mll_flower.models.checkpoint import (
    FILE,
    Checkpoint,
    CheckpointTimes,
    load_checkpoint,
    save_checkpoint,
)
from mll_flower.models.layout import Flat
from mll_flower.models.sums import sum_models
from mll_flower.processes.actor_pool import replace_dead_actors
from mll_flower.results import files
from mll_flower.results.plots import plot_run
from mll_flower.results.recorder import Hook, Recorder
from mll_flower.results.tensorboard import TensorBoardWriter
from mll_flower.strategies.multi_level import MultiLevelStrategy
from mll_flower.strategies.reports import RoundReport
from mll_flower.training.device import resolve_device
from mll_flower.training.run_engine import (
    check_own_work,
    hosted_workers,
    run_engine,
    where_possible,
)

# What writing into a full disk, over a quota, or past a limit on the size of files gives.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


# Test rows on which the hubs' own models are measured at the end: in all, and at least per hub.
# With more hubs than this, they are not.
_ROWS_OF_HUBS, _FEWEST_ROWS, _MOST_HUBS = 20_000, 200, 100
# Before the end they are measured at four points, on so many rows in all and at least per hub: to
# see how they move, for 5 to 10 % of the time of the shortest runs and less of longer ones.
_PARTS, _ROWS_BEFORE_THE_END, _FEWEST_BEFORE_THE_END = 5, 1_000, 50


def run_network(
    grid: Grid,
    values: Mapping[str, Any],
    on_message: Callable[[], None] | None = None,
    plots: bool = True,
    threads: int | None = None,
    on_round: Hook | None = None,
    on_evaluation: Hook | None = None,
    lines: bool = True,
) -> Path:
    """Run the network that a run config describes; return the folder of the results.

    Parameters
    ----------
    grid : Grid
        The nodes.
    values : Mapping
        The run config.
    on_message : callable, optional
        Called after each message, once the replies of all nodes are recorded.
    plots : bool
        Whether to plot the run when it has ended.
    threads : int, optional
        Number of threads that an evaluation uses; all cores if None.
    on_round, on_evaluation : callable, optional
        Called with the record of each hub after each message, and of each evaluation. One that
        raises ends the run, as Ctrl-C does: what was recorded can be read, and the exception is
        raised from here.
    lines : bool
        Whether to print the progress, a line now and then.
    """
    config = RunConfig.from_run_config(values)
    hooks = [[hook] if hook is not None else [] for hook in (on_round, on_evaluation)]
    run = _NetworkRun(grid, config, on_message, threads, hooks[0], hooks[1], lines)
    output = run.run()
    if plots:
        plot_run(output)
    return output


class _NetworkRun:
    """The parts of a run, and what happens after each message."""

    def __init__(
        self,
        grid: Grid,
        config: RunConfig,
        on_message: Callable[[], None] | None,
        threads: int | None,
        on_round: list[Hook],
        on_evaluation: list[Hook],
        lines: bool,
    ) -> None:
        self.grid = grid
        check_own_work(config)
        self.engine = run_engine(where_possible(config))
        self.config = config
        self.on_message = on_message
        self.threads = threads
        self.place_of, examples, gpus = self._find_workers()
        # Decided here, once: recorded, and told to every process that trains.
        device = resolve_device(config.device, config.engine, config.model, gpus)
        engine = self.engine.gradient_engine if device == "cpu" else "autograd"
        self.config = config = replace(config, engine=engine, device=device)
        replace_dead_actors()  # their pool exists by now
        self.network = config.network(examples)
        self.schedule: list[Round] = config.schedule()
        self.resumed = load_checkpoint(config.resume) if config.resume else None
        self.rounds_per_message = config.rounds_per_message(len(self.schedule))
        if self.resumed is not None:  # a run that is extended may end between two messages
            self.rounds_per_message = math.gcd(self.rounds_per_message, self.resumed.round)
        self.messages = len(self.schedule) // self.rounds_per_message
        self.recorder = Recorder(
            config,
            self.network,
            self.engine,
            self.schedule,
            lambda node: hosted_workers(config, self.place_of[node]),
            on_round,
            on_evaluation,
            lines,
        )
        self.checkpoint_times = CheckpointTimes(self.recorder.model_bytes * self.network.hubs)
        self.strategy = MultiLevelStrategy(
            self._network_of_nodes(),
            workers=self.place_of,
            mixing=config.mixing,
            q=max(1, config.q // self.rounds_per_message),
            absent=config.absent_rule,
            worker_config=self._request,
            on_round=self._record,
            node_timeout=config.node_timeout,
        )
        if config.corrections.any:
            self.strategy.corrector = SimulatedCorrector(
                config, self.network, self.strategy, self._learning_rate, self._rounds_of
            )
        # The averaged model is evaluated here, not by the nodes. (As an argument, 0.0 would make
        # Flower warn that evaluation is skipped.)
        self.strategy.fraction_evaluate = 0.0

    def run(self) -> Path:
        """Run Flower's loop over the remaining messages; return the folder of the results."""
        restored = self._restore(self.resumed) if self.resumed is not None else []
        self.recorder.start()
        with self._tensorboard():
            try:
                model = self._play(restored)
            except BaseException as error:  # Ctrl-C, a hook that raises, a full disk
                with suppress(OSError):  # of which the first error says enough
                    self.recorder.stop(self._averaged(self._hub_models() or restored))
                if isinstance(error, OSError) and error.errno in _NO_ROOM:
                    raise self._no_room(error) from None
                raise
        self._evaluate_hubs(self._hub_models() or restored)
        try:
            self.recorder.finish(model)
        except OSError as error:
            raise self._no_room(error) from None
        return self.recorder.output

    def _no_room(self, error: OSError) -> OSError:
        return OSError(
            f"the results cannot be written into {self.recorder.output}: {error.strerror or error};"
            " make room there"
        )

    @contextmanager
    def _tensorboard(self) -> Iterator[None]:
        """Give every record to TensorBoard too, if the config says so."""
        if not self.config.tensorboard:
            yield
            return
        with TensorBoardWriter(self.recorder.output / files.TENSORBOARD) as writer:
            # Before the user's hooks, any of which may raise.
            self.recorder.on_round.insert(0, writer.round)
            self.recorder.on_evaluation.insert(0, writer.evaluation)
            yield

    def _play(self, restored: list[Flat]) -> Flat:
        """Train; return the averaged model at the end."""
        log(
            logging.INFO if self.recorder.lines else logging.DEBUG,
            "%d hubs, %d workers, %d rounds; results go to %s",
            self.network.hubs,
            self.network.workers,
            len(self.schedule),
            self.recorder.output,
        )
        with _quiet_flower():
            result = self.strategy.start(
                self.grid,
                self.engine.layout.record(self.engine.initial()),
                num_rounds=self.messages - self.strategy.round,
                timeout=self.config.reply_timeout,
                evaluate_fn=self._evaluate_and_save,
            )
        if result.arrays:
            return self.engine.layout.flatten(result.arrays)
        return self._averaged(restored)  # nothing was left to do after the checkpoint

    def _averaged(self, models: list[Flat]) -> Flat:
        """Return u, the average of the hub models; the initial model if there are none."""
        if not models:
            return self.engine.initial()
        shares = self.network.hub_weights / self.network.hub_weights.sum()
        return sum_models(models, shares.tolist())

    def _hub_models(self) -> list[Flat]:
        return [hub.model for hub in self.strategy.hubs]

    def _find_workers(self) -> tuple[dict[int, int], list[int], bool]:
        """Ask every node which workers it hosts.

        Returns
        -------
        place_of : dict
            Node id -> number of the worker or hub that it hosts.
        examples : list of int
            Number of examples that each worker holds.
        gpus : bool
            Whether all nodes have a GPU.
        """
        config, network = self.config, self.config.network()
        expected = config.nodes
        remedy = f"use --federation-config 'num-supernodes={expected}'"
        first = wait_for_nodes(self.grid, 1, config.node_timeout)[:1]
        identity = ask_identity(self.grid, first, config.node_timeout)[first[0]]
        if identity["num-partitions"] < expected:
            raise RuntimeError(
                f"there are {identity['num-partitions']} SuperNodes; pool={config.pool!r} with "
                f"{network.hubs} hubs and {network.workers} workers needs {expected}: {remedy}"
            )
        # All of them: nodes connect in any order, and those that host nothing may be first.
        nodes = wait_for_nodes(self.grid, int(identity["num-partitions"]), config.node_timeout)
        place_of: dict[int, int] = {}
        examples, gpus = [0] * network.workers, True
        for node, identity in ask_identity(self.grid, nodes, config.node_timeout).items():
            if identity["workers"]:
                place_of[node] = identity["partition-id"]
                gpus = gpus and bool(identity.get("gpu"))
            for worker, count in zip(identity["workers"], identity["examples"], strict=True):
                examples[worker] = count
        if len(place_of) != expected or 0 in examples:
            raise RuntimeError(
                f"{len(place_of)} of {len(nodes)} nodes host a part of the network, which needs "
                f"{expected}: {remedy}"
            )
        return place_of, examples, gpus

    def _network_of_nodes(self) -> HubNetwork:
        """Return the network that the strategy sees, in which each node is one worker."""
        if self.config.pool == "worker":
            return self.network
        graph: nx.Graph[int] = self.network.graph
        hubs = np.arange(self.network.hubs)
        return HubNetwork(graph, hubs, self.network.hub_weights.copy(), np.ones(hubs.size))

    def _restore(self, checkpoint: Checkpoint) -> list[Flat]:
        """Continue from a checkpoint; return its hub models."""
        self.recorder.resume(self.config.resume, checkpoint.extra)
        self.strategy.restore(
            checkpoint.round // self.rounds_per_message, checkpoint.models, checkpoint.state
        )
        return checkpoint.models

    def _rounds_of(self, message: int) -> list[Round]:
        """Return the rounds that a message covers; messages count from 1."""
        end = message * self.rounds_per_message
        return self.schedule[end - self.rounds_per_message : end]

    def _request(self, place: int, message: int) -> Mapping[str, Any]:
        """Return what a message asks of a node: rounds, learning rates, weights, engine, device."""
        rounds = self._rounds_of(message)
        corrector = self.strategy.corrector
        corrected = corrector.request(place) if isinstance(corrector, SimulatedCorrector) else {}
        members = self.network.members(place) if self.config.pool == "hub" else [place]
        hub = int(self.network.hub_of[members[0]])
        return {
            "rounds": [r.number for r in rounds],
            "learning-rates": [self._learning_rate(hub, r) for r in rounds],
            "weights": [float(self.network.w[i]) for i in members],
            "engine": self.config.engine,
            "device": self.config.device,
            **corrected,
        }

    def _learning_rate(self, hub: int, round: Round) -> float:
        return self.config.learning_rate_at(int(round.start[hub]))

    def _record(self, report: RoundReport) -> None:
        """Record the rounds of a message."""
        self.recorder.round(report, self._rounds_of(report.number))
        if self.on_message is not None:
            self.on_message()

    def _evaluate_and_save(self, server_round: int, arrays: ArrayRecord) -> None:
        """After a message, evaluate the averaged model and save the hubs' if that is due."""
        message = self.strategy.round
        if server_round == 0 and message:
            return  # the earlier run, which is resumed, has done both
        done = message * self.rounds_per_message
        evaluated = message == self.messages or done % self.config.evaluate_rounds() == 0
        if evaluated:
            rounds = self._rounds_of(message) if message else []
            self._evaluate(rounds, self.engine.layout.flatten(arrays))
            if self._hubs_due(done):
                measured = self._measure_hubs(
                    self._hub_models(), _ROWS_BEFORE_THE_END, _FEWEST_BEFORE_THE_END
                )
                self.recorder.evaluation_of_hubs([metric for _, metric, _ in measured])
        if message and self._checkpoint_due(message):
            # After the evaluation, so that a resumed run has it.
            self._save(done)
        if evaluated:
            # At last, so that a run that a hook stops can be resumed from here.
            self.recorder.announce_evaluation()

    def _checkpoint_due(self, message: int) -> bool:
        every = self.config.checkpoint_every
        if every == 0:
            return False
        if message == self.messages:
            return True  # so that the run can be extended
        if message % (self.strategy.q * max(every, 1)):
            return False
        return every > 0 or self.checkpoint_times.due()

    def _save(self, done: int) -> None:
        """Write a checkpoint after so many rounds; without one, the run goes on."""
        state = self.recorder.state()
        place, layout = self.recorder.output / FILE, self.engine.layout
        try:
            with self.checkpoint_times.measured():
                learned = self.strategy.correction_state()
                save_checkpoint(place, done, layout, self._hub_models(), state, learned)
        except OSError as error:
            log(logging.WARNING, "%s; the run goes on without it", error)

    def _hubs_due(self, done: int) -> bool:
        """Return whether this evaluation is one of a few, spaced evenly, before the end."""
        total, hubs = len(self.schedule), self.network.hubs
        if not 0 < done < total or not 1 < hubs <= _MOST_HUBS:
            return False
        before = done - self.config.evaluate_rounds()
        return done * _PARTS // total > before * _PARTS // total

    def _evaluate_hubs(self, models: list[Flat]) -> None:
        """Measure each hub's own model: far apart, they show how different the hubs' data are."""
        if len(models) <= _MOST_HUBS:
            # All hubs together take about as long as one evaluation of the averaged model.
            for hub, measured in enumerate(self._measure_hubs(models, _ROWS_OF_HUBS, _FEWEST_ROWS)):
                self.recorder.evaluation_of_hub(hub, *measured)

    def _measure_hubs(
        self, models: list[Flat], rows: int, fewest: int
    ) -> list[tuple[float, float, int]]:
        """Return test loss, metric and number of test rows of each hub's own model."""
        limit = min(len(self.engine.task.data.x_test), max(fewest, rows // len(models)))
        return [
            (*self.engine.evaluate(model, "test", limit=limit, threads=self.threads), limit)
            for model in models
        ]

    def _evaluate(self, rounds: list[Round], model: Flat) -> None:
        started = time.monotonic()
        limit, threads = self.config.evaluate_limit or None, self.threads
        train_loss, _ = self.engine.evaluate(model, "train", limit=limit, threads=threads)
        test_loss, metric = self.engine.evaluate(model, "test", threads=threads)
        self.recorder.evaluation(rounds, train_loss, test_loss, metric, time.monotonic() - started)


@contextmanager
def _quiet_flower() -> Iterator[None]:
    """Silence the lines that Flower logs in every round; the recorder reports the progress."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
