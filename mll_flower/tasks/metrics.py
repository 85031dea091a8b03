"""What a model is measured by: losses, and metrics such as accuracy or mse, by name.

A loss is a function ``(output, target) -> scalar tensor``, which training differentiates. A metric
is measured on test rows: batches are added to a `Measure`, which then gives one number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mll_flower.tasks.own_code import is_reference

if TYPE_CHECKING:
    from torch import Tensor

Loss = Callable[["Tensor", "Tensor"], "Tensor"]

AUTO = "auto"

CLASS_LOSSES = ("cross-entropy",)
"""Losses of classification."""

NUMBER_LOSSES = ("mse", "mae", "huber")
"""Losses of regression."""

CLASS_METRICS = ("accuracy",)
"""Metrics of classification."""

NUMBER_METRICS = ("mse", "rmse", "mae", "r2")
"""Metrics of regression."""

LOWER_IS_BETTER = ("mse", "rmse", "mae")
"""Metrics that fall while a model gets better. One of the user's own rises."""

# Names in a run's results: a metric of such a name could not be told from them.
_TAKEN = {"slot", "round", "hub", "steps", "loss", "test_loss", "distance", "bytes", "absent"}
_TAKEN |= {"seconds", "evaluation_seconds", "rounds", "metric", "total", "done"}
_TAKEN |= {"mixing", "time", "learning_rate", "arrived", "weight", "silent", "column", "late"}
_TAKEN |= {"workers", "workers_absent", "causes", "phase", "pid", "run", "id", "level", "error"}


def known_losses() -> tuple[str, ...]:
    """Return the values of the key ``loss``."""
    return (AUTO, *CLASS_LOSSES, *NUMBER_LOSSES, "module:function", "file.py:function")


def known_metrics() -> tuple[str, ...]:
    """Return the values of the key ``metric``."""
    return (AUTO, *CLASS_METRICS, *NUMBER_METRICS, "module:function", "file.py:function")


def check_name(key: str, value: str, known: Sequence[str]) -> None:
    """Raise ValueError if a loss or metric is neither known nor a reference."""
    if value not in known and not is_reference(value):
        raise ValueError(f"{key}={value!r} is not known: use {', '.join(known)}")


def metric_name(metric: str, regression: bool) -> str:
    """Return the name under which a metric is reported.

    Parameters
    ----------
    metric : str
        Value of the key ``metric``; a function of the user's is called by its own name.
    regression : bool
        Whether the targets are numbers, not classes.

    Raises
    ------
    ValueError
        If the metric does not fit the targets, or its name is that of another result.
    """
    fitting = NUMBER_METRICS if regression else CLASS_METRICS
    if metric == AUTO:
        return fitting[0]
    if is_reference(metric):
        name = metric.rpartition(":")[2].rpartition(".")[2]
        if name in _TAKEN:
            raise ValueError(f"metric={metric!r}: results call something else {name!r}: rename it")
        return name
    check_fits("metric", metric, fitting, regression)
    return metric


def check_fits(key: str, value: str, fitting: Sequence[str], regression: bool) -> None:
    """Raise ValueError if a loss or metric is not one of those that fit the targets."""
    if value not in fitting:
        targets = "numbers (regression)" if regression else "classes"
        raise ValueError(
            f"{key}={value!r} does not fit this data set, whose targets are {targets}: use "
            f"{', '.join(fitting)} or a function of your own"
        )


def named_loss(name: str) -> Loss:
    """Return one of `CLASS_LOSSES` or `NUMBER_LOSSES` as a function."""
    from torch.nn import functional

    if name == "cross-entropy":
        return functional.cross_entropy
    losses: dict[str, Any] = {
        "mse": functional.mse_loss,
        "mae": functional.l1_loss,
        "huber": functional.huber_loss,
    }
    loss = losses[name]
    return lambda output, target: loss(as_targets(output, target), target)


def as_targets(output: Tensor, target: Tensor) -> Tensor:
    """Return the output of a regression model in the shape of the targets.

    One number per row may come as (rows, 1). Any other difference is an error: broadcasting would
    compare every row with every other one.
    """
    if output.dim() == target.dim() + 1 and output.shape[-1] == 1:
        output = output.squeeze(-1)
    if output.shape != target.shape:
        raise ValueError(
            f"the model's output has shape {tuple(output.shape)} and the target "
            f"{tuple(target.shape)}: they must be the same"
        )
    return output


class Measure(Protocol):
    """Collects batches of a test and gives one number."""

    def add(self, output: Any, target: Tensor) -> None:
        """Take a batch."""

    def value(self) -> float:
        """Return the metric of all batches."""


class Accuracy:
    """The fraction of labels that the model gets right.

    Parameters
    ----------
    correct : callable
        ``correct(output, labels)``: for each label, whether the model is right.
    """

    def __init__(self, correct: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._correct, self._right, self._count = correct, 0, 0

    def add(self, output: Tensor, target: Tensor) -> None:
        """Take a batch."""
        self._right += int(self._correct(output, target).sum())
        self._count += target.numel()

    def value(self) -> float:
        """Return the accuracy."""
        return self._right / self._count


class Errors:
    """A metric of regression, summed in float64: the mean over the targets' columns.

    Parameters
    ----------
    name : str
        One of `NUMBER_METRICS`.
    """

    def __init__(self, name: str) -> None:
        self._name, self._rows = name, 0
        self._sums: Any = None

    def add(self, output: Tensor, target: Tensor) -> None:
        """Take a batch."""
        import torch

        y = target.double().flatten(1) if target.dim() > 1 else target.double()[:, None]
        error = as_targets(output, target).double().reshape(y.shape) - y
        if self._sums is None:
            self._shift = y[:1]  # without it, sums of squares of large targets lose their digits
            self._sums = torch.zeros(4, y.shape[1], dtype=torch.float64, device=y.device)
        y = y - self._shift
        self._sums += torch.stack(
            [error.abs().sum(0), error.square().sum(0), y.sum(0), y.square().sum(0)]
        )
        self._rows += len(y)

    def value(self) -> float:
        """Return the metric."""
        absolute, squares, total, total_squares = self._sums
        if self._name == "mae":
            return float((absolute / self._rows).mean())
        if self._name == "r2":
            variation = total_squares - total.square() / self._rows
            return float((1 - squares / variation).mean())
        mse = squares / self._rows
        return float((mse.sqrt() if self._name == "rmse" else mse).mean())


class Own:
    """A metric of the user's: called once, with the outputs and targets of all rows.

    Parameters
    ----------
    function : callable
        ``function(output, target)``: a number.
    """

    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        self._function = function
        self._batches: list[tuple[Any, Tensor]] = []

    def add(self, output: Any, target: Tensor) -> None:
        """Take a batch."""
        self._batches.append((output, target))

    def value(self) -> float:
        """Return the metric."""
        outputs, targets = zip(*self._batches, strict=True)
        return float(self._function(_joined(outputs), _joined(targets)))


def _joined(batches: Sequence[Any]) -> Any:
    """Join the batches of a tensor, or of each tensor in a dict or tuple, on the CPU.

    A function of the user's may need arrays, which tensors of a GPU cannot become.
    """
    import torch

    first = batches[0]
    if isinstance(first, dict):
        return {key: _joined([batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple | list):
        return tuple(_joined(parts) for parts in zip(*batches, strict=True))
    return torch.cat(list(batches)).cpu()
