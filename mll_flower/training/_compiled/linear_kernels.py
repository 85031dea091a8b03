"""A linear layer with its ReLU: forward, and the three parts of its gradient."""

from __future__ import annotations

from mll_flower.native.vector_code import LANES, Index
from mll_flower.training._compiled.stages import Linear
from mll_flower.training._compiled.step_kernel import StepKernel
from mll_flower.training._compiled.workspace import Places, Plan

_UNROLLED = 4  # steps of an inner loop that are written out


def write_forward(k: StepKernel, stage: Linear, here: Places) -> None:
    """Compute outputs = ReLU(weights inputs + biases)."""
    weights, biases = k.model(here.weights, stage.inputs, 1), k.model(here.biases, 1)
    for group, together in k.groups_together():
        for first, size in k.tiles(stage.outputs, k.sums // together):
            sums = {}
            for o in range(size):
                start = k.constant(0.0)
                if stage.bias:
                    start = k.load_spread(k.at(biases, first + o))
                for g in range(together):
                    sums[o, g] = k.variable(start)
            for i in k.unrolled(stage.inputs, _UNROLLED):
                inputs = [k.load(k.at(here.inputs, group + g, i, 0)) for g in range(together)]
                for o in range(size):
                    weight = k.load_spread(k.at(weights, first + o, i))
                    for g, x in enumerate(inputs):
                        sums[o, g].set(k.fma(weight, x, sums[o, g].get()))
            for (o, g), total in sums.items():
                value = k.positive_part(total.get()) if stage.relu else total.get()
                k.store(value, k.at(here.output, group + g, first + o, 0))
    k.done()


def write_samples(k: StepKernel, stage: Linear, here: Places) -> None:
    """Put the numbers of a sample side by side, for the gradient of the weights."""
    assert here.samples is not None
    with k.loop(k.groups) as group, k.loop(stage.inputs, step=LANES) as start:
        rows = [k.load(k.at(here.inputs, group, start + i, 0)) for i in range(LANES)]
        for lane, vector in enumerate(k.transpose(rows)):
            k.store(vector, k.at(here.samples, group, lane, start))
    k.done()


def write_weights(k: StepKernel, stage: Linear, here: Places) -> None:
    """Compute the gradient of the weights: samples' gradients times their inputs, summed."""
    whole, rest = divmod(stage.inputs, LANES)
    if whole:
        for first, wide in k.tiles(whole, max(1, k.sums // 5)):
            _weights(k, stage, here, first * LANES, [LANES] * wide)
    if rest:
        _weights(k, stage, here, Index(constant=whole * LANES), [rest])
    k.done()


def _weights(k: StepKernel, stage: Linear, here: Places, start: Index, widths: list[int]) -> None:
    """Sum the gradient for a few vectors of inputs, each with a number of lanes that count."""
    assert here.samples is not None
    into = k.gradient(here.weights, stage.inputs, 1)
    for first, size in k.tiles(stage.outputs, k.sums // len(widths)):
        sums = {
            (o, v): k.variable(k.constant(0.0)) for o in range(size) for v in range(len(widths))
        }
        with k.loop(k.groups) as group:
            for sample in k.unrolled(LANES, 2):
                inputs = [
                    k.load(k.at(here.samples, group, sample, start + v * LANES))
                    for v in range(len(widths))
                ]
                for o in range(size):
                    slope = k.load_spread(k.at(here.flat_gradient, group, first + o, sample))
                    for v, x in enumerate(inputs):
                        sums[o, v].set(k.fma(slope, x, sums[o, v].get()))
        for (o, v), total in sums.items():
            k.store_part(total.get(), k.at(into, first + o, start + v * LANES), widths[v])


def write_inputs(k: StepKernel, stage: Linear, here: Places, before: Places, relu: bool) -> None:
    """Compute the gradient with respect to the inputs, past the ReLU that made them."""
    weights = k.model(here.weights, stage.inputs, 1)
    together_at_most = 2 if k.sums >= 16 else 1
    for first, size in k.tiles(stage.inputs, k.sums // together_at_most):
        for group, together in k.groups_together():
            sums = {
                (i, g): k.variable(k.constant(0.0)) for i in range(size) for g in range(together)
            }
            for o in k.unrolled(stage.outputs, _UNROLLED):
                slopes = [
                    k.load(k.at(here.flat_gradient, group + g, o, 0)) for g in range(together)
                ]
                for i in range(size):
                    weight = k.load_spread(k.at(weights, o, first + i))
                    for g, slope in enumerate(slopes):
                        sums[i, g].set(k.fma(weight, slope, sums[i, g].get()))
            for (i, g), total in sums.items():
                value = total.get()
                if relu:
                    value = k.where_positive(
                        k.load(k.at(here.inputs, group + g, first + i, 0)), value
                    )
                k.store(value, k.at(before.flat_gradient, group + g, first + i, 0))
    k.done()


def write_biases(k: StepKernel, plan: Plan, number: int) -> None:
    """Compute the gradient of a stage's biases: sums over groups, positions and samples.

    A pool hands each entry of its gradient to one position, so the sum behind it is that before.
    """
    stage, here = plan.stages[number], plan.places[number]
    positions = 1
    for size in stage.output_shape[1:]:
        positions *= size
    biases = k.gradient(here.biases, 1)
    with k.loop(stage.outputs) as o:
        total = k.variable(k.constant(0.0))
        with k.loop(k.groups) as group, k.loop(positions) as position:
            value = k.load(k.at(here.flat_gradient, group, o * positions + position, 0))
            total.set(k.builder.fadd(total.get(), value))
        k.store(k.lane_sum(total.get()), k.at(biases, o))
    k.done()
