"""How near the gradients of compiled code are to the exact ones, beside those of autograd.

Run with ``python -m benchmarks.gradients``. The exact gradient of a batch is that of autograd in
double precision. Where two entries of a pooling window, or an entry and zero, are nearly equal,
rounding decides which of them passes the gradient on, in any code: then a few numbers of a
gradient are far from the exact ones. Such batches are counted for both codes, and a sign test over
the batches in which only one of the two is off says whether one is off more often. No example is in
two batches of a row of the table, so that none is counted twice. Networks with dropout, whose steps
are random, are left to the tests.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks import report
from benchmarks.images import image_data
from benchmarks.steps import BATCH, NETWORKS, StepTask, task_of
from mll_flower.tasks.data import load_dataset
from mll_flower.training._compiled.gradients import CompiledGradients
from mll_flower.training.process import prepare_process, torch_threads

NEAR = 1e-5
LEARNING_RATE = 0.05

Gradient = list[NDArray[np.floating]]


@dataclass(frozen=True)
class Errors:
    """Relative errors of gradients, one per batch, each that of the worst tensor.

    Parameters
    ----------
    between : ndarray
        Of compiled code against autograd, both in single precision.
    compiled, autograd : ndarray
        Of the two against autograd in double precision.
    """

    between: NDArray[np.float64]
    compiled: NDArray[np.float64]
    autograd: NDArray[np.float64]

    def row(self, name: str) -> list[str]:
        """Return the row of the table."""
        off = [str(int((errors > NEAR).sum())) for errors in (self.compiled, self.autograd)]
        medians = [np.median(e) for e in (self.between, self.compiled, self.autograd)]
        return [name, *(f"{median:.1e}" for median in medians), *off]


class Network:
    """A network whose parameters lie in one flat vector, and its gradients in three ways.

    Parameters
    ----------
    task : Task
        Data and network.
    """

    def __init__(self, task: StepTask) -> None:
        self.x, self.y = task.tensors()
        self._single, self._double = task.new_model(), task.new_model().double()
        self.model = parameters_to_vector(self._single.parameters()).detach()
        vector_to_parameters(self.model, self._single.parameters())
        self._sizes = [parameter.numel() for parameter in self._single.parameters()]
        self._compiled = CompiledGradients(self._single, self.model, self.x, self.y, BATCH)
        self._generator = torch.Generator().manual_seed(0)

    def train(self, steps: int) -> None:
        """Take plain SGD steps."""
        for _ in range(steps):
            rows = torch.randint(len(self.x), (BATCH,), generator=self._generator)
            _, [gradient] = self._compiled(rows)
            self.model -= LEARNING_RATE * gradient

    def errors(self, batches: int) -> Errors:
        """Compare the gradients of the present model on batches without a common example."""
        vector_to_parameters(self.model.double(), self._double.parameters())
        order = torch.randperm(len(self.x), generator=self._generator)
        found = []
        for rows in order[: batches * BATCH].view(batches, BATCH):
            exact = self._autograd(self._double, rows)
            autograd = self._autograd(self._single, rows)
            _, [flat] = self._compiled(rows)
            compiled = np.split(flat.numpy(), np.cumsum(self._sizes)[:-1])
            pairs = ((compiled, autograd), (compiled, exact), (autograd, exact))
            found.append([worst(one, other) for one, other in pairs])
        return Errors(*np.array(found).T)

    def _autograd(self, module: nn.Module, rows: Tensor) -> Gradient:
        """Differentiate with autograd, in the module's precision."""
        parameters = list(module.parameters())
        output = module(self.x[rows].to(parameters[0].dtype))
        loss = nn.functional.cross_entropy(output, self.y[rows])
        return [g.numpy().ravel() for g in torch.autograd.grad(loss, parameters)]


def worst(found: Sequence[NDArray[np.floating]], expected: Gradient) -> float:
    """Return the largest error of any tensor, relative to its largest entry."""
    pairs = zip(found, expected, strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def compare_counts(errors: Sequence[Errors]) -> str:
    """Say how often either code is off in all of the batches, and whether that differs."""
    ours = np.concatenate([e.compiled for e in errors]) > NEAR
    theirs = np.concatenate([e.autograd for e in errors]) > NEAR
    only_ours, only_theirs = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    discordant = only_ours + only_theirs
    chance = binomtest(only_ours, discordant).pvalue if discordant else 1.0
    differs = "differ" if chance < 0.05 else "do not differ"
    return (
        f"Of {len(ours):,} batches, compiled code is off by more than {NEAR:g} in "
        f"{ours.sum():,} and autograd in {theirs.sum():,}; in {(ours & theirs).sum():,} of them "
        f"both are. By a sign test over the {discordant:,} others the two {differs} "
        f"(p = {chance:.2f})."
    )


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the table."""
    parser = report.options("Errors of gradients.", repeats=1500, data=True)
    parser.add_argument("--steps", type=int, default=500, help="SGD steps of a trained model")
    choice = parser.parse_args(arguments)
    if choice.quick:
        choice.repeats, choice.steps = 5, 5
    prepare_process()
    needed = choice.repeats * BATCH
    rows, every = [], []
    with tempfile.TemporaryDirectory() as folder, torch_threads(1):
        images = image_data(choice.data_dir, Path(folder), needed)
        data = load_dataset(images["dataset"], images["data-dir"] or None)
        for name, (_, shape) in NETWORKS.items():
            task = task_of(name, needed)
            if any(isinstance(layer, nn.Dropout) for layer in task.new_model().modules()):
                continue
            if data.x_train.shape[1:] == shape:
                task = replace(task, data=data)
            if needed > len(task.data.y_train):
                most = len(task.data.y_train) // BATCH
                parser.error(f"--repeats {choice.repeats}: MNIST has rows for {most} batches")
            network = Network(task)
            for steps, state in ((0, "new"), (choice.steps, f"after {choice.steps} steps")):
                network.train(steps)
                every.append(network.errors(choice.repeats))
                rows.append(every[-1].row(f"{name}: {state}"))
                report.console.print(" | ".join(rows[-1]))
    headings = [
        "",
        "compiled and autograd: median",
        "compiled and exact: median",
        "autograd and exact: median",
        f"compiled: batches over {NEAR:g}",
        f"autograd: batches over {NEAR:g}",
    ]
    median = max(float(np.median(errors.between)) for errors in every)
    kept = "yes" if median <= NEAR else "**no**"
    text = report.table(headings, rows)
    text += f"\n\n{compare_counts(every)} Every median between the two is at most {NEAR:g}: {kept}."
    source = "MNIST" if images["dataset"] == "mnist" else "random images"
    text += f"\n\n{choice.repeats:,} batches of {BATCH} per row; images of 28x28 pixels are "
    text += f"{source}, those of 32x32 random; steps of SGD with step size {LEARNING_RATE:g}."
    report.write(choice.docs, "gradients", text)


if __name__ == "__main__":
    main()
