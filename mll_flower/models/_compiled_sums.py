"""Sums of scaled vectors in fewer passes over memory, as machine code.

NumPy goes through memory once to scale a vector and once more to add it. Compiled code scales
and adds up to four vectors in one pass; docs/performance.md says what that gains, in the table
that ``python -m benchmarks.averaging`` makes. Products and sums are
rounded one by one and in the same order, never fused, so that the bits are NumPy's. Only
`mll_flower.models.sums` uses this.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from logging import WARNING
from typing import Any

import numpy as np
from flwr.supercore import log

from mll_flower.models.layout import Vector
from mll_flower.native.machine_code import load, why_unavailable

Summer = Callable[[Vector, Sequence[Vector], Sequence[Any], bool], None]
"""``summer(total, vectors, factors, fresh)``: adds the scaled vectors, in their order, to
``total``; if ``fresh`` it overwrites ``total`` instead."""

# Vectors that one pass adds.
_MOST = 4


@cache
def compiled_summer(dtype: np.dtype[Any]) -> Summer | None:
    """Compile the sum of scaled vectors of a dtype.

    Parameters
    ----------
    dtype : dtype
        The dtype of all vectors and factors.

    Returns
    -------
    Summer or None
        The function; its vectors must be contiguous, aligned and of one length, which it does
        not check. None if nothing can be compiled here, or for a dtype other than float32 and
        float64.
    """
    if dtype not in (np.float32, np.float64) or why_unavailable() is not None:
        return None
    scalar: Any = ctypes.c_float if dtype == np.float32 else ctypes.c_double
    try:
        library = load(_write, "sums", __name__)
        functions = {
            (fresh, count): library.function(
                _name(scalar is ctypes.c_float, fresh, count),
                None,
                *[ctypes.c_void_p, ctypes.c_int64],
                *[ctypes.c_void_p] * count,
                *[scalar] * count,
            )
            for fresh in (True, False)
            for count in range(1, _MOST + 1)
        }
    except (ImportError, OSError, RuntimeError) as error:
        log(WARNING, "sums are not compiled, averages take longer: %s", error)
        return None

    def add_to(
        total: Vector, vectors: Sequence[Vector], factors: Sequence[Any], fresh: bool
    ) -> None:
        into, size = total.ctypes.data, total.size
        for first in range(0, len(vectors), _MOST):
            some = vectors[first : first + _MOST]
            call = functions[fresh and first == 0, len(some)]
            call(into, size, *(v.ctypes.data for v in some), *factors[first : first + _MOST])

    return add_to


def _name(single: bool, fresh: bool, count: int) -> str:
    return f"{'set' if fresh else 'add'}_{count}_{'float' if single else 'double'}"


def _write(module: Any) -> None:
    """Write the functions for both dtypes, any number of vectors, and both kinds of start."""
    for single in (True, False):
        for fresh in (True, False):
            for count in range(1, _MOST + 1):
                _write_sum(module, single, fresh, count)


def _write_sum(module: Any, single: bool, fresh: bool, count: int) -> None:
    import llvmlite.ir as ir

    from mll_flower.native.vector_code import DOUBLE, FLOAT, LANES, LONG, POINTER, Kernel

    scalar = FLOAT if single else DOUBLE
    arguments = [("total", POINTER), ("size", LONG)]
    arguments += [(f"vector{n}", POINTER) for n in range(count)]
    arguments += [(f"factor{n}", scalar) for n in range(count)]
    k = Kernel(module, _name(single, fresh, count), arguments)
    whole = k.builder.and_(k.arguments["size"], LONG(-LANES))
    wide = ir.VectorType(scalar, LANES)
    for kind, start, end, step in (
        (wide, 0, whole, LANES),
        (scalar, whole, k.arguments["size"], 1),
    ):
        factors = [k.arguments[f"factor{n}"] for n in range(count)]
        if kind is wide:
            factors = [k.spread(factor) for factor in factors]
        with k.loop(end, start=start, step=step) as i:
            into = k.shift(k.arguments["total"], i, scalar)
            total = None if fresh else k.load(into, kind)
            for n, factor in enumerate(factors):
                term = k.load(k.shift(k.arguments[f"vector{n}"], i, scalar), kind)
                product = k.builder.fmul(term, factor)
                total = product if total is None else k.builder.fadd(total, product)
            k.store(total, into)
    k.done()
