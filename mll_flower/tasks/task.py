"""A task: a data set, the model that learns it, its loss, and how a model is evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mll_flower.tasks.data import Dataset, load_dataset
from mll_flower.tasks.models import binary_labels, build_model


@dataclass(frozen=True)
class Task:
    """A data set and the model that learns it.

    Parameters
    ----------
    data : Dataset
        The training and test rows.
    model : str
        The model's name.
    seed : int
        The run seed, which decides the model's initial values.
    """

    data: Dataset
    model: str
    seed: int

    @classmethod
    def load(cls, *, dataset: str, data_dir: str | None = None, model: str, seed: int = 0) -> Task:
        """Load the data set of a task, and check that the model fits it.

        ``logistic`` gets pixels in [0, 1] as in the paper, whose step size of 0.2 is too large for
        normalised pixels; the other models get normalised ones.

        Parameters
        ----------
        dataset, data_dir
            As in `load_dataset`.
        model : str
            As in `build_model`.
        seed : int
            The run seed.

        Returns
        -------
        Task
            The task.
        """
        scaling: Literal["unit", "standard"] = "unit" if model == "logistic" else "standard"
        task = cls(load_dataset(dataset, data_dir, scaling), model, seed)
        task.new_model()  # if the model does not fit the data, fail here and not in a worker
        return task

    def new_model(self) -> nn.Module:
        """Build the model with its initial values, the same at every call."""
        return build_model(self.model, self.data.input_shape, self.data.classes, self.seed)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch: cross-entropy, or the log loss for ``logistic``.

        Parameters
        ----------
        output : Tensor
            Output of the model, (rows, classes), or (rows, 1) for ``logistic``.
        y : Tensor
            Class labels, int64.

        Returns
        -------
        Tensor
            A scalar.
        """
        if self.model == "logistic":
            target = binary_labels(y, self.data.classes).to(output.dtype)
            return functional.binary_cross_entropy_with_logits(output[:, 0], target)
        return functional.cross_entropy(output, y)

    @property
    def loss_is_cross_entropy(self) -> bool:
        """Whether `loss` is the cross-entropy: not for ``logistic`` or where a subclass differs."""
        return type(self).loss is Task.loss and self.model != "logistic"

    def correct(self, output: Tensor, y: Tensor) -> Tensor:
        """Return for each row whether the model is right.

        Parameters
        ----------
        output, y : Tensor
            As in `loss`.

        Returns
        -------
        Tensor
            bool, one per row.
        """
        if self.model == "logistic":
            return (output[:, 0] > 0) == (binary_labels(y, self.data.classes) == 1)
        return output.argmax(dim=1) == y

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return x_train and y_train as tensors that share the arrays' memory."""
        return torch.from_numpy(self.data.x_train), torch.from_numpy(self.data.y_train)

    def evaluate(
        self,
        module: nn.Module,
        split: Literal["test", "train"] = "test",
        batch_size: int = 512,
        limit: int | None = None,
    ) -> tuple[float, float]:
        """Measure a model on all rows of a split.

        Parameters
        ----------
        module : Module
            The model, on any device; its modes are restored afterwards.
        split : {"test", "train"}
            Which rows.
        batch_size : int
            Rows at a time; the result does not depend on it beyond rounding.
        limit : int, optional
            Use only this number of rows, spread evenly over the split, because some data sets
            are stored in the order of their labels.

        Returns
        -------
        loss : float
            Mean over the rows.
        accuracy : float
            Fraction of the rows that the model gets right.
        """
        if split not in ("test", "train"):
            raise ValueError(f"unknown split {split!r}: use 'test' or 'train'")
        if batch_size < 1 or (limit is not None and limit < 1):
            raise ValueError(f"batch_size ({batch_size}) and limit ({limit}) must be at least 1")
        data = self.data
        x, y = (data.x_test, data.y_test) if split == "test" else (data.x_train, data.y_train)
        if limit is not None and limit < len(x):
            spread = np.arange(limit) * len(x) // limit
            x, y = x[spread], y[spread]
        device = next(module.parameters()).device
        modes = [(part, part.training) for part in module.modules()]
        module.eval()
        loss, right = 0.0, 0
        try:
            with torch.inference_mode():
                for start in range(0, len(x), batch_size):
                    rows = slice(start, start + batch_size)
                    labels = torch.from_numpy(y[rows]).to(device)
                    output = module(torch.from_numpy(x[rows]).to(device))
                    loss += float(self.loss(output, labels)) * len(labels)
                    right += int(self.correct(output, labels).sum())
        finally:
            for part, training in modes:
                part.training = training
        return loss / len(x), right / len(x)
