"""The most multiplications and additions that a core does in a second: `peak_loop`.

A BLAS does not always come near it: on some CPUs it uses vectors of half the length, so that a
step can take less than "the limit", the time of a large matrix product. Against the peak nothing
wins but leaving operations out.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from benchmarks.team import Work
from mll_flower.native.machine_code import load, this_cpu

PEAK = "the CPU's peak: multiply-adds in registers"

_ROUNDS = 1_000_000


def peak_loop() -> Work:
    """Set up multiply-adds that stay in registers; the unit of work is a million operations."""
    cpu = this_cpu()
    # As many sums side by side as the multipliers need to be busy, and fit into the registers.
    sums = 16 if cpu.vectors >= 32 else 5
    library = load(lambda module: _write(module, sums), f"{sums}", __name__, cpu)
    function = library.function("peak", None, ctypes.c_void_p, ctypes.c_int64)
    vectors = np.linspace(0.0, 1.0, sums * 16, dtype=np.float32)

    def work() -> int:
        function(vectors.ctypes.data, _ROUNDS)
        return 2 * vectors.size * _ROUNDS // 1_000_000

    return work


def _write(module: Any, sums: int) -> None:
    """Write a loop of x = x / 2 + 1 / 2, for several x that are read before and written after."""
    from mll_flower.native.vector_code import LONG, POINTER, Kernel

    k = Kernel(module, "peak", [("vectors", POINTER), ("rounds", LONG)])
    places = [k.shift(k.arguments["vectors"], number * k.lanes) for number in range(sums)]
    values = [k.variable(k.load(place)) for place in places]
    half = k.constant(0.5)
    with k.loop(k.arguments["rounds"]):
        for value in values:
            value.set(k.fma(value.get(), half, half))
    for value, place in zip(values, places, strict=True):
        k.store(value.get(), place)
    k.done()
