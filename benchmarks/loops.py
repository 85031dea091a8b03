"""Work to be timed: our engine without Flower, a bare PyTorch loop, and matrix products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.team import Work
from mll_flower.algorithm.coins import step_counts
from mll_flower.config import RunConfig
from mll_flower.tasks.task import Task
from mll_flower.training.process import prepare_process
from mll_flower.training.run_engine import hosted_workers, run_engine


def engine_loop(values: dict[str, Any], hubs: list[int], rounds: int) -> Work:
    """Set up rounds of some hubs on our engine; the unit of work is a slot of one worker."""
    prepare_process()
    config = RunConfig.read(values)
    engine, network = run_engine(config), config.network()
    models = {hub: engine.initial() for hub in hubs}
    number = 0

    def work() -> int:
        nonlocal number
        numbers = list(range(number + 1, number + rounds + 1))
        number += rounds
        slots = 0
        for hub in hubs:
            workers = hosted_workers(config, hub)
            rates = [float(network.p[i]) for i in workers]
            steps = step_counts(config.seed, workers, numbers, config.tau, rates)
            weights = [float(network.w[i]) for i in workers]
            learning_rates = [config.learning_rate] * rounds
            result = engine.run_hub(models[hub], workers, weights, numbers, steps, learning_rates)
            models[hub] = result.flat
            slots += len(workers) * rounds * config.tau
        return slots

    return work


def bare_loop(values: dict[str, Any], steps: int) -> Work:
    """Set up the shortest PyTorch loop that trains this model: one model, no averaging.

    The unit of work is a step.
    """
    config = RunConfig.read(values)
    task = Task.load(dataset=config.dataset, data_dir=config.data_dir or None, model=config.model)
    return plain_loop(task, config.batch_size, config.learning_rate, steps)


def plain_loop(task: Task, batch_size: int, learning_rate: float, steps: int) -> Work:
    """Set up the same for a task; the unit of work is a step."""
    x, y = task.tensors()
    model = task.new_model()
    optimiser = torch.optim.SGD(model.parameters(), lr=learning_rate)

    def work() -> int:
        for _ in range(steps):
            rows = torch.randint(len(x), (batch_size,))
            optimiser.zero_grad()
            loss = task.loss(model(x[rows]), y[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return steps

    return work


def multiply_loop(size: int, repeats: int) -> Work:
    """Set up products of square float32 matrices; the unit of work is a million operations."""
    rng = np.random.default_rng(0)
    a = torch.from_numpy(rng.random((size, size), dtype=np.float32))
    b, out = a.T.contiguous(), torch.empty_like(a)

    def work() -> int:
        for _ in range(repeats):
            torch.mm(a, b, out=out)
        return 2 * size**3 * repeats // 1_000_000

    return work


def step_operations(values: dict[str, Any]) -> float:
    """Count the operations of one SGD step: its layers' products, forward and backward."""
    config = RunConfig.read(values)
    task = Task.load(dataset=config.dataset, data_dir=config.data_dir or None, model=config.model)
    inputs = torch.from_numpy(task.data.x_train[:1])
    return module_operations(task.new_model(), inputs, config.batch_size)


def module_operations(module: nn.Module, inputs: torch.Tensor, batch_size: int) -> float:
    """Count the same for a module, given one example."""
    total, first = 0, True

    def count(part: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        nonlocal total, first
        weight = part.weight
        assert isinstance(weight, torch.Tensor)
        products = output.numel() * math.prod(weight.shape[1:])
        # Forward, the gradient of the weights, and that of the input except in the first layer.
        total += 2 * products * (2 if first else 3)
        first = False

    for part in module.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            part.register_forward_hook(count)
    with torch.no_grad():
        module(inputs)
    return float(total * batch_size)
