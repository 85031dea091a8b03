"""Whole simulated runs in this process, their results, and two ways to compute these again.

`reference_run` is Algorithm 1 of the paper in float64 on the run's own coins and mini-batches; a
run equals it to 1e-6. `replay` trains one worker at a time and averages and mixes the models
without a strategy, hubs, messages or pools; a run equals it to the bit.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from client_app.app import app as client_app
from mll_flower.algorithm.coins import batch_rng, coins, step_count
from mll_flower.algorithm.mixing import mixing_matrix
from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.reference import History, mll_sgd
from mll_flower.apps.network_run import run_network
from mll_flower.config import RunConfig
from mll_flower.grids.in_process import InProcessGrid
from mll_flower.models.hub_mixing import mix_models
from mll_flower.models.layout import Flat
from mll_flower.models.sums import sum_models
from mll_flower.tasks import Task, binary_labels, partition
from mll_flower.training.engine import Engine

# Three hubs of unequal size on a path, and two mixings: small, and without any symmetry.
SMALL: dict[str, Any] = {
    "hubs": 3,
    "workers-per-hub": "2,3,1",
    "graph": "path",
    "tau": 4,
    "q": 2,
    "slots": 16,
    "batch-size": 8,
    "evaluate-limit": 200,
    "model": "logistic",
    "pool": "worker",
    "seed": 5,
}


@dataclass(frozen=True)
class Results:
    """What a run has written into its output folder."""

    folder: Path

    @property
    def rows(self) -> list[dict[str, str]]:
        with (self.folder / "metrics.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    @property
    def timeless(self) -> list[dict[str, str]]:
        """The rows without the measured seconds."""
        return [{k: v for k, v in row.items() if k != "seconds"} for row in self.rows]

    @property
    def evaluations(self) -> list[dict[str, str]]:
        return [row for row in self.timeless if row["hub"] == "all"]

    def hub_rows(self, hub: int) -> list[dict[str, str]]:
        return [row for row in self.timeless if row["hub"] == str(hub)]

    @property
    def report(self) -> dict[str, Any]:
        return json.loads((self.folder / "metrics.json").read_text())

    @property
    def model(self) -> dict[str, np.ndarray]:
        return load_file(self.folder / "model.safetensors")

    def same_model(self, other: Results | Flat) -> bool:
        """Whether the final models are the same to the bit."""
        mine = self.model
        if isinstance(other, Results):
            theirs = other.model
        else:
            theirs = engine(self.config).layout.arrays(other)
        return mine.keys() == theirs.keys() and all(
            mine[k].dtype == theirs[k].dtype and mine[k].tobytes() == theirs[k].tobytes()
            for k in mine
        )

    @property
    def config(self) -> RunConfig:
        values = json.loads((self.folder / "config.json").read_text())
        return RunConfig.from_run_config(values, check=False)

    def vector(self) -> np.ndarray:
        """The final logistic model in float64: weights, then the bias."""
        return logistic_vector(self.model)


def logistic_vector(arrays: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([arrays[f"linear.{k}"].ravel() for k in ("weight", "bias")]).astype(
        np.float64
    )


def close(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-6) -> bool:
    """Whether no entry differs by more than the tolerance."""
    return bool(np.max(np.abs(a - b)) <= tolerance)


def settings_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the run config of the small run, changed by these settings."""
    return {**SMALL, **{key.replace("_", "-"): value for key, value in settings.items()}}


def config_of(**settings: Any) -> RunConfig:
    return RunConfig.from_run_config(settings_of(settings))


def play(
    output: Path,
    *,
    app: Any = client_app,
    grid: type[InProcessGrid] = InProcessGrid,
    extra_nodes: int = 0,
    plots: bool = False,
    on_message: Callable[[], None] | None = None,
    **settings: Any,
) -> Results:
    """Run in this process; by default without plots, which take longer than the run."""
    values = {**settings_of(settings), "output": str(output)}
    config = RunConfig.from_run_config(values, check=False)
    nodes = grid(app, config.nodes + extra_nodes, values)
    return Results(run_network(nodes, values, on_message, plots))


@lru_cache(maxsize=4)
def _task(dataset: str, model: str, seed: int) -> Task:
    return Task.load(dataset=dataset, model=model, seed=seed)


