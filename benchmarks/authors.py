"""The training loop of the paper's authors, rewritten so that it can be timed.

It runs in one process: a loop over the hubs, and in it a loop over their workers. A worker gets a
deep copy of its hub's model and goes through its rows in a random order; every hub averages its
workers' models parameter by parameter. Logistic regression is NumPy in double precision, neural
networks are PyTorch modules that autograd differentiates.

The rewritten loop does less than the original in two ways. It does not compute the loss over all
of a worker's rows. And workers keep their rows: the original draws them again in every round (a
permutation of all rows, of which a worker copies its share). That costs little per step over
rounds of tau epochs, but would cost much over the rounds of tau steps that are measured here;
``redraw`` turns it on.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from benchmarks.team import Work
from mll_flower.config import RunConfig
from mll_flower.tasks.task import Task

Floats = NDArray[np.float64]


def authors_loop(values: dict[str, Any], hubs: int, rounds: int, redraw: bool = False) -> Work:
    """Set up rounds of a run's first hubs, and a mixing; the unit of work is a worker's step.

    Parameters
    ----------
    values : dict
        The run config.
    hubs, rounds : int
        Number of hubs, and of their rounds.
    redraw : bool
        Whether workers draw their rows again in every round.
    """
    config = RunConfig.read(values)
    counts = config.worker_counts()[:hubs]
    task = Task.load(dataset=config.dataset, data_dir=config.data_dir or None, model=config.model)
    kind = _Logistic if config.model == "logistic" else _Module
    trainer = kind(task, config.learning_rate, config.batch_size)
    total = len(task.data.y_train)
    rows = total // sum(config.worker_counts())
    models = [trainer.start() for _ in counts]

    def draw() -> tuple[Any, Any]:
        part = np.array(torch.randperm(total))[:rows]
        return trainer.x[part], trainer.y[part]

    kept = [[] if redraw else [draw() for _ in range(workers)] for workers in counts]

    def work() -> int:
        steps = 0
        for _ in range(rounds):
            for hub, workers in enumerate(counts):
                trained = []
                for worker in range(workers):
                    x, y = draw() if redraw else kept[hub][worker]
                    trained.append(trainer.train(copy.deepcopy(models[hub]), x, y, config.tau))
                    steps += config.tau
                models[hub] = trainer.average(models[hub], trained)
        models[:] = [trainer.average(copy.deepcopy(model), models) for model in models]
        return steps

    return work


class _Module:
    """Trains one PyTorch module per worker, differentiated by autograd."""

    def __init__(self, task: Task, learning_rate: float, batch_size: int) -> None:
        self.task, self.learning_rate, self.batch_size = task, learning_rate, batch_size
        self.x, self.y = task.tensors()
        self.criterion = nn.CrossEntropyLoss()

    def start(self) -> Any:
        shape = self.task.data.input_shape
        return _Cnn(shape, self.task.data.classes) if self.task.model == "cnn" else None

    def train(self, net: Any, x: Any, y: Any, steps: int) -> Any:
        order = np.array(torch.randperm(len(x)))
        for step in range(steps):
            first = step * self.batch_size % max(1, len(x) - self.batch_size)
            batch = order[first : first + self.batch_size]
            loss = self.criterion(net(x[batch]), y[batch])
            net.zero_grad()
            loss.backward()
            for parameter in net.parameters():
                parameter.data -= self.learning_rate * parameter.grad.data
        return net

    def average(self, net: Any, nets: list[Any]) -> Any:
        sums: list[Any] = [0 for _ in net.parameters()]
        for other in nets:
            for place, parameter in enumerate(other.parameters()):
                sums[place] = sums[place] + parameter.data / len(nets)
        for parameter, value in zip(net.parameters(), sums, strict=True):
            parameter.data = value
        return net


class _Cnn(nn.Module):
    """The paper's CNN in its usual form: ReLU, then pooling."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.inner = 20 * (height // 4) * (width // 4)
        self.conv1 = nn.Conv2d(channels, 10, 5, padding=2)
        self.conv2 = nn.Conv2d(10, 20, 5, padding=2)
        self.hidden = nn.Linear(self.inner, 100)
        self.output = nn.Linear(100, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.hidden(x.view(-1, self.inner)))
        return self.output(x)  # type: ignore[no-any-return]


class _Logistic:
    """Trains logistic regression in NumPy, with loss and gradient in every step."""

    def __init__(self, task: Task, learning_rate: float, batch_size: int) -> None:
        data = task.data
        self.x: Floats = data.x_train.reshape(len(data.x_train), -1).astype(np.float64)
        self.y = data.y_train
        self.half = data.classes // 2
        self.learning_rate, self.batch_size = learning_rate, batch_size

    def start(self) -> Any:
        return np.zeros(self.x.shape[1])

    def train(self, theta: Any, x: Floats, y: Any, steps: int) -> Any:
        order = np.array(torch.randperm(len(x)))
        for step in range(steps):
            first = step * self.batch_size % max(1, len(x) - self.batch_size)
            batch = order[first : first + self.batch_size]
            _, gradient = self._loss(theta, x[batch], y[batch])
            theta += self.learning_rate * gradient
        return theta

    def _loss(self, theta: Any, x: Floats, y: Any) -> tuple[float, Any]:
        low = np.zeros(len(y), dtype=bool)
        for label in range(self.half):
            low = low | (y == label)
        target = np.where(low, 1, 0)
        predicted = 1 / (1 + np.exp(-(x @ theta)))
        loss = np.mean(-target * np.log(predicted) - (1 - target) * np.log(1 - predicted))
        return float(loss), (target - predicted) @ x / len(y)

    def average(self, theta: Any, thetas: list[Any]) -> Any:
        total = np.zeros_like(theta)
        for other in thetas:
            total += other / len(thetas)
        return total
