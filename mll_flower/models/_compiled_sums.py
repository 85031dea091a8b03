"""Sums of scaled vectors in fewer passes over memory, compiled by numba (extra ``fast``).

NumPy goes through memory once to scale a vector and once more to add it. Compiled code scales
and adds two vectors in one pass: averaging is 1.3 to 1.8 times as fast (the rows "fast" of the
table in docs/performance.md that ``python -m benchmarks.averaging`` makes). Products and sums are
rounded one by one and in the same order, never fused, so that the bits are NumPy's. Only
`mll_flower.models.sums` uses this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from logging import WARNING
from typing import Any

import numpy as np
from flwr.supercore import log

from mll_flower.models.layout import Vector

Summer = Callable[[Vector, Sequence[Vector], Sequence[Any], bool], None]
"""``summer(total, vectors, factors, fresh)``: adds the scaled vectors, in their order, to
``total``; if ``fresh`` it overwrites ``total`` instead."""


def _add_one(total: Vector, fresh: bool, a: Vector, s: Any) -> None:
    if fresh:
        for i in range(total.size):
            total[i] = a[i] * s
    else:
        for i in range(total.size):
            total[i] = total[i] + a[i] * s


def _add_two(total: Vector, fresh: bool, a: Vector, b: Vector, s: Any, t: Any) -> None:
    if fresh:
        for i in range(total.size):
            total[i] = a[i] * s + b[i] * t
    else:
        for i in range(total.size):
            total[i] = total[i] + a[i] * s + b[i] * t


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
        not check. None if numba is missing or does not work, or for a dtype other than float32
        and float64.
    """
    if dtype not in (np.float32, np.float64) or find_spec("numba") is None:
        return None
    try:
        import numba
    except ImportError as error:  # not every numba works with every NumPy
        log(WARNING, "numba is not used, averages take longer: %s", error)
        return None

    number = numba.from_dtype(dtype)
    source = numba.types.Array(number, 1, "C", readonly=True)
    target = numba.types.Array(number, 1, "C")

    def build(function: Callable[..., None], count: int) -> Callable[..., None]:
        arguments = [target, numba.boolean, *[source] * count, *[number] * count]
        compile = numba.njit(numba.void(*arguments), nogil=True)
        compiled: Callable[..., None] = compile(function)
        return compiled

    one, two = build(_add_one, 1), build(_add_two, 2)

    def add_to(
        total: Vector, vectors: Sequence[Vector], factors: Sequence[Any], fresh: bool
    ) -> None:
        for k in range(0, len(vectors) - 1, 2):
            two(total, fresh and k == 0, *vectors[k : k + 2], *factors[k : k + 2])
        if len(vectors) % 2:
            one(total, fresh and len(vectors) == 1, vectors[-1], factors[-1])

    return add_to
