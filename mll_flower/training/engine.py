"""The training engine: many workers' local SGD in one process, on one thread.

The engine holds the data once and one model to train in. Workers take turns in it: the
model becomes the hub's, the worker takes its steps, and the result is added to the
sub-network average with the worker's share. So a thousand workers need no more memory
than one, and a worker that takes no step costs one addition.

A worker's result depends on (run seed, worker, round) and the model it starts from alone,
to the bit: whatever else is trained before, after, or in another process (rule 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from mll_flower.algorithm.coins import batch_rngs
from mll_flower.models.layout import Flat, Layout
from mll_flower.models.subnetwork_average import AbsentRule
from mll_flower.tasks.task import Task
from mll_flower.training.budgets import StepBudget, TimeBudget
from mll_flower.training.hub_rounds import play_round
from mll_flower.training.logistic_trainer import LogisticTrainer
from mll_flower.training.process import Pace, reproducible, torch_threads
from mll_flower.training.torch_trainer import TorchTrainer, channels_last_pays, numpy_state

StepCounts = Callable[[int, int], int] | ArrayLike


class _Trainer(Protocol):
    row: Flat

    def steps(
        self,
        batches: NDArray[np.int64],
        learning_rate: float,
        noise: tuple[int, ...],
        pace: Pace = iter,
    ) -> float: ...


@dataclass(frozen=True)
class HubResult:
    """What some rounds of a hub gave.

    Parameters
    ----------
    flat : Flat
        The hub's model after the last round.
    steps : ndarray
        Steps taken, [rounds, workers]; 0 for an absent worker.
    losses : ndarray
        Mean training loss of those steps, [rounds, workers]; nan where there were none.
    absent : list of (worker, round, reason)
        Workers whose training failed, or gave a model that is not finite.
    """

    flat: Flat
    steps: NDArray[np.int64]
    losses: NDArray[np.float64]
    absent: list[tuple[int, int, str]]


class Engine:
    """Trains the workers of a task.

    Parameters
    ----------
    task : Task
        Data, model and loss.
    shards : Sequence[ndarray]
        For each worker, its rows of the training data.
    batch_size : int
        Rows of a mini-batch.
    seed : int
        The run seed.
    momentum, weight_decay : float
        As in ``torch.optim.SGD``; momentum starts at zero in every round.
    """

    def __init__(
        self,
        task: Task,
        shards: Sequence[NDArray[np.int64]],
        *,
        batch_size: int,
        seed: int,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: give at least 1")
        if not 0 <= momentum < 1 or not 0 <= weight_decay < math.inf:
            raise ValueError(
                f"momentum={momentum}, weight_decay={weight_decay}: momentum must be from 0 to "
                "below 1, weight decay at least 0"
            )
        rows = len(task.data.x_train)
        for worker, shard in enumerate(shards):
            if len(shard) == 0 or np.min(shard) < 0 or np.max(shard) >= rows:
                raise ValueError(
                    f"worker {worker} has {len(shard)} rows: give it at least one, all of them "
                    f"from 0 to {rows - 1}"
                )
        self.task = task
        self.batch_size = batch_size
        self.seed = seed
        self._shards = [np.asarray(shard, dtype=np.int64) for shard in shards]
        start = numpy_state(task.new_model())
        self.layout = Layout.of(start)
        self._start = self.layout.flatten(start)
        kind = LogisticTrainer if task.model == "logistic" else TorchTrainer
        self._trainer: _Trainer = kind(task, self.layout, batch_size, momentum, weight_decay)
        self._rngs = batch_rngs(seed)
        self._judge: nn.Module | None = None

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self._shards)

    def examples(self, worker: int) -> int:
        """Count the rows that a worker holds."""
        return len(self._shards[worker])

    def initial(self) -> Flat:
        """Give a copy of the model that a run starts from."""
        return {dtype: vector.copy() for dtype, vector in self._start.items()}

    def train(self, flat: Flat, worker: int, round: int, steps: int, learning_rate: float) -> float:
        """Take a worker's steps of one round, on its own rows and in place.

        Parameters
        ----------
        flat : Flat
            The model, changed in place; left as it was if an exception is raised.
        worker, round : int
            Whose steps, and when; with the run seed they decide the mini-batches.
        steps : int
            How many.
        learning_rate : float
            Step size.

        Returns
        -------
        float
            Mean training loss of the steps; nan if there are none.
        """
        self._check([worker], np.array(steps))
        if steps == 0:
            return math.nan
        with reproducible():
            loss = self._train_row(flat, worker, round, steps, learning_rate)
        _copy(self._trainer.row, flat)
        return loss

    def train_paced(
        self,
        flat: Flat,
        worker: int,
        round: int,
        budget: StepBudget | TimeBudget,
        tau: int,
        learning_rate: float,
    ) -> float:
        """Take a worker's steps of one round at the pace of a budget, in place.

        `train` with the number of steps that the budget let it take gives the same bits:
        so a run of real workers can be replayed.

        Parameters
        ----------
        flat, worker, round, learning_rate
            As in `train`.
        budget : StepBudget or TimeBudget
            Says when a step is due, and counts them.
        tau : int
            Slots of the round: steps at most.

        Returns
        -------
        float
            Mean training loss of the steps; nan if there are none.
        """
        self._check([worker], np.array(tau))
        with reproducible():
            loss = self._train_row(flat, worker, round, tau, learning_rate, budget.pace)
        _copy(self._trainer.row, flat)
        return loss

    def run_hub(
        self,
        flat: Flat,
        workers: Sequence[int],
        v: Sequence[float],
        rounds: Sequence[int],
        steps: StepCounts,
        learning_rates: Sequence[float],
        absent: AbsentRule = "keep",
    ) -> HubResult:
        """Play a hub's rounds between two mixings.

        Gives the same bits as one `train` a worker with `weighted_sum` over the workers in
        this order.

        Parameters
        ----------
        flat : Flat
            The hub's model; not changed.
        workers : Sequence[int]
            The hub's workers, in the order in which they are averaged.
        v : Sequence[float]
            Their shares, or weights in that proportion.
        rounds : Sequence[int]
            Numbers of the rounds.
        steps : callable or array
            Steps of a worker in a round: ``steps(worker, round)``, or an array
            [rounds, workers].
        learning_rates : Sequence[float]
            Step size of each round.
        absent : {"keep", "renormalise"}
            What becomes of the share of an absent worker (rule 6).

        Returns
        -------
        HubResult
            The hub's new model and what the workers did.
        """
        if not workers or len(workers) != len(v) or len(rounds) != len(learning_rates):
            raise ValueError(
                f"{len(workers)} workers with {len(v)} shares, {len(rounds)} rounds with "
                f"{len(learning_rates)} learning rates: give one of each, and at least one worker"
            )
        if callable(steps):
            counts = np.array([[steps(i, r) for i in workers] for r in rounds], dtype=np.int64)
        else:
            counts = np.array(steps, dtype=np.int64)
        counts = counts.reshape(len(rounds), len(workers))
        self._check(workers, counts)
        losses = np.full(counts.shape, math.nan)
        missing: list[tuple[int, int, str]] = []
        hub = flat
        with reproducible():
            for k, (round, rate) in enumerate(zip(rounds, learning_rates, strict=True)):

                def train(
                    place: int, hub: Flat = hub, k: int = k, round: int = round, rate: float = rate
                ) -> tuple[float, Flat]:
                    steps_taken = int(counts[k, place])
                    loss = self._train_row(hub, workers[place], round, steps_taken, rate)
                    return loss, self._trainer.row

                hub, failed = play_round(hub, v, counts[k], losses[k], train, absent)
                missing += [(workers[i], round, reason) for i, reason in failed.items()]
        if hub is flat:
            hub = {dtype: vector.copy() for dtype, vector in flat.items()}
        return HubResult(hub, counts, losses, missing)

    def _check(self, workers: Sequence[int], counts: NDArray[np.int64]) -> None:
        for worker in workers:
            if not 0 <= worker < self.workers:
                raise ValueError(f"worker {worker}: there are {self.workers}, from 0")
        if (counts < 0).any():
            raise ValueError(f"steps={counts.min()}: give 0 or more")

    def _train_row(
        self,
        flat: Flat,
        worker: int,
        round: int,
        steps: int,
        learning_rate: float,
        pace: Pace = iter,
    ) -> float:
        """Train in the trainer's row, from ``flat``; it stays there."""
        shard = self._shards[worker]
        _copy(flat, self._trainer.row)
        drawn = self._rngs(worker, round).integers(len(shard), size=(steps, self.batch_size))
        return self._trainer.steps(shard[drawn], learning_rate, (self.seed, worker, round), pace)

    def evaluate(
        self,
        flat: Flat,
        split: Literal["test", "train"] = "test",
        batch_size: int = 512,
        limit: int | None = None,
        threads: int | None = 1,
    ) -> tuple[float, float]:
        """Measure a model on a split of the task's data.

        Parameters
        ----------
        flat : Flat
            The model.
        split, batch_size, limit
            As in `Task.evaluate`.
        threads : int, optional
            How many to use; all cores if None.

        Returns
        -------
        loss, accuracy : float
            Means over the rows.
        """
        if self._judge is None:
            self._judge = self.task.new_model()
            example = torch.from_numpy(self.task.data.x_test[0])
            if channels_last_pays(self._judge, example, batch_size):
                self._judge = self._judge.to(memory_format=torch.channels_last)
        arrays = self.layout.arrays(flat)
        with torch.no_grad():
            for name, tensor in self._judge.state_dict().items():
                tensor.copy_(torch.from_numpy(arrays[name]))
        with torch_threads(threads):
            return self.task.evaluate(self._judge, split, batch_size, limit)


def _copy(source: Flat, target: Flat) -> None:
    for dtype, vector in target.items():
        np.copyto(vector, source[dtype], casting="no")
