"""Where everything lies in the workspace of a network: `plan`.

The workspace is an array of 4-byte numbers: first what all groups share, then one part per group
of sixteen samples, all alike. It begins as zeros. Borders of inputs and what fills a size up to a
multiple of sixteen are never written, and so stay zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mll_flower.native.vector_code import LANES, Buffer
from mll_flower.training._compiled.stages import Convolution, Linear, Stage


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

    def stage(self, stage: Stage, first: bool) -> dict[str, Buffer]:
        """Return the buffers that a stage alone needs, without inputs and output."""
        gradient = self.for_groups(*stage.output_shape)
        flat = Buffer("work", gradient.start, (gradient.strides[0], LANES, 1))
        made = {"gradient": gradient, "flat_gradient": flat}
        if isinstance(stage, Linear):
            inputs = _whole_vectors(stage.inputs)
            by_lane = self.for_groups(inputs)
            strides = (by_lane.strides[0], inputs, 1)
            return {**made, "samples": Buffer("work", by_lane.start, strides)}
        if stage.pool > 1:
            made["maxima"] = self.for_groups(*stage.output_shape)
        wide = stage.out_width * stage.pool
        made["strip"] = self.for_all(stage.outputs, stage.pool, wide)
        made["weight_sums"] = self.for_all(stage.weights)
        if not first:
            border = stage.kernel - 1
            rows, columns = stage.height + border, stage.width + border
            made["spread"] = self.for_groups(stage.outputs, rows, columns)
        return made


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
        return (_whole_vectors(stage.inputs),)
    border = 2 * stage.padding
    return stage.channels, stage.height + border, stage.width + border


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


def _whole_vectors(count: int) -> int:
    return -(-count // LANES) * LANES
