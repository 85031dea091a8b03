"""FedAvg of the paper's CNN with pfl-research, timed: a script for a Python that has it.

It imports nothing of this project, so that pfl may live in an environment of its own
(``pip install 'pfl[pytorch]'``). ``benchmarks.steps --pfl-python PYTHON`` runs it and reads the one
number that it prints: microseconds of CPU time per worker-step, on one thread. A round trains every
worker for tau batches of rows that it holds in memory, and averages their models.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn


class Cnn(nn.Sequential):
    """The paper's CNN, with the two methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(1, 10, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(10, 20, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(980, 100), nn.ReLU(), nn.Linear(100, 10)),
        )

    def loss(self, x: torch.Tensor, y: torch.Tensor, **options: Any) -> torch.Tensor:
        """Return the loss of a batch."""
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, *batch: torch.Tensor, **options: Any) -> dict[str, Any]:
        """Nothing is evaluated."""
        return {}


class Clock(TrainingProcessCallback):  # type: ignore[misc]
    """Notes the CPU time at the end of every round."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_central_iteration(self, *arguments: Any, **options: Any) -> tuple[bool, Metrics]:
        """Note the time; do not stop."""
        self.ends.append(time.process_time())
        return False, Metrics()


def main(workers: int, tau: int, batch_size: int, rounds: int) -> float:
    """Return the microseconds per worker-step, of the fastest round but the first."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    rng = np.random.default_rng(0)
    rows = tau * batch_size
    x = torch.from_numpy(rng.standard_normal((workers, rows, 1, 28, 28), dtype=np.float32))
    y = torch.from_numpy(rng.integers(10, size=(workers, rows)))
    data = FederatedDataset(
        lambda user: PyTorchTensorDataset((x[user], y[user])),
        get_user_sampler("minimize_reuse", list(range(workers))),
    )
    module, clock = Cnn(), Clock()
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=workers,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=0.01, local_batch_size=batch_size
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
    )
    return float(1e6 * np.diff(clock.ends).min() / (workers * tau))


if __name__ == "__main__":
    print(main(*map(int, sys.argv[1:])))
