"""Averages of models: v-averages inside a hub and H-mixing between hubs.

All averages of the project (simulation, deployment, plugin) end in `weighted_sum`, which
adds in the order given and in the arrays' own precision. That makes it equal to
Flower's ``aggregate_arrayrecords`` to the bit for floating point arrays; integer arrays
(BatchNorm's counters) are averaged in float64 and rounded back to their dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray

from mll_flower.compiled import Summer, compiled_summer
from mll_flower.layout import SMALL, Flat, Layout, Vector

AbsentRule = Literal["keep", "renormalise"]
ABSENT_RULES: tuple[AbsentRule, ...] = ("keep", "renormalise")

# Elements a block: the block of the sum and of its scratch space stay in the L2 cache.
_BLOCK = 1 << 17
# Elements from which on compiled code is faster than NumPy's.
_WORTH_IT = 1 << 12


def weighted_sum(
    vectors: Sequence[Vector], factors: Sequence[float], out: Vector | None = None
) -> Vector:
    """Sum of ``factors[i] * vectors[i]``, in this order, in the vectors' dtype.

    Parameters
    ----------
    vectors : Sequence[ndarray]
        One-dimensional arrays of one dtype and length.
    factors : Sequence[float]
        One factor for each vector.
    out : ndarray, optional
        Where to write the sum; must not overlap the vectors.

    Returns
    -------
    ndarray
        The sum, with the dtype of the vectors.
    """
    if len(vectors) != len(factors) or not vectors:
        raise ValueError(
            f"{len(vectors)} vectors and {len(factors)} factors: give one factor a vector, "
            "and at least one vector"
        )
    first = vectors[0]
    if first.dtype.kind not in "fc":
        exact = weighted_sum([x.astype(np.float64) for x in vectors], factors)
        rounded = np.rint(exact).astype(first.dtype)
        if out is None:
            return rounded
        out[...] = rounded
        return out
    if out is None:
        out = np.empty_like(first)
    scales = list(np.array(factors, first.dtype))
    write_sum = _summer(out, *vectors)
    for low in range(0, first.size, _BLOCK):
        block = slice(low, low + _BLOCK)
        write_sum(out[block], [vector[block] for vector in vectors], scales)
    return out


def _summer(*vectors: Vector) -> Summer:
    """Choose what sums a block: compiled code for large vectors where there is any, or NumPy."""
    first = vectors[0]
    if first.size >= _WORTH_IT and all(_plain(v, first) for v in vectors):
        compiled = compiled_summer(first.dtype)
        if compiled is not None:
            return compiled
    scratch = np.empty(min(_BLOCK, first.size), dtype=first.dtype)

    def write_sum(total: Vector, terms: Sequence[Vector], factors: Sequence[Any]) -> None:
        product = scratch[: total.size]
        np.multiply(terms[0], factors[0], total)
        for term, factor in zip(terms[1:], factors[1:], strict=True):
            np.multiply(term, factor, product)
            np.add(total, product, total)

    return write_sum


def _plain(vector: Vector, like: Vector) -> bool:
    """Whether compiled code, which checks nothing, may read a vector."""
    flags = vector.flags
    return vector.shape == (like.size,) and flags.c_contiguous and flags.aligned


def average_records(
    layout: Layout, records: Sequence[Mapping[str, Array | Vector]], factors: Sequence[float]
) -> Flat:
    """Weighted sum of models that came as records, read in place."""
    flat = layout.empty()
    models = layout.rows(records)
    for index, place in enumerate(layout.places):
        if place.count >= SMALL:
            vectors = place.views([model[index] for model in models])
            weighted_sum(vectors, factors, out=flat[place.dtype][place.slice])
    with np.errstate(over="ignore", invalid="ignore"):  # of headers taken for numbers
        for bundle in layout.bundles:
            bundle.spread(weighted_sum(bundle.files(models), factors), flat)
    return flat


def combine(models: Sequence[Flat], factors: Sequence[float]) -> Flat:
    """Weighted sum of flat models."""
    return {dtype: weighted_sum([model[dtype] for model in models], factors) for dtype in models[0]}


def mix(models: Sequence[Flat], matrix: NDArray[np.float64]) -> list[Flat]:
    """Rule 2: y(d) = sum over j of H[j, d] z(j), for all hubs from the same z."""
    mixed = []
    for column in np.asarray(matrix).T:
        sources = np.flatnonzero(column).tolist()
        mixed.append(combine([models[j] for j in sources], [float(column[j]) for j in sources]))
    return mixed


def absent_factors(
    weights: Sequence[float], arrived: Sequence[bool], absent: AbsentRule = "keep"
) -> tuple[list[float], float]:
    """Factors of the v-average when some of a hub's workers are absent (rule 6).

    Parameters
    ----------
    weights : Sequence[float]
        w(i) of all the hub's workers.
    arrived : Sequence[bool]
        Which of them sent a model.
    absent : {"keep", "renormalise"}
        Whether the absent workers' shares stay with the model that the hub sent, or the
        arrived shares are divided by their sum.

    Returns
    -------
    tuple[list[float], float]
        Factors of the arrived models, in order, and of the model that the hub sent.
        With nobody there the hub's model stays, under either rule.
    """
    if absent not in ABSENT_RULES:
        raise ValueError(f"absent={absent!r}: choose one of {', '.join(ABSENT_RULES)}")
    present = [w for w, here in zip(weights, arrived, strict=True) if here]
    if not present:
        return [], 1.0
    if absent == "renormalise":
        total = sum(present)
        return [w / total for w in present], 0.0
    total = sum(weights)
    missing = sum(w for w, here in zip(weights, arrived, strict=True) if not here)
    return [w / total for w in present], missing / total


def is_finite(flat: Flat) -> bool:
    """Whether every number of a flat model is finite."""
    return all(bool(np.isfinite(v).all()) for v in flat.values() if v.dtype.kind in "fc")


def distance(a: Flat, b: Flat) -> float:
    """Euclidean distance between two models, over their floating point entries."""
    total = 0.0
    for dtype, vector in a.items():
        if np.issubdtype(vector.dtype, np.inexact):
            difference = vector.astype(np.float64) - b[dtype]
            total += float(difference @ difference)
    return float(np.sqrt(total))
