"""`worker_correction`: how a ClientApp of one's own takes part in worker correction.

A hub with ``worker-correction = "mtgc"`` adds a record to its messages: what the worker takes off
its model after each step. It is the step size times z(i) + Y(d), by which the worker's and its
hub's gradients differ from the network's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from mll_flower.models.layout import Flat, Layout

SHIFT = "correction"
"""Name of the record of a message that holds what the worker takes off its model in each step."""

APPLIED = "corrected"
"""Metric of a reply that says that the worker has done so."""

T = TypeVar("T")


def worker_correction(message: Message) -> WorkerCorrection:
    """Return the correction that a hub's message asks for; one that does nothing if it asks none.

    In a ClientApp with a torch model::

        correction = mll_flower.worker_correction(msg)
        for batch in correction.pace(budget.pace(trainloader), model):
            ...  # one step
        metrics = {"num-examples": n, "steps": budget.taken, **correction.metrics}

    Parameters
    ----------
    message : Message
        The message that asks for training.
    """
    record = message.content.array_records.get(SHIFT)
    return WorkerCorrection({} if record is None else {k: a.numpy() for k, a in record.items()})


class WorkerCorrection:
    """What a worker takes off its model after each step.

    Parameters
    ----------
    arrays : Mapping[str, ndarray]
        By the names of the model's arrays; those without one are left alone.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays = dict(arrays)

    @property
    def metrics(self) -> dict[str, int]:
        """What the reply's metrics must say, so that the hub knows that it was applied."""
        return {APPLIED: 1} if self.arrays else {}

    def pace(self, batches: Iterable[T], model: Any) -> Iterator[T]:
        """Yield batches, and correct the model after the step on each of them.

        Parameters
        ----------
        batches : Iterable
            What is trained on, such as ``budget.pace(trainloader)``.
        model : torch.nn.Module or Mapping[str, ndarray]
            Changed in place; its arrays have the names of those that the message brought.
        """
        for batch in batches:
            yield batch
            self.apply(model)

    def apply(self, model: Any) -> None:
        """Take the correction off a model, in place; see `pace`."""
        if not self.arrays:
            return
        if isinstance(model, Mapping):
            for name, shift in self.arrays.items():
                np.subtract(model[name], shift, out=model[name])
            return
        import torch  # a model that is no mapping is torch's

        with torch.no_grad():
            state = model.state_dict()
            for name, shift in self.arrays.items():
                state[name] -= torch.from_numpy(shift).to(state[name].device)

    def flat(self) -> Flat | None:
        """Return it as a flat model; None if there is none."""
        return Layout.of(self.arrays).flatten(self.arrays) if self.arrays else None
