"""A convolution with its pool and its ReLU: forward, and its gradient."""

from __future__ import annotations

from typing import Any

from mll_flower.native.vector_code import LANES, VECTOR, Index
from mll_flower.training._compiled.stages import Convolution
from mll_flower.training._compiled.step_kernel import StepKernel
from mll_flower.training._compiled.workspace import Places


def write_forward(k: StepKernel, stage: Convolution, here: Places) -> None:
    """Compute the convolution, the maximum of each pool with its place, and the ReLU."""
    taps = stage.kernel**2
    weights = k.model(here.weights, stage.channels * taps, taps, stage.kernel, 1)
    biases = k.model(here.biases, 1)
    height, width = _patch(stage)
    patch = [(i, j) for i in range(height) for j in range(width)]
    rows = stage.out_height * stage.pool // height
    columns = stage.out_width * stage.pool // width
    with (
        k.loop(k.groups) as group,
        k.loop(LANES, step=k.lanes) as lane,
        k.loop(rows) as row,
        k.loop(columns) as column,
    ):
        for first, size in k.tiles(stage.outputs, k.sums // len(patch)):
            sums = {}
            for o in range(size):
                bias = k.load_spread(k.at(biases, first + o)) if stage.bias else k.constant(0.0)
                for spot in patch:
                    sums[o, spot] = k.variable(bias)
            with k.loop(stage.channels) as channel, k.loop(stage.kernel) as kh:
                for kw in range(stage.kernel):
                    inputs = {}
                    for i, j in patch:
                        down, across = row * height + kh + i, column * width + (j + kw)
                        place = k.at(here.inputs, group, channel, down, across, lane)
                        inputs[i, j] = k.load(place)
                    for o in range(size):
                        weight = k.load_spread(k.at(weights, first + o, channel, kh, kw))
                        for spot in patch:
                            sums[o, spot].set(k.fma(weight, inputs[spot], sums[o, spot].get()))
            for o in range(size):
                values = [sums[o, spot].get() for spot in patch]
                _store_output(k, stage, here, values, group, first + o, row, column, lane)
    k.done()


def _store_output(
    k: StepKernel,
    stage: Convolution,
    here: Places,
    values: list[Any],
    group: Index,
    channel: Index,
    row: Index,
    column: Index,
    lane: Index,
) -> None:
    """Store the maximum of a pool and its place, or columns side by side; past the ReLU."""
    first = column * len(values)
    if stage.pool > 1:
        largest, number = _maximum(k, values)
        k.store(number, k.at(_maxima(here), group, channel, row, column, lane))
        values, first = [largest], column
    for j, value in enumerate(values):
        value = k.positive_part(value) if stage.relu else value
        k.store(value, k.at(here.output, group, channel, row, first + j, lane))


def write_weights(k: StepKernel, stage: Convolution, here: Places) -> None:
    """Compute the gradient of the weights: products of gradients and inputs, by sample, summed."""
    assert here.strip is not None
    assert here.weight_sums is not None
    sums_of = here.weight_sums
    with k.loop(stage.weights) as weight, k.loop(LANES, step=k.lanes) as lane:
        k.store(k.constant(0.0), k.at(sums_of, weight, lane))
    wide = stage.out_width * stage.pool
    step = stage.pool if stage.pool > 1 else _columns_together(wide)
    most = (k.sums + k.sums // 4) // stage.kernel
    with (
        k.loop(k.groups) as group,
        k.loop(LANES, step=k.lanes) as lane,
        k.loop(stage.out_height) as row,
    ):
        for first, size in k.tiles(stage.outputs, most):
            with k.loop(size) as channel, k.loop(stage.out_width) as column:
                entries = _spread_entry(k, stage, here, group, first + channel, row, column, lane)
                for (i, j), value in entries.items():
                    k.store(value, k.at(here.strip, channel, i, column * stage.pool + j, lane))
            with k.loop(stage.channels) as channel, k.loop(stage.kernel) as kh:
                sums = {}
                for o in range(size):
                    for kw in range(stage.kernel):
                        place = _tap(stage, first + o, channel, kh, kw)
                        sums[o, kw] = k.variable(k.load(k.at(sums_of, place, lane)))
                with k.loop(stage.pool) as line, k.loop(wide, step=step) as across:
                    for u in range(step):
                        down = row * stage.pool + line + kh
                        inputs = [
                            k.load(k.at(here.inputs, group, channel, down, across + (u + kw), lane))
                            for kw in range(stage.kernel)
                        ]
                        for o in range(size):
                            slope = k.load(k.at(here.strip, o, line, across + u, lane))
                            for kw, x in enumerate(inputs):
                                sums[o, kw].set(k.fma(slope, x, sums[o, kw].get()))
                for (o, kw), total in sums.items():
                    place = _tap(stage, first + o, channel, kh, kw)
                    k.store(total.get(), k.at(sums_of, place, lane))
    into = k.gradient(here.weights, 1)
    with k.loop(stage.weights) as weight:
        k.store(k.lane_sum(k.load(k.at(sums_of, weight, 0), VECTOR)), k.at(into, weight))
    k.done()


def write_spread(k: StepKernel, stage: Convolution, here: Places) -> None:
    """Spread the gradient over its pools, for `write_inputs`; all but maxima get zero."""
    assert here.spread is not None
    border = stage.kernel - 1 - stage.padding
    with (
        k.loop(k.groups) as group,
        k.loop(LANES, step=k.lanes) as lane,
        k.loop(stage.outputs) as o,
        k.loop(stage.out_height) as row,
        k.loop(stage.out_width) as column,
    ):
        for (i, j), value in _spread_entry(k, stage, here, group, o, row, column, lane).items():
            line, across = row * stage.pool + (i + border), column * stage.pool + (j + border)
            k.store(value, k.at(here.spread, group, o, line, across, lane))
    k.done()


def write_inputs(
    k: StepKernel, stage: Convolution, here: Places, before: Places, relu: bool
) -> None:
    """Compute the gradient with respect to the inputs, past the ReLU that made them.

    It is a convolution of the spread gradient with the flipped kernel.
    """
    assert here.spread is not None
    taps, last = stage.kernel**2, stage.kernel - 1
    weights = k.model(here.weights, stage.channels * taps, taps)
    together = _columns_together(stage.width)
    with (
        k.loop(k.groups) as group,
        k.loop(LANES, step=k.lanes) as lane,
        k.loop(stage.height) as row,
        k.loop(stage.width, step=together) as column,
    ):
        for first, size in k.tiles(stage.channels, k.sums // together):
            sums = {
                (c, t): k.variable(k.constant(0.0)) for c in range(size) for t in range(together)
            }
            with k.loop(stage.outputs) as o, k.loop(stage.kernel) as kh:
                for kw in range(stage.kernel):
                    slopes = [
                        k.load(k.at(here.spread, group, o, row + kh, column + (t + kw), lane))
                        for t in range(together)
                    ]
                    for c in range(size):
                        # The flipped kernel: row last - kh, column last - kw.
                        flipped = kh * -stage.kernel + (last * stage.kernel + last - kw)
                        place = k.shift(k.at(weights, o, first + c), flipped)
                        weight = k.load_spread(place)
                        for t, slope in enumerate(slopes):
                            sums[c, t].set(k.fma(weight, slope, sums[c, t].get()))
            for (c, t), total in sums.items():
                value, place = total.get(), (group, first + c, row, column + t, lane)
                if relu:
                    value = k.where_positive(k.load(k.at(before.output, *place)), value)
                k.store(value, k.at(before.gradient, *place))
    k.done()


def _patch(stage: Convolution) -> tuple[int, int]:
    """Return how many rows and columns are computed together: a pool, or two columns."""
    if stage.pool > 1:
        return stage.pool, stage.pool
    return 1, _columns_together(stage.out_width)


def _columns_together(width: int) -> int:
    return 2 if width % 2 == 0 else 1


def _maximum(k: StepKernel, values: list[Any]) -> tuple[Any, Any]:
    """Return the largest value and its place; as in torch the first one wins, and NaN is largest.

    Of several NaNs the last one wins, as in torch.
    """
    b = k.builder
    largest, place = values[0], k.constant(0, k.ints)
    for number, value in enumerate(values[1:], start=1):
        larger = b.or_(b.fcmp_ordered(">", value, largest), b.fcmp_unordered("uno", value, value))
        largest = b.select(larger, value, largest)
        place = b.select(larger, k.constant(number, k.ints), place)
    return largest, place


def _maxima(here: Places) -> Any:
    assert here.maxima is not None
    return here.maxima


def _spread_entry(
    k: StepKernel, stage: Convolution, here: Places, *place: Index
) -> dict[tuple[int, int], Any]:
    """Return the gradient before the pool, for all entries of the pool at a place."""
    value = k.load(k.at(here.gradient, *place))
    if stage.pool == 1:
        return {(0, 0): value}
    maximum = k.load(k.at(_maxima(here), *place), k.ints)
    entries = {}
    for i in range(stage.pool):
        for j in range(stage.pool):
            number = k.constant(i * stage.pool + j, k.ints)
            chosen = k.builder.icmp_signed("==", maximum, number)
            entries[i, j] = k.builder.select(chosen, value, k.constant(0.0))
    return entries


def _tap(stage: Convolution, o: Index, channel: Index, kh: Index, kw: int) -> Index:
    """Return the number of a weight."""
    taps = stage.kernel**2
    return o * (stage.channels * taps) + channel * taps + kh * stage.kernel + kw
