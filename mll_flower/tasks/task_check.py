"""Try a task once before a run: each of its parts on one batch, with errors that name them.

For tasks with parts of the user's own: their mistakes shall be found before anything starts, not
in the middle of a run or in some worker's log.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from mll_flower.tasks.own_code import is_reference, named_errors
from mll_flower.tasks.task import Task

_CPU = torch.device("cpu")


def check_task(task: Task, batch_size: int, device: torch.device = _CPU) -> None:
    """Take a forward and a backward pass on one batch, and measure the metric on one.

    Parameters
    ----------
    task : Task
        Data, augmentation, model, loss and metric.
    batch_size : int
        Rows of the batch.
    device : torch.device
        Where the task is trained.

    Raises
    ------
    ValueError
        If a part of the task raises, or gives something else than it should.
    """
    module = _check_model(task).to(device)
    x, y = task.tensors()
    rows = torch.arange(batch_size) % len(x)
    with torch.random.fork_rng(devices=[]):
        examples = _check_augmentation(task, x[rows])
        _check_loss(task, module, examples.to(device), y[rows].to(device))
        _check_metric(task, module, device)


def _check_model(task: Task) -> nn.Module:
    """Check that two calls give two models with the same initial values."""
    first, second = task.new_model(), task.new_model()
    if is_reference(task.model):
        if first is second:
            raise ValueError(
                f"model={task.model!r} gives the same module at every call: build a new one"
            )
        others = second.state_dict()
        for name, value in first.state_dict().items():
            other = others.get(name)
            if isinstance(value, Tensor) and not (
                isinstance(other, Tensor) and torch.equal(value, other)
            ):
                raise ValueError(
                    f"model={task.model!r} gives another {name!r} at each call: initial values may "
                    "be random only through torch, numpy.random or random, which are seeded"
                )
    return first


def _check_augmentation(task: Task, x: Tensor) -> Tensor:
    """Return the augmented batch; the data themselves must stay as they are."""
    augment = task.new_augmentation()
    if augment is None:
        return x
    with named_errors("augment", task.augment, f"on a batch of {_described(x)}"):
        augmented = augment(x.clone())
    if (
        not isinstance(augmented, Tensor)
        or augmented.shape != x.shape
        or augmented.dtype != x.dtype
    ):
        raise ValueError(
            f"augment={task.augment!r} gives {_described(augmented)} for a batch of "
            f"{_described(x)}: shape and dtype must stay"
        )
    return augmented


def _check_loss(task: Task, module: nn.Module, x: Tensor, y: Tensor) -> None:
    with named_errors("model", task.model, f"on a batch of shape {tuple(x.shape)}"):
        output = module(x)
    own_loss = is_reference(task.loss_name)
    if not own_loss:
        _check_output(task, output, y)
    given = f"on an output of {_described(output)} and a target of {_described(y)}"
    with named_errors("loss", task.loss_name, given), warnings.catch_warnings():
        # torch only warns when it compares every row with every other one.
        warnings.filterwarnings("error", "Using a target size", UserWarning)
        loss = task.loss(output, y)
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        raise ValueError(
            f"loss={task.loss_name!r} gives {_described(loss)}: give the mean loss of the batch, "
            "a tensor with one number"
        )
    if not loss.requires_grad:
        raise ValueError(
            f"loss={task.loss_name!r} does not depend on the parameters of model={task.model!r}: "
            "compute it from the output with torch, without detach() or item()"
        )
    with named_errors("loss", task.loss_name, f"{given}, in its backward pass"):
        torch.autograd.backward(loss)


def _check_output(task: Task, output: object, y: Tensor) -> None:
    """Check what the losses of this project expect of a model's output."""
    data = task.data
    if not isinstance(output, Tensor):
        raise ValueError(
            f"model={task.model!r} gives {_described(output)}: loss={task.loss_name!r} takes a "
            "tensor; give a loss of your own for other outputs"
        )
    if data.regression or task.model == "logistic":
        return  # the loss itself compares the shapes
    expected = (len(y), data.classes, *y.shape[1:])
    if output.dim() != len(expected) or output.shape[2:] != y.shape[1:]:
        raise ValueError(
            f"model={task.model!r} gives {_described(output)} for {len(y)} rows and "
            f"{data.classes} classes: the shape must be {expected}"
        )
    if output.shape[0] != len(y) or output.shape[1] < data.classes:
        raise ValueError(
            f"model={task.model!r} gives {output.shape[1]} outputs per row for {data.classes} "
            f"classes ({_described(output)}): the shape must be {expected}"
        )


def _check_metric(task: Task, module: nn.Module, device: torch.device) -> None:
    module.eval()
    parts = (task.data.x_test, task.data.y_test)
    x, y = (torch.from_numpy(part[:32]).to(device) for part in parts)
    with torch.inference_mode():
        with named_errors("model", task.model, f"on test rows of shape {tuple(x.shape)}"):
            output = module(x)
        given = f"on an output of {_described(output)} and a target of {_described(y)}"
        with named_errors("metric", task.metric, given):
            measure = task.new_measure()
            measure.add(output, y)
            measure.value()


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"shape {tuple(value.shape)} ({str(value.dtype).removeprefix('torch.')})"
    return f"a {type(value).__name__}"
