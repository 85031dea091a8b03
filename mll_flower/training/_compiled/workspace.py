"""Where everything lies in the workspace of a network: `plan`.

The workspace is an array of 4-byte numbers: first what all groups share, then one part per group
of sixteen samples, all alike. It begins as zeros. Borders of inputs and what fills a size up to a
multiple of sixteen are never written, and so stay zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mll_flower.native.vector_code import LANES, Buffer
from mll_flower.training._compiled.stages import Convolution, Linear, Stage


@dataclass(frozen=True)
class PooledPlaces:
    """The buffers of `pooled_kernels`, which the groups use in turn.

    Parameters
    ----------
    gradients : Buffer
        The gradient with respect to the output, [image][output].
    image_places, table_places : Buffer
        Where the maximum was in its pool, as distances (int32); same shape.
    images : Buffer
        The inputs, [image][row][column][channel], with the border.
    weight_sums : Buffer
        The gradient of the weights, [output][row][column and channel], rows in whole vectors.
    table : Buffer
        The weights, [output][row][column][channel], with a border.
    input_gradients : Buffer
        The gradient with respect to the inputs, [image][row][column][channel], with the border.
    listed_gradients, listed_places : Buffer
        The entries that are not zero, and what they lead to (int32).
    """

    gradients: Buffer
    image_places: Buffer
    table_places: Buffer
    images: Buffer
    weight_sums: Buffer
    table: Buffer
    input_gradients: Buffer
    listed_gradients: Buffer
    listed_places: Buffer


@dataclass(frozen=True)
class Places:
    """The buffers of one stage. Their last dimension, not named here, is the sample in its group.

    Parameters
    ----------
    weights, biases : int
        Where the stage's parameters begin in the flat model.
    inputs : Buffer
        [group][channel][row][column], with the border, or [group][input].
    output : Buffer
        Where its output goes, in the next stage's inputs: [group][channel][row][column] without
        the border, or [group][output].
    gradient : Buffer
        The loss's gradient with respect to the output before its ReLU; shape of the output.
    flat_gradient : Buffer
        The same as [group][output].
    maxima : Buffer
        Place of each maximum in its pool, as int32; shape of the output.
    strip : Buffer
        Gradient before the pool, for one row of pools: [channel][row][column].
    spread : Buffer
        Gradient before the pool, with a border of zeros: [group][channel][row][column].
    weight_sums : Buffer
        Gradient of a convolution's weights, sample by sample: [weight].
    pooled : PooledPlaces
        If the gradient is computed by `pooled_kernels`.
    samples : Buffer
        The inputs again, as [group][sample][input] and without a further dimension.
    """

    weights: int
    biases: int
    inputs: Buffer
    output: Buffer
    gradient: Buffer
    flat_gradient: Buffer
    maxima: Buffer | None = None
    strip: Buffer | None = None
    spread: Buffer | None = None
    weight_sums: Buffer | None = None
    pooled: PooledPlaces | None = None
    samples: Buffer | None = None


@dataclass(frozen=True)
class Plan:
    """The layout of a network's memory.

    Parameters
    ----------
    stages : tuple of Stage
        The network.
    shape : tuple of int
        Shape of one example.
    places : list of Places
        For each stage.
    logits : Buffer
        [group][class].
    labels : Buffer
        [group], as int32; -1 for a sample that only fills up its group.
    loss : Buffer
        The mean loss.
    parameters : int
        Length of the flat model.
    shared, per_group : int
        Sizes of the workspace's parts.
    """

    stages: tuple[Stage, ...]
    shape: tuple[int, ...]
    places: list[Places]
    logits: Buffer
    labels: Buffer
    loss: Buffer
    parameters: int
    shared: int
    per_group: int

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.stages[-1].outputs

    def size(self, batch_size: int) -> int:
        """Return the numbers of a workspace for batches of this size."""
        return self.shared + -(-batch_size // LANES) * self.per_group


class _Planner:
    """Hands out memory in whole vectors, given the sizes of the workspace's two parts."""

    def __init__(self, shared: int = 0, per_group: int = 0) -> None:
        self._shared, self._per_group = shared, per_group
        self.used_by_all = self.used_by_group = 0

    def for_all(self, *shape: int) -> Buffer:
        """Return a buffer [...][sample] that all groups share."""
        start, strides = self.used_by_all, _strides((*shape, LANES))
        self.used_by_all += math.prod(shape) * LANES
        return Buffer("work", start, strides)

    def for_groups(self, *shape: int) -> Buffer:
        """Return a buffer [group][...][sample]."""
        start, strides = self.used_by_group, _strides((*shape, LANES))
        self.used_by_group += math.prod(shape) * LANES
        return Buffer("work", self._shared + start, (self._per_group, *strides))

    def apart(self, *shape: int, more: int = 0) -> Buffer:
        """Return a buffer of that shape, without samples; each first entry has some numbers more.

        Vectors may reach over the end of an entry into these.
        """
        strides = _strides(shape)
        first = whole_vectors(strides[0] + more)
        start = self.used_by_all
        self.used_by_all += shape[0] * first
        return Buffer("work", start, (first, *strides[1:]))

    def stage(self, stage: Stage, first: bool) -> dict[str, Any]:
        """Return the buffers that a stage alone needs, without inputs and output."""
        gradient = self._whole_output(stage)
        flat = Buffer("work", gradient.start, (gradient.strides[0], LANES, 1))
        made: dict[str, Any] = {"gradient": gradient, "flat_gradient": flat}
        if isinstance(stage, Linear):
            inputs = whole_vectors(stage.inputs)
            by_lane = self.for_groups(inputs)
            strides = (by_lane.strides[0], inputs, 1)
            return {**made, "samples": Buffer("work", by_lane.start, strides)}
        if stage.pool > 1:
            made["maxima"] = self._whole_output(stage)
        if few_are_not_zero(stage):
            return {**made, "pooled": self._pooled(stage)}
        wide = stage.out_width * stage.pool
        made["strip"] = self.for_all(stage.outputs, stage.pool, wide)
        made["weight_sums"] = self.for_all(stage.weights)
        if not first:
            border = stage.kernel - 1
            rows, columns = stage.height + border, stage.width + border
            made["spread"] = self.for_groups(stage.outputs, rows, columns)
        return made

    def _whole_output(self, stage: Stage) -> Buffer:
        """Return a buffer for a stage's output, filled up to a multiple of sixteen numbers."""
        flat = self.for_groups(whole_vectors(math.prod(stage.output_shape)))
        strides = _strides((*stage.output_shape, LANES))
        return Buffer("work", flat.start, (flat.strides[0], *strides))

    def _pooled(self, stage: Convolution) -> PooledPlaces:
        outputs = math.prod(stage.output_shape)
        rows, columns = stage.height + 2 * stage.padding, stage.width + 2 * stage.padding
        table = stage.kernel + 2 * (stage.pool - 1)
        longest = max(outputs // stage.outputs, stage.outputs) + 1
        taps = stage.kernel * whole_vectors(stage.kernel * stage.channels)
        return PooledPlaces(
            gradients=self.apart(LANES, outputs),
            image_places=self.apart(LANES, outputs),
            table_places=self.apart(LANES, outputs),
            images=self.apart(LANES, rows, columns, stage.channels, more=LANES),
            weight_sums=self.apart(stage.outputs, taps),
            table=self.apart(stage.outputs, table, table, stage.channels, more=2 * LANES),
            input_gradients=self.apart(LANES, rows, columns, stage.channels, more=2 * LANES),
            listed_gradients=self._list(longest),
            listed_places=self._list(longest),
        )

    def _list(self, size: int) -> Buffer:
        start = self.used_by_all
        self.used_by_all += whole_vectors(size)
        return Buffer("work", start, (1,))


def few_are_not_zero(stage: Convolution) -> bool:
    """Return whether a stage's gradient is computed by `pooled_kernels`.

    Of ``pool`` squared entries one is not zero, at most, but rows of the kernel must fill vectors.
    The two ways take the same time at about 2.5, as measured with pools of 2.
    """
    row = stage.kernel * stage.channels
    return stage.pool**2 * row / whole_vectors(row) >= 2.5


def plan(stages: tuple[Stage, ...], shape: tuple[int, ...]) -> Plan:
    """Lay out the memory of a network.

    Parameters
    ----------
    stages : tuple of Stage
        The network.
    shape : tuple of int
        Shape of one example.
    """
    planner = _Planner()
    _lay_out(planner, stages, shape)  # only to learn the sizes, on which addresses depend
    return _lay_out(_Planner(planner.used_by_all, planner.used_by_group), stages, shape)


def _lay_out(planner: _Planner, stages: tuple[Stage, ...], shape: tuple[int, ...]) -> Plan:
    inputs = [planner.for_groups(*_input_shape(stage)) for stage in stages]
    logits = planner.for_groups(stages[-1].outputs)
    places, parameters = [], 0
    for number, stage in enumerate(stages):
        following = (*stages, None)[number + 1]
        after = inputs[number + 1] if following else logits
        places.append(
            Places(
                weights=parameters,
                biases=parameters + stage.weights,
                inputs=inputs[number],
                output=_output(stage, following, after),
                **planner.stage(stage, number == 0),
            )
        )
        parameters += stage.weights + (stage.outputs if stage.bias else 0)
    labels, loss = planner.for_groups(), planner.for_all()
    sizes = (parameters, planner.used_by_all, planner.used_by_group)
    return Plan(stages, shape, places, logits, labels, loss, *sizes)


def _output(stage: Stage, following: Stage | None, after: Buffer) -> Buffer:
    """Return the view of the next stage's inputs into which a stage writes."""
    if isinstance(following, Convolution):
        _, _, row, column, _ = after.strides
        return Buffer("work", after.start + following.padding * (row + column), after.strides)
    strides = _strides((*stage.output_shape, LANES))
    return Buffer("work", after.start, (after.strides[0], *strides))


def _input_shape(stage: Stage) -> tuple[int, ...]:
    if isinstance(stage, Linear):
        return (whole_vectors(stage.inputs),)
    border = 2 * stage.padding
    return stage.channels, stage.height + border, stage.width + border


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


def whole_vectors(count: int) -> int:
    """Round up to a multiple of sixteen."""
    return -(-count // LANES) * LANES
