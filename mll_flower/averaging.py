"""Averages of models: v-averages inside a hub and H-mixing between hubs.

All averages of the project (simulation, deployment, plugin) end in `weighted_sum`, which
adds in the order given and in the arrays' own precision. That makes it equal to
Flower's ``aggregate_arrayrecords`` to the bit for floating point arrays; integer arrays
(BatchNorm's counters) are averaged in float64 and rounded back to their dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray

from mll_flower.layout import Flat, Layout, Vector

AbsentRule = Literal["keep", "renormalise"]
ABSENT_RULES: tuple[AbsentRule, ...] = ("keep", "renormalise")

# Elements a block: the block of the sum and of its scratch space stay in the L2 cache.
_BLOCK = 1 << 17
# Arrays of fewer elements than this are averaged together.
_SMALL = 1 << 14


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
    scales = [np.array(factor, dtype=first.dtype) for factor in factors]
    scratch = np.empty(min(_BLOCK, first.size), dtype=first.dtype)
    for low in range(0, first.size, _BLOCK):
        block = out[low : low + _BLOCK]
        product = scratch[: block.size]
        np.multiply(first[low : low + _BLOCK], scales[0], block)
        for vector, scale in zip(vectors[1:], scales[1:], strict=True):
            np.multiply(vector[low : low + _BLOCK], scale, product)
            np.add(block, product, block)
    return out


def average_records(
    layout: Layout, records: Sequence[Mapping[str, Array | Vector]], factors: Sequence[float]
) -> Flat:
    """Weighted sum of models that came as records, read in place."""
    flat = layout.empty()
    small: dict[str, list[tuple[Vector, list[bytes]]]] = {}
    for place, arrays in zip(layout.places, layout.columns(records), strict=True):
        target = flat[place.dtype][place.slice]
        if place.count < _SMALL:
            small.setdefault(place.dtype, []).append((target, place.contents(arrays)))
        else:
            weighted_sum(place.views(arrays), factors, out=target)
    for dtype, parts in small.items():
        # Together: a sum of a few numbers costs as much as one of a few thousand.
        joined = map(b"".join, zip(*(contents for _, contents in parts), strict=True))
        total = weighted_sum([np.frombuffer(entries, dtype) for entries in joined], factors)
        start = 0
        for target, _ in parts:
            target[...] = total[start : start + target.size]
            start += target.size
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
