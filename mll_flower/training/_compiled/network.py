"""The doors to the machine code of a network: `CompiledNetwork` and `CompiledOutputs`.

Machine code checks nothing, so this module does: sizes, dtypes and memory order once, when the
data are bound; the rows of each batch and their labels at every step, at the beginning of the
machine code, before anything else is read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mll_flower.native.machine_code import Cpu, Library, load, this_cpu
from mll_flower.native.vector_code import INT, LANES, LONG, Buffer, Kernel
from mll_flower.training._compiled import (
    batch_kernels,
    convolution_kernels,
    dropout_kernels,
    linear_kernels,
    pooled_kernels,
)
from mll_flower.training._compiled.stages import Convolution, Linear, Stage
from mll_flower.training._compiled.step_kernel import ARGUMENTS, StepKernel
from mll_flower.training._compiled.workspace import Plan, plan

_GRADIENT, _OUTPUTS = "gradient", "outputs"
# Floats between two cache lines.
_LINE = 16


class CompiledNetwork:
    """The mean cross-entropy of a batch and its gradient with respect to a flat model.

    Parameters
    ----------
    stages : tuple of Stage
        The network.
    x : ndarray
        The training data, float32, C-contiguous, (rows, ...).
    y : ndarray
        Their labels, int64, from 0 to the number of classes less one.
    batch_size : int
        Rows of a batch.
    model : ndarray
        The flat model, float32: weights and biases of all layers in order. It is read at every
        call.
    cpu : Cpu, optional
        What to compile for; default: this machine.

    Attributes
    ----------
    gradient : ndarray
        The gradient of the last call; shape of ``model``.
    """

    def __init__(
        self,
        stages: tuple[Stage, ...],
        x: NDArray[np.float32],
        y: NDArray[np.int64],
        batch_size: int,
        model: NDArray[np.float32],
        cpu: Cpu | None = None,
    ) -> None:
        shape, cpu = x.shape[1:], cpu or this_cpu()
        self._plan = memory = plan(stages, shape)
        _check("x", x, np.float32, (len(x), *shape))
        _check("y", y, np.int64, (len(x),))
        _check("model", model, np.float32, (memory.parameters,))
        if batch_size < 1 or len(x) < 1:
            raise ValueError(f"{len(x)} rows in batches of {batch_size}: give at least one")
        self._batch_size, self._rows = batch_size, len(x)
        self._work = _aligned_zeros(memory.size(batch_size))
        self._loss = self._work[memory.loss.start :][:1]
        self.gradient = _aligned_zeros(memory.parameters)
        self._call = _function(_GRADIENT, memory, cpu)
        self._kept = (model, self.gradient, self._work, x, y)
        self._addresses = [array.ctypes.data for array in self._kept]

    def __call__(self, rows: NDArray[np.int64], noise: int = 0) -> float:
        """Compute the loss of the model on some rows, which is returned, and its gradient.

        Parameters
        ----------
        rows : ndarray
            Rows of the training data, int64, as many as ``batch_size``.
        noise : int
            64 random bits that decide which entries dropout takes away.
        """
        _check("rows", rows, np.int64, (self._batch_size,))
        bad = self._call(*self._addresses, rows.ctypes.data, self._batch_size, noise, self._rows)
        if bad:
            raise IndexError(
                f"a batch has rows from {rows.min()} to {rows.max()}: they must be from 0 to "
                f"{self._rows - 1}, with labels from 0 to {self._plan.classes - 1}"
            )
        return float(self._loss[0])


class CompiledOutputs:
    """The outputs of a network; several threads may each have one of their own.

    Parameters
    ----------
    stages : tuple of Stage
        The network.
    shape : tuple of int
        Shape of one example.
    cpu : Cpu, optional
        What to compile for; default: this machine.
    """

    ROWS = 32
    """Rows that are computed together: few, so that what lies between two layers stays in cache."""

    def __init__(
        self, stages: tuple[Stage, ...], shape: tuple[int, ...], cpu: Cpu | None = None
    ) -> None:
        self._plan = memory = plan(stages, shape)
        self._call = _function(_OUTPUTS, memory, cpu or this_cpu())
        self._work = _aligned_zeros(memory.size(self.ROWS))
        # The code is that of a training step: it takes its rows from some data with labels.
        self._rows = np.arange(self.ROWS)
        self._labels = np.zeros(self.ROWS, np.int64)
        groups = self._work[memory.shared :].reshape(-1, memory.per_group)
        start = memory.logits.start - memory.shared
        logits = groups[:, start : start + memory.classes * LANES]
        self._logits = logits.reshape(len(groups), memory.classes, LANES)

    def __call__(self, model: NDArray[np.float32], x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs of a model, (rows, outputs).

        Parameters
        ----------
        model : ndarray
            The flat model, float32: weights and biases of all layers in order.
        x : ndarray
            Examples, float32, C-contiguous, (rows, ...).
        """
        _check("model", model, np.float32, (self._plan.parameters,))
        _check("x", x, np.float32, (len(x), *self._plan.shape))
        outputs = np.empty((len(x), self._plan.classes), np.float32)
        unused = None  # the gradient
        for start in range(0, len(x), self.ROWS):
            part = x[start : start + self.ROWS]
            arrays = (self._work, part, self._labels, self._rows)
            addresses = [array.ctypes.data for array in arrays]
            self._call(model.ctypes.data, unused, *addresses, len(part), 0, len(part))
            by_row = self._logits.transpose(0, 2, 1).reshape(-1, self._plan.classes)
            outputs[start : start + self.ROWS] = by_row[: len(part)]
        return outputs


