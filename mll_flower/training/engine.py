"""The training engine: the local steps of many workers in one process, on one thread or a GPU.

The engine holds the data once and one model to train in. Workers take turns: the engine loads the
hub's model, the worker takes its steps, and the result is added to the hub's average of its
workers, times the worker's share of the weight. So a thousand workers need no more memory than
one, and a worker that takes no step costs one addition. The step itself is the trainer's: see
`trainer`.

A worker's result depends only on the run seed, the worker, the round and the model it starts
from, to the bit; what else is trained, before, after or in another process, does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from mll_flower.algorithm.coins import batch_rngs
from mll_flower.models.layout import Flat, Layout
from mll_flower.models.subnetwork_average import AbsentRule
from mll_flower.tasks.task import Task
from mll_flower.training.budgets import StepBudget, TimeBudget
from mll_flower.training.corrected_rounds import RoundCorrection, shifted
from mll_flower.training.device import resolve_device
from mll_flower.training.evaluation import Evaluator
from mll_flower.training.gradient_engine import resolve_engine
from mll_flower.training.hub_rounds import HubResult, run_rounds
from mll_flower.training.logistic_trainer import LogisticTrainer
from mll_flower.training.process import reproducible
from mll_flower.training.torch_trainer import TorchTrainer, numpy_state
from mll_flower.training.trainer import Pace, Trainer

StepCounts = Callable[[int, int], int] | ArrayLike
"""``steps(worker, round)``, or an array of step counts [rounds, workers]."""


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
        As in ``torch.optim``; momentum starts at zero in every round.
    optimiser : str
        ``sgd`` or ``adamw``; its state starts afresh in every round.
    engine : {"auto", "autograd", "compiled"}
        What computes the gradients; see `mll_flower.training.gradient_engine`.
    device : {"auto", "cpu", "cuda"} or torch.device
        Where tensors are trained and evaluated; see `mll_flower.training.device`.

    Attributes
    ----------
    gradient_engine : {"autograd", "compiled"}
        What ``engine`` means for this task on this machine.
    device : torch.device
        What ``device`` means for this task in this process.
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
        optimiser: str = "sgd",
        engine: str = "auto",
        device: str | torch.device = "auto",
    ) -> None:
        _check_sgd(batch_size, momentum, weight_decay)
        _check_shards(shards, len(task.data.x_train))
        self.task = task
        self.batch_size = batch_size
        self.seed = seed
        self._shards = [np.asarray(shard, dtype=np.int64) for shard in shards]
        start = numpy_state(task.new_model())
        self.layout = Layout.of(start)
        self._start = self.layout.flatten(start)
        if isinstance(device, str):
            device = torch.device(resolve_device(device, engine, task.model))
        self.device = device
        on_cpu = device.type == "cpu"
        self.gradient_engine = resolve_engine(engine if on_cpu else "autograd", task)
        self._trainer: Trainer
        settings = (batch_size, momentum, weight_decay, optimiser)
        if task.model == "logistic" and optimiser == "sgd" and on_cpu:
            self._trainer = LogisticTrainer(task, self.layout, *settings)
        else:
            self._trainer = TorchTrainer(task, self.layout, *settings, self.gradient_engine, device)
        self._evaluator = Evaluator(task, self.layout, self.gradient_engine, device)
        self._rngs = batch_rngs(seed)

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self._shards)

    def label_counts(self, worker: int) -> list[int]:
        """Return how many rows of each class a worker holds; empty if there are no classes."""
        data = self.task.data
        labels = data.y_train[self._shards[worker]]
        if data.regression or labels.ndim != 1:
            return []
        counts: list[int] = np.bincount(labels, minlength=data.classes).tolist()
        return counts

    def examples(self, worker: int) -> int:
        """Return the number of rows that a worker holds."""
        return len(self._shards[worker])

    def initial(self) -> Flat:
        """Return a copy of the model that a run starts from."""
        return {dtype: vector.copy() for dtype, vector in self._start.items()}

    def train(self, flat: Flat, worker: int, round: int, steps: int, learning_rate: float) -> float:
        """Take a worker's steps of one round, on its own rows and in place.

        Parameters
        ----------
        flat : Flat
            The model, changed in place; left as it was if an exception is raised.
        worker, round : int
            With the run seed they decide the mini-batches.
        steps : int
            Number of steps.
        learning_rate : float
            Step size.

        Returns
        -------
        float
            Mean training loss of the steps; nan if no step is taken.
        """
        self._check_workers_and_steps([worker], np.array(steps))
        if steps == 0:
            return math.nan
        with reproducible(self.device):
            loss, trained = self._take_steps(flat, worker, round, steps, learning_rate)
        _copy(trained, flat)
        return loss

    def train_paced(
        self,
        flat: Flat,
        worker: int,
        round: int,
        budget: StepBudget | TimeBudget,
        tau: int,
        learning_rate: float,
        shift: Flat | None = None,
    ) -> float:
        """Take a worker's steps of one round at the pace of a budget, in place.

        `train` with the number of steps that the budget allowed gives the same bits, so a
        round of real workers can be replayed.

        Parameters
        ----------
        flat, worker, round, learning_rate
            As in `train`.
        budget : StepBudget or TimeBudget
            Decides when a step is due, and counts the steps.
        tau : int
            Slots of the round, and so the largest number of steps.
        shift : Flat, optional
            What is taken off the model after each step, if the worker is corrected.

        Returns
        -------
        float
            Mean training loss of the steps; nan if no step is taken.
        """
        self._check_workers_and_steps([worker], np.array(tau))
        with reproducible(self.device):
            loss, trained = self._take_steps(
                flat, worker, round, tau, learning_rate, budget.pace, shift
            )
        _copy(trained, flat)
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
        correction: RoundCorrection | None = None,
    ) -> HubResult:
        """Run some rounds of a hub: in each, train its workers and average their models.

        A simulated SuperNode that hosts a whole hub (``pool = "hub"``) calls this, so that one
        message may cover several rounds. It is an optimisation: the bits are those of one
        `train` per worker and round, whose results the hub averages in this order.

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
            Whether the share of an absent worker stays with the hub's model, or the shares of
            the others are divided by their sum.
        correction : RoundCorrection, optional
            What a run with corrections that go past the paper does differently.

        Returns
        -------
        HubResult
            The hub's new model, and the steps and losses of its workers.
        """
        if not workers or len(workers) != len(v) or len(rounds) != len(learning_rates):
            raise ValueError(
                f"{len(workers)} workers with {len(v)} shares, {len(rounds)} rounds with "
                f"{len(learning_rates)} learning rates: give one share per worker, one learning "
                "rate per round, and at least one worker"
            )
        if callable(steps):
            counts = np.array([[steps(i, r) for i in workers] for r in rounds], dtype=np.int64)
        else:
            counts = np.array(steps, dtype=np.int64)
        counts = counts.reshape(len(rounds), len(workers))
        self._check_workers_and_steps(workers, counts)
        with reproducible(self.device):
            train = self._take_steps
            return run_rounds(
                flat, workers, v, rounds, counts, learning_rates, train, absent, correction
            )

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
            Number of threads to use; all cores if None.

        Returns
        -------
        loss, metric : float
            The mean loss, and the task's metric.
        """
        return self._evaluator.evaluate(flat, split, batch_size, limit, threads)

    def _take_steps(
        self,
        flat: Flat,
        worker: int,
        round: int,
        steps: int,
        learning_rate: float,
        pace: Pace = iter,
        shift: Flat | None = None,
    ) -> tuple[float, Flat]:
        """Train from ``flat``, which stays as it is.

        Returns the mean loss and the trained model, which is valid until the next call.
        """
        shard, trainer = self._shards[worker], self._trainer
        _copy(flat, trainer.row)
        batches = shard[
            self._rngs(worker, round).integers(len(shard), size=(steps, self.batch_size))
        ]
        paced = shifted(pace, trainer, shift)
        loss = trainer.steps(batches, learning_rate, (self.seed, worker, round), paced)
        return loss, trainer.row

    def _check_workers_and_steps(self, workers: Sequence[int], counts: NDArray[np.int64]) -> None:
        for worker in workers:
            if not 0 <= worker < self.workers:
                raise ValueError(f"worker {worker}: there are {self.workers}, numbered from 0")
        if (counts < 0).any():
            raise ValueError(f"steps={counts.min()}: give 0 or more")


def _check_sgd(batch_size: int, momentum: float, weight_decay: float) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: give at least 1")
    if not 0 <= momentum < 1 or not 0 <= weight_decay < math.inf:
        raise ValueError(
            f"momentum={momentum}, weight_decay={weight_decay}: momentum must be at least 0 and "
            "below 1, weight decay finite and at least 0"
        )


def _check_shards(shards: Sequence[NDArray[np.int64]], rows: int) -> None:
    for worker, shard in enumerate(shards):
        if len(shard) == 0 or np.min(shard) < 0 or np.max(shard) >= rows:
            raise ValueError(
                f"worker {worker} has {len(shard)} rows: give it at least one, all of them "
                f"from 0 to {rows - 1}"
            )


def _copy(source: Flat, target: Flat) -> None:
    for dtype, vector in target.items():
        np.copyto(vector, source[dtype], casting="no")
