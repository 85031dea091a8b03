"""A task: a data set, the model that learns it, its loss, and how a model is evaluated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mll_flower.tasks.augmentation import CROP_FLIP, NONE, Augment, CropFlip
from mll_flower.tasks.data import Dataset, load_dataset
from mll_flower.tasks.metrics import (
    AUTO,
    CLASS_LOSSES,
    NUMBER_LOSSES,
    Accuracy,
    Errors,
    Loss,
    Measure,
    Own,
    check_fits,
    metric_name,
    named_loss,
)
from mll_flower.tasks.models import binary_labels, build_model, in_mode
from mll_flower.tasks.own_code import find, is_reference
from mll_flower.tasks.own_models import build_own_model


@dataclass(frozen=True)
class Task:
    """A data set and the model that learns it.

    Parameters
    ----------
    data : Dataset
        The training and test rows.
    model : str
        The model's name, or a function of the user's.
    seed : int
        The run seed, which decides the model's initial values.
    loss_name, metric : str
        As the keys ``loss`` and ``metric`` of the run config.
    augment : str
        As the key of the run config.
    code_dir : str
        The folder in which functions of the user's are looked for.
    """

    data: Dataset
    model: str
    seed: int
    loss_name: str = field(default=AUTO, kw_only=True)
    metric: str = field(default=AUTO, kw_only=True)
    augment: str = field(default=NONE, kw_only=True)
    code_dir: str = field(default="", kw_only=True)

    @classmethod
    def load(
        cls,
        *,
        dataset: str,
        data_dir: str | None = None,
        model: str,
        seed: int = 0,
        loss: str = AUTO,
        metric: str = AUTO,
        augment: str = NONE,
        code_dir: str = "",
        classes: int = 0,
    ) -> Task:
        """Load the data set of a task, and check that everything else fits it.

        ``logistic`` gets pixels in [0, 1] as in the paper, whose step size of 0.2 is too large for
        normalised pixels; the other models get normalised ones.

        Parameters
        ----------
        dataset, data_dir, code_dir, classes
            As in `load_dataset`.
        model : str
            As in `build_model`, or a function of the user's.
        seed : int
            The run seed.
        loss, metric, augment : str
            As the keys of the run config.

        Returns
        -------
        Task
            The task.
        """
        scaling: Literal["unit", "standard"] = "unit" if model == "logistic" else "standard"
        data = load_dataset(dataset, data_dir, scaling, code_dir, classes)
        if data.x_train.dtype.kind == "i" and not is_reference(model):
            raise ValueError(
                f"dataset {dataset!r} gives whole numbers as examples, which model={model!r} "
                "cannot take: give floating-point numbers, or a model of your own"
            )
        names = {"loss_name": loss, "metric": metric, "augment": augment, "code_dir": code_dir}
        task = cls(data, model, seed, **names)
        # If something does not fit the data, fail here and not in a worker.
        task.new_model()
        task._loss  # noqa: B018
        task.new_measure()
        task.new_augmentation()
        return task

    def new_model(self) -> nn.Module:
        """Build the model with its initial values, the same at every call."""
        data = self.data
        if is_reference(self.model):
            example = torch.from_numpy(data.x_train[:2])
            return build_own_model(self.model, self.code_dir, example, data.outputs, self.seed)
        return build_model(self.model, data.input_shape, data.outputs, self.seed, data.regression)

    def new_augmentation(self) -> Augment | None:
        """Return what changes the examples of a batch before a step; None if nothing does."""
        if self.augment == NONE:
            return None
        if self.model == "logistic":
            raise ValueError(
                f"augment={self.augment!r}: model 'logistic' has a trainer of its own, without "
                "augmentation; use another model"
            )
        if self.augment == CROP_FLIP:
            return CropFlip(self.data.input_shape)
        return find("augment", self.augment, self.code_dir)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch.

        By default it is the cross-entropy, the log loss for ``logistic``, or the mean squared error
        in regression.

        Parameters
        ----------
        output : Tensor
            Output of the model: (rows, classes); (rows, 1) for ``logistic``.
        y : Tensor
            Class labels, int64, or numbers to predict.

        Returns
        -------
        Tensor
            A scalar.
        """
        return self._loss(output, y)

    @cached_property
    def _loss(self) -> Loss:
        name, regression = self.loss_name, self.data.regression
        if self.model == "logistic":
            if name != AUTO:
                raise ValueError(
                    f"loss={name!r}: model 'logistic' has the log loss; use another model"
                )
            return self._log_loss
        if is_reference(name):
            return find("loss", name, self.code_dir)
        fitting = NUMBER_LOSSES if regression else CLASS_LOSSES
        if name == AUTO:
            name = fitting[0]
        check_fits("loss", name, fitting, regression)
        return named_loss(name)

    def _log_loss(self, output: Tensor, y: Tensor) -> Tensor:
        target = binary_labels(y, self.data.classes).to(output.dtype)
        return functional.binary_cross_entropy_with_logits(output[:, 0], target)

    @property
    def loss_is_cross_entropy(self) -> bool:
        """Whether `loss` is the cross-entropy: not for ``logistic`` or where a subclass differs."""
        return type(self).loss is Task.loss and self._loss is functional.cross_entropy

    @property
    def metric_name(self) -> str:
        """The name of what `evaluate` measures besides the loss, such as ``accuracy``."""
        return metric_name(self.metric, self.data.regression)

    def new_measure(self) -> Measure:
        """Return what collects the batches of one evaluation."""
        if is_reference(self.metric):
            function: Callable[..., Any] = find("metric", self.metric, self.code_dir)
            return Own(function)
        name = self.metric_name
        return Accuracy(self.correct) if name == "accuracy" else Errors(name)

    def correct(self, output: Tensor, y: Tensor) -> Tensor:
        """Return for each row whether the model is right.

        Parameters
        ----------
        output, y : Tensor
            As in `loss`; y holds class labels.

        Returns
        -------
        Tensor
            bool, one per label.
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
        metric : float
            The metric of the rows; by default the accuracy, or the mean squared error in
            regression.
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
        loss, measure = 0.0, self.new_measure()
        with in_mode(module, training=False), torch.inference_mode():
            for start in range(0, len(x), batch_size):
                rows = slice(start, start + batch_size)
                labels = torch.from_numpy(y[rows]).to(device)
                output = module(torch.from_numpy(x[rows]).to(device))
                loss += float(self.loss(output, labels)) * len(labels)
                measure.add(output, labels)
        return loss / len(x), measure.value()