def _function(name: str, memory: Plan, cpu: Cpu) -> Callable[..., int]:
    """Return one of a network's functions."""
    pointers = [ctypes.c_void_p] * 6
    library = _library(memory.stages, memory.shape, cpu)
    return library.function(name, ctypes.c_int32, *pointers, *[ctypes.c_int64] * 3)


# Cached: loading takes .05 s, and gradients and each thread of an evaluation need the code.
@lru_cache(maxsize=16)
def _library(stages: tuple[Stage, ...], shape: tuple[int, ...], cpu: Cpu) -> Library:
    """Compile a network, or load it."""
    memory = plan(stages, shape)
    return load(
        lambda module: write_network(module, memory, cpu.vectors),
        f"{stages} {shape}",
        __package__ or "",
        cpu,
    )


def write_network(module: Any, memory: Plan, vectors: int) -> None:
    """Write all kernels of a network, and the functions that call them in order.

    Parameters
    ----------
    module : Module
        LLVM's unit of compilation.
    memory : Plan
        The network and its memory.
    vectors : int
        Registers of the CPU that hold a vector.
    """
    names: list[str] = []

    def kernel(name: str, stage: Stage | None = None) -> StepKernel:
        names.append(name)
        return StepKernel(module, name, vectors, halves=isinstance(stage, Convolution))

    def dropout(number: int, name: str, buffer: Buffer) -> None:
        stage = memory.stages[number]
        if stage.dropout:
            k = kernel(f"{name}_dropout{number}")
            dropout_kernels.write_dropout(k, stage, number, buffer)

    batch_kernels.write_gather(kernel("gather"), memory)
    for number, (stage, here) in enumerate(zip(memory.stages, memory.places, strict=True)):
        k = kernel(f"forward{number}", stage)
        if isinstance(stage, Linear):
            linear_kernels.write_forward(k, stage, here)
        else:
            convolution_kernels.write_forward(k, stage, here)
        dropout(number, "forward", here.output)
    outputs = [name for name in names if "dropout" not in name]
    _write_whole(module, _OUTPUTS, outputs, memory.classes)
    batch_kernels.write_loss(kernel("loss"), memory)
    for number in reversed(range(len(memory.stages))):
        stage, here = memory.stages[number], memory.places[number]
        dropout(number, "backward", here.gradient)
        if stage.bias:
            linear_kernels.write_biases(kernel(f"biases{number}"), memory, number)
        before = memory.places[number - 1] if number else None
        relu = number > 0 and memory.stages[number - 1].relu
        if isinstance(stage, Linear):
            if before:  # the first stage's samples are as they were gathered
                linear_kernels.write_samples(kernel(f"samples{number}"), stage, here)
            linear_kernels.write_weights(kernel(f"weights{number}"), stage, here)
            if before:
                linear_kernels.write_inputs(kernel(f"inputs{number}"), stage, here, before, relu)
        elif here.pooled:
            pooled_kernels.write_backward(kernel(f"pooled{number}"), stage, here, before, relu)
        else:
            convolution_kernels.write_weights(kernel(f"weights{number}", stage), stage, here)
            if before:
                convolution_kernels.write_spread(kernel(f"spread{number}", stage), stage, here)
                k = kernel(f"inputs{number}", stage)
                convolution_kernels.write_inputs(k, stage, here, before, relu)
    _write_whole(module, _GRADIENT, names, memory.classes)


def _write_whole(module: Any, function: str, names: list[str], classes: int) -> None:
    """Write a function that checks the batch and calls the kernels; it returns 1 if it is bad."""
    k = Kernel(module, function, [*ARGUMENTS, ("examples", LONG)], returns=INT)
    b = k.builder
    bad = k.variable(INT(0))
    with k.loop(k.arguments["batch"]) as sample:
        row = k.load(k.shift(k.arguments["rows"], sample, LONG), LONG)
        outside = b.icmp_unsigned(">=", row, k.arguments["examples"])
        place = b.gep(k.arguments["y"], [b.select(outside, LONG(0), row)], source_etype=LONG)
        wrong = b.or_(outside, b.icmp_unsigned(">=", k.load(place, LONG), LONG(classes)))
        bad.set(b.or_(bad.get(), b.zext(wrong, INT)))
    with b.if_then(b.icmp_signed("==", bad.get(), INT(0))):
        for name in names:
            b.call(module.globals[name], [k.arguments[name] for name, _ in ARGUMENTS])
    k.done(bad.get())


def _check(name: str, array: Any, dtype: Any, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless an array is what the machine code expects."""
    if (
        array.dtype != dtype
        or array.shape != shape
        or not array.flags.c_contiguous
        or not array.flags.aligned
    ):
        raise ValueError(
            f"{name} is {array.dtype}{array.shape}: it must be {np.dtype(dtype).name}{shape}, "
            "contiguous and aligned"
        )


def _aligned_zeros(size: int) -> NDArray[np.float32]:
    """Return zeros that begin at a cache line: vectors that cross one take longer to read."""
    memory = np.zeros(size + _LINE, np.float32)
    skip = -(memory.ctypes.data // memory.itemsize) % _LINE
    return memory[skip : skip + size]
