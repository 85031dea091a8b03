"""The two ends of a step: the rows of the batch into lanes, and the cross-entropy."""

from __future__ import annotations

import math
from typing import Any

from mll_flower.native.vector_code import FLOAT, INT, INTS, LANES, LONG, VECTOR, Index
from mll_flower.training._compiled.stages import Convolution, Linear
from mll_flower.training._compiled.step_kernel import StepKernel
from mll_flower.training._compiled.workspace import Plan


def write_gather(k: StepKernel, plan: Plan) -> None:
    """Copy the rows of the batch to the first stage's inputs, and their labels."""
    size = math.prod(plan.shape)
    with k.loop(k.groups) as group:
        rows = [_row(k, plan, group, lane, size) for lane in range(LANES)]
        if size >= LANES:
            with k.loop(size - LANES + 1, step=LANES) as start:
                _turn(k, plan, group, rows, start, LANES)
        if size % LANES:
            _turn(k, plan, group, rows, Index(constant=size // LANES * LANES), size % LANES)
    k.done()


def _row(k: StepKernel, plan: Plan, group: Index, lane: int, size: int) -> Any:
    """Note the label of a sample; return the address of its numbers."""
    b = k.builder
    sample = k.number(group * LANES + lane)
    within = b.icmp_signed("<", sample, k.arguments["batch"])
    # Beyond the end of the batch, its first sample fills up the group.
    place = b.gep(k.arguments["rows"], [b.select(within, sample, LONG(0))], source_etype=LONG)
    row = k.load(place, LONG)
    label = k.load(b.gep(k.arguments["y"], [row], source_etype=LONG), LONG)
    label = b.select(within, b.trunc(label, INT), INT(-1))
    k.store(label, k.at(plan.labels, group, lane))
    return b.gep(k.arguments["x"], [b.mul(row, LONG(size))], source_etype=FLOAT)


def _turn(
    k: StepKernel, plan: Plan, group: Index, rows: list[Any], start: Index, count: int
) -> None:
    """Copy ``count`` numbers of all sixteen samples from rows to lanes."""
    stage, places = plan.stages[0], plan.places[0]
    vectors = [k.load_part(k.shift(row, start), count) for row in rows]
    if isinstance(stage, Linear):
        assert places.samples is not None
        for lane, vector in enumerate(vectors):
            k.store(vector, k.at(places.samples, group, lane, start))
    for number, vector in enumerate(k.transpose(vectors)[:count]):
        if isinstance(stage, Linear):
            k.store(vector, k.at(places.inputs, group, start + number, 0))
        else:
            k.store(vector, _pixel(k, plan, stage, group, k.number(start + number)))


def _pixel(k: StepKernel, plan: Plan, stage: Convolution, group: Index, number: Any) -> Any:
    """Return where pixel ``number`` of an image without border lies in the image with one."""
    b, border = k.builder, 2 * stage.padding
    line = b.udiv(number, LONG(stage.width))
    channel = b.udiv(number, LONG(stage.width * stage.height))
    # Each line before it has a border, and each channel before it has lines of border.
    place = Index(((number, 1), (line, border), (channel, border * (stage.width + border))))
    inputs = plan.places[0].inputs
    first = k.at(inputs, group, 0, stage.padding, stage.padding, 0)
    return k.shift(first, place * LANES)


def write_loss(k: StepKernel, plan: Plan) -> None:
    """Compute the mean cross-entropy, and its gradient with respect to the logits."""
    b, classes = k.builder, plan.classes
    gradient = plan.places[-1].flat_gradient
    one = b.fdiv(FLOAT(1.0), b.sitofp(k.arguments["batch"], FLOAT))  # the share of a sample
    share = k.spread(one)
    losses = k.variable(k.constant(0.0))
    with k.loop(k.groups) as group:
        labels = k.load(k.at(plan.labels, group, 0), INTS)
        counted = b.icmp_signed(">=", labels, k.constant(0, INTS))
        largest = k.variable(k.load(k.at(plan.logits, group, 0, 0)))
        with k.loop(classes, start=1) as number:
            logit = k.load(k.at(plan.logits, group, number, 0))
            larger = b.fcmp_ordered(">", logit, largest.get())
            largest.set(b.select(larger, logit, largest.get()))
        total, own = k.variable(k.constant(0.0)), k.variable(k.constant(0.0))
        with k.loop(classes) as number:
            below = b.fsub(k.load(k.at(plan.logits, group, number, 0)), largest.get())
            own.set(b.select(_is_label(k, labels, number), below, own.get()))
            power = _exp(k, below)
            total.set(b.fadd(total.get(), power))
            k.store(power, k.at(gradient, group, number, 0))
        scale = b.fdiv(share, total.get())
        with k.loop(classes) as number:
            place = k.at(gradient, group, number, 0)
            value = b.fmul(k.load(place), scale)
            target = b.select(_is_label(k, labels, number), share, k.constant(0.0))
            value = b.select(counted, b.fsub(value, target), k.constant(0.0))
            k.store(value, place)
        loss = b.fsub(_log(k, total.get()), own.get())
        losses.set(b.fadd(losses.get(), b.select(counted, loss, k.constant(0.0))))
    k.store(b.fmul(k.lane_sum(losses.get()), one), k.at(plan.loss, 0))
    k.done()


def _is_label(k: StepKernel, labels: Any, number: Index) -> Any:
    return k.builder.icmp_signed("==", labels, k.spread(k.builder.trunc(k.number(number), INT)))


def _exp(k: StepKernel, x: Any) -> Any:
    """Return exp(x) for x <= 0, within two units of the last place; a NaN stays one.

    x = n log 2 + r with a whole number n: exp(x) = 2^n exp(r), and a polynomial for exp(r)
    (its coefficients are those of Cephes, expf.c).
    """
    b = k.builder
    # Adding 1.5 * 2^23 rounds to a whole number, which is then in the lowest bits.
    rounded = k.fma(x, k.constant(1.44269504088896341), k.constant(12582912.0))
    n = b.fsub(rounded, k.constant(12582912.0))
    # log 2 in two parts, so that n times the first one is exact.
    r = k.fma(n, k.constant(-0.693359375), x)
    r = k.fma(n, k.constant(2.12194440e-4), r)
    p = k.constant(1.9875691500e-4)
    for coefficient in (
        *(1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2),
        *(1.6666665459e-1, 5.0000001201e-1),
    ):
        p = k.fma(p, r, k.constant(coefficient))
    p = b.fadd(k.fma(p, b.fmul(r, r), r), k.constant(1.0))
    exponent = b.add(b.bitcast(rounded, INTS), k.constant(127, INTS))
    power = b.bitcast(b.shl(exponent, k.constant(23, INTS)), VECTOR)
    tiny = b.fcmp_ordered("<", x, k.constant(-87.0))
    return b.select(tiny, k.constant(0.0), b.fmul(p, power))


def _log(k: StepKernel, x: Any) -> Any:
    """Return log(x) for x >= 1, within two units of the last place; a NaN stays one.

    x = 2^e m with m near 1: log(x) = e log 2 + log(m), and a polynomial for log(m) (its
    coefficients are those of Cephes, logf.c).
    """
    b = k.builder
    bits = b.bitcast(x, INTS)
    e = b.sub(b.ashr(bits, k.constant(23, INTS)), k.constant(126, INTS))
    fraction = b.and_(bits, k.constant(0x7FFFFF, INTS))
    m = b.bitcast(b.or_(fraction, k.constant(0x3F000000, INTS)), VECTOR)
    low = b.fcmp_ordered("<", m, k.constant(0.707106781186547524))
    e = b.select(low, b.sub(e, k.constant(1, INTS)), e)
    m = b.fsub(b.select(low, b.fadd(m, m), m), k.constant(1.0))
    square = b.fmul(m, m)
    p = k.constant(7.0376836292e-2)
    for coefficient in (
        *(-1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
        *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
    ):
        p = k.fma(p, m, k.constant(coefficient))
    n = b.sitofp(e, VECTOR)
    y = k.fma(n, k.constant(-2.12194440e-4), b.fmul(b.fmul(m, square), p))
    y = k.fma(square, k.constant(-0.5), y)
    result = k.fma(n, k.constant(0.693359375), b.fadd(m, y))
    return b.select(b.fcmp_unordered("uno", x, x), x, result)
