"""Dropout, forward and back: both multiply by the same factors, which are computed twice.

The factor of an entry is 0, with the layer's probability, or what keeps the mean. It is a function
of the step's noise (64 random bits), of the layer and of the entry's number in the batch, so that
nothing is stored between the two, and the bits do not depend on the CPU.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any

import llvmlite.ir as ir

from mll_flower.native.vector_code import INT, INTS, LANES, LONG, Buffer, Index
from mll_flower.training._compiled.stages import Stage
from mll_flower.training._compiled.step_kernel import StepKernel

# Steps of an integer hash, xor-shift and multiply, whose constants are those of "lowbias32"
# (Wellons, "Prospecting for Hash Functions", 2018).
_SHIFTS, _FACTORS = (16, 15, 16), (0x7FEB352D, 0x846CA68B)
_STAGE = 0x9E3779B9


def write_dropout(k: StepKernel, stage: Stage, number: int, buffer: Buffer) -> None:
    """Multiply a stage's output, or the gradient with respect to it, by the factors.

    Parameters
    ----------
    k : StepKernel
        The kernel.
    stage : Stage
        The stage, whose dropout is not 0.
    number : int
        Its number in the network.
    buffer : Buffer
        What is multiplied: [group][...][sample] with the shape of the stage's output.
    """
    b = k.builder
    size = math.prod(stage.output_shape)
    low = b.trunc(k.arguments["noise"], INT)
    high = b.trunc(b.lshr(k.arguments["noise"], LONG(32)), INT)
    low = k.spread(b.add(low, INT(number * _STAGE % 2**32)))
    high = k.spread(high)
    lanes = ir.Constant(INTS, list(range(LANES)))
    # As 2^32 itself is no 32-bit number, a probability of 1 misses one entry in 4 billion.
    limit = k.constant(min(round(stage.dropout * 2**32), 2**32 - 1), INTS)
    kept = k.constant(1 / (1 - stage.dropout) if stage.dropout < 1 else 0.0)
    with k.loop(k.groups) as group, ExitStack() as loops:
        place = [loops.enter_context(k.loop(length)) for length in stage.output_shape]
        entry = group * size + _flat(place, stage.output_shape)
        first = b.trunc(k.number(entry * LANES), INT)
        bits = b.add(k.spread(first), lanes)
        bits = _mixed(k, b.xor(_mixed(k, b.add(bits, low)), high))
        dropped = b.icmp_unsigned("<", bits, limit)
        factor = b.select(dropped, k.constant(0.0), kept)
        address = k.at(buffer, group, *place, 0)
        # A product, not a choice: as in torch, what is not finite stays so.
        k.store(b.fmul(k.load(address), factor), address)
    k.done()


def _flat(place: list[Index], shape: tuple[int, ...]) -> Index:
    """Return the number of an entry, given its place."""
    flat = Index()
    for index, length in zip(place, shape, strict=True):
        flat = flat * length + index
    return flat


def _mixed(k: StepKernel, bits: Any) -> Any:
    """Return bits each of which depends on all bits."""
    b = k.builder
    for shift, factor in zip(_SHIFTS, (*_FACTORS, None), strict=True):
        bits = b.xor(bits, b.lshr(bits, k.constant(shift, INTS)))
        if factor is not None:
            bits = b.mul(bits, k.constant(factor, INTS))
    return bits