def task_and_shards(config: RunConfig) -> tuple[Task, list[np.ndarray]]:
    task = _task(config.dataset, config.model, config.seed)
    hub_of = config.network().hub_of
    return task, partition(config.partition, task.data.y_train, hub_of, config.seed)


def engine(config: RunConfig) -> Engine:
    task, shards = task_and_shards(config)
    return Engine(
        task,
        shards,
        batch_size=config.batch_size,
        seed=config.seed,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        engine=config.engine,
    )


def network_of(config: RunConfig) -> HubNetwork:
    """Return the network of a config, with its weights."""
    return config.network([len(shard) for shard in task_and_shards(config)[1]])


def logistic_gradient(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Gradient of the mean log loss in float64; the last entry of ``w`` is the bias."""
    residual = (1 / (1 + np.exp(-(x @ w[:-1] + w[-1]))) - y) / len(y)
    return np.append(x.T @ residual, residual.sum())


class Batches:
    """Mini-batches of a logistic run, as float64 rows and binary labels."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        task, self.shards = task_and_shards(config)
        self.x = task.data.x_train.reshape(len(task.data.x_train), -1).astype(np.float64)
        self.y = binary_labels(task.data.y_train, task.data.classes).astype(np.float64)

    def gradient(self, worker: int, round: int, step: int, w: np.ndarray) -> np.ndarray:
        """Gradient at ``w`` of step 0, 1, ... of a worker in a round."""
        shard, size = self.shards[worker], (step + 1, self.config.batch_size)
        drawn = batch_rng(self.config.seed, worker, round).integers(len(shard), size=size)
        rows = shard[drawn[step]]
        return logistic_gradient(self.x[rows], self.y[rows], w)


def reference_run(config: RunConfig) -> History:
    """Algorithm 1 on the run's coins and mini-batches; with wait-for-all, a step in every slot."""
    network, batches, tau = network_of(config), Batches(config), config.tau
    schedule = config.schedule()
    theta = np.ones((len(schedule) * tau, network.workers), dtype=bool)
    if not config.wait_for_all:
        for i, p in enumerate(network.p):
            drawn = [coins(config.seed, i, r.number, tau, float(p)) for r in schedule]
            theta[:, i] = np.concatenate(drawn)

    def gradient(i: int, k: int, x: np.ndarray) -> np.ndarray:
        rounds_before = (k - 1) // tau
        step = int(theta[rounds_before * tau : k - 1, i].sum())
        return batches.gradient(i, rounds_before + 1, step, x)

    def step_size(k: int) -> float:
        return config.learning_rate_at(int(schedule[(k - 1) // tau].start[0]))

    h = mixing_matrix(network.graph, network.b, config.mixing)
    x0 = np.zeros(batches.x.shape[1] + 1)
    return mll_sgd(gradient, network, h, tau, config.q, step_size, theta, x0)


def replay(
    config: RunConfig, absent: Callable[[int, int], bool] = lambda worker, round: False
) -> list[tuple[list[Flat], Flat]]:
    """Return the hub models and u after each round, with these (worker, round) absent."""
    network, trainer = network_of(config), engine(config)
    h = mixing_matrix(network.graph, network.b, config.mixing)
    models = [trainer.initial()] * network.hubs
    history = []
    for r in config.schedule():
        z = []
        for d, model in enumerate(models):
            parts, weights, kept = [], [], 0.0
            for i in network.members(d).tolist():
                if absent(i, r.number):
                    kept += float(network.w[i])
                    continue
                steps = config.tau
                if not config.wait_for_all:
                    p = float(network.p[i])
                    steps = step_count(config.seed, i, r.number, config.tau, p)
                x = {dtype: vector.copy() for dtype, vector in model.items()}
                rate = config.learning_rate_at(int(r.start[d]))
                trainer.train(x, i, r.number, steps, rate)
                parts.append(x)
                weights.append(float(network.w[i]))
            if not parts:
                z.append(model)
                continue
            if kept and config.absent == "keep":  # the absent shares stay with the hub's model
                parts.append(model)
                weights.append(kept)
            total = sum(network.w[i] for i in network.members(d)) if kept else sum(weights)
            if config.absent == "renormalise":
                total = sum(weights)
            z.append(sum_models(parts, [w / total for w in weights]))
        models = mix_models(z, h) if r.mixes else z
        b = network.hub_weights / network.hub_weights.sum()
        average = sum_models(models, b.tolist()) if len(models) > 1 else models[0]
        history.append((models, average))
    return history
