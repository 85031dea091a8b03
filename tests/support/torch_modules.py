"""What the tests of training share: small tasks on random images, unusual modules, a plain loop.

The plain loop (`plain_loop`) is the readable twin of the engine's steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mll_flower.algorithm.coins import batch_rng
from mll_flower.models.layout import Flat, Layout
from mll_flower.tasks.data import Dataset
from mll_flower.tasks.task import Task
from mll_flower.training.engine import Engine

ROWS, CLASSES, WORKERS = 120, 4, 6


@dataclass(frozen=True)
class OwnTask(Task):
    """A task with a module of the test's own."""

    make: Callable[[], nn.Module] | None = None

    def new_model(self) -> nn.Module:
        if self.make is None:
            return super().new_model()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self.make()


def make_task(
    model: str | Callable[[], nn.Module] = "cnn", channels: int = 1, size: int = 8
) -> OwnTask:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, channels, size, size)).astype(np.float32)
    y = rng.integers(0, CLASSES, ROWS)
    x += y[:, None, None, None].astype(np.float32) / 2
    data = Dataset("own", "own", x, y, x[::2].copy(), y[::2].copy(), CLASSES)
    name, make = (model, None) if isinstance(model, str) else ("own", model)
    return OwnTask(data, name, 3, make)


def make_engine(task: Task, batch_size: int = 5, **options: Any) -> Engine:
    shards = np.array_split(np.random.default_rng(1).permutation(ROWS), WORKERS)
    return Engine(task, shards, batch_size=batch_size, seed=11, **options)


def shard_of(worker: int) -> np.ndarray:
    return np.array_split(np.random.default_rng(1).permutation(ROWS), WORKERS)[worker]


def plain_loop(
    task: Task,
    flat: Flat,
    worker: int,
    round: int,
    steps: int,
    lr: float,
    batch_size: int = 5,
    **options: float,
) -> tuple[dict[str, Tensor], float]:
    """Take the engine's steps with ``torch.optim.SGD`` on the same mini-batches."""
    module = task.new_model()
    state = {k: v.numpy() for k, v in module.state_dict().items()}
    arrays = Layout.of(state).arrays(flat)
    module.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in arrays.items()})
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, **options)
    x, y = task.tensors()
    shard = shard_of(worker)
    losses = []
    for batch in batch_rng(11, worker, round).integers(len(shard), size=(steps, batch_size)):
        rows = torch.from_numpy(shard[batch])
        optimizer.zero_grad()
        loss = task.loss(module(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return module.state_dict(), float(np.mean(losses))


def same(a: Flat, b: Flat) -> bool:
    """Whether two models are the same to the bit."""
    return a.keys() == b.keys() and all(
        a[d].dtype == b[d].dtype and a[d].tobytes() == b[d].tobytes() for d in a
    )


def close(engine: Engine, flat: Flat, state: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    for name, array in engine.layout.arrays(flat).items():
        assert array.dtype == state[name].numpy().dtype
        np.testing.assert_allclose(array, state[name].numpy(), rtol=tolerance, atol=tolerance)


class BatchNormNet(nn.Module):
    """A convolution with BatchNorm: float and int64 buffers between the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.out = nn.Linear(6 * 36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(functional.relu(self.norm(self.conv(x))).flatten(1))


class DropoutNet(nn.Module):
    """Dropout as a function, so that no layer of the module shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(functional.dropout(x.flatten(1), 0.5, training=self.training))


class HiddenDropoutNet(nn.Module):
    """Dropout behind a hidden layer, for which there is compiled code."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.drop = nn.Linear(64, 32), nn.Dropout(0.5)
        self.out = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(functional.relu(self.hidden(x.flatten(1)))))


class OddNet(nn.Module):
    """Tied, frozen and unused parameters; buffers that are replaced, or not saved."""

    mean: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64, bias=False)
        self.second = nn.Linear(64, 64, bias=False)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.full((64,), 0.5), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))
        self.out = nn.Linear(64, CLASSES)
        self.register_buffer("mean", torch.zeros(64))
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(functional.relu(self.first(x.flatten(1)))) * self.frozen
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        self.seen += 1
        return self.out(h - self.mean) / self.seen
