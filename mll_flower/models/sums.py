"""Weighted sums of models: the arithmetic of every average in this project.

All sums add in the order given and in the arrays' own precision, with the one loop of
`_accumulate`. For floating-point arrays this gives the bits of Flower's
``aggregate_arrayrecords``. Integer arrays (BatchNorm's counters) are summed in float64 and rounded
back to their dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from mll_flower.models._compiled_sums import Summer, compiled_summer
from mll_flower.models._small_arrays import SMALL, bundles
from mll_flower.models.layout import Flat, Layout, Vector

# Elements per block: the block of the sum and of its scratch space stay in the L2 cache.
_BLOCK = 1 << 17
# Size of a vector from which compiled code is faster than NumPy.
_LEAST_COMPILED = 1 << 12


def weighted_sum(
    vectors: Sequence[Vector], factors: Sequence[float], out: Vector | None = None
) -> Vector:
    """Return the sum of ``factors[i] * vectors[i]``, in this order, in the vectors' dtype.

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
            f"{len(vectors)} vectors and {len(factors)} factors: give one factor per vector, "
            "and at least one vector"
        )
    first = vectors[0]
    if out is None:
        out = np.empty_like(first)
    total = out if _is_floating(first.dtype) else np.empty(first.shape, np.float64)
    terms = [_widened(vector) for vector in vectors]
    scales = list(np.array(factors, total.dtype))
    _accumulate(total, terms, scales, True, _choose_summer(total, *terms))
    if total is not out:
        out[...] = np.rint(total)
    return out


class RunningSum:
    """The sum that `weighted_sum` gives, to the bit, with one model in memory at a time.

    It never uses compiled code: it runs in processes that train, which would pay for loading
    a compiler and gain next to nothing beside the training.
    """

    def __init__(self) -> None:
        self._sums: Flat = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._summers: dict[str, Summer] = {}

    def add(self, model: Flat, factor: float) -> None:
        """Add a model times a factor."""
        scale = float(factor)  # a NumPy scalar would decide the precision of the product
        for name, vector in model.items():
            terms = _widened(vector)
            fresh = name not in self._sums
            if fresh:
                self._dtypes[name] = vector.dtype
                self._sums[name] = np.empty_like(terms)
                self._summers[name] = _numpy_summer(terms)
            _accumulate(self._sums[name], [terms], [scale], fresh, self._summers[name])

    def result(self) -> Flat:
        """Return the sum, in the dtypes of the models."""
        return {
            name: total
            if total.dtype == self._dtypes[name]
            else np.rint(total).astype(self._dtypes[name])
            for name, total in self._sums.items()
        }


class RecordSum:
    """The same sum of models that came as records; it reads them in place, all at once.

    Parameters
    ----------
    layout : Layout
        The layout that all records have.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._records: list[Mapping[str, Array | Vector]] = []
        self._factors: list[float] = []

    def add(self, model: Mapping[str, Array | Vector], factor: float) -> None:
        """Add a model times a factor."""
        self._records.append(model)
        self._factors.append(factor)

    def result(self) -> Flat:
        """Return the sum, in the dtypes of the models."""
        return sum_records(self._layout, self._records, self._factors)


def sum_records(
    layout: Layout, records: Sequence[Mapping[str, Array | Vector]], factors: Sequence[float]
) -> Flat:
    """Return the weighted sum of models that came as records; they are read in place."""
    flat = layout.empty()
    models = layout.rows(records)
    for index, place in enumerate(layout.places):
        if place.count >= SMALL:
            vectors = place.views([model[index] for model in models])
            weighted_sum(vectors, factors, out=flat[place.dtype][place.slice])
    with np.errstate(over="ignore", invalid="ignore"):  # headers are summed along with the numbers
        for bundle in bundles(layout):
            bundle.spread(weighted_sum(bundle.files(models), factors), flat)
    return flat


def sum_models(models: Sequence[Flat], factors: Sequence[float]) -> Flat:
    """Return the weighted sum of flat models."""
    return {dtype: weighted_sum([model[dtype] for model in models], factors) for dtype in models[0]}


def sum_as_record(layout: Layout, models: Sequence[Flat], factors: Sequence[float]) -> ArrayRecord:
    """Return `sum_models` as a record; array by array, so that no flat copy of it is made."""
    record = ArrayRecord()
    for place, shape in zip(layout.places, layout.shapes, strict=True):
        total = weighted_sum([model[place.dtype][place.slice] for model in models], factors)
        record[place.name] = place.array(shape, total)
    return record


def is_finite(flat: Flat) -> bool:
    """Return whether every number of a flat model is finite."""
    return all(
        vector_is_finite(vector[block]) for vector in flat.values() for block in blocks(vector.size)
    )


def vector_is_finite(vector: Vector) -> bool:
    """Return whether every number of a vector is finite."""
    return not _is_floating(vector.dtype) or bool(np.isfinite(vector).all())


def distance(a: Flat, b: Flat) -> float:
    """Return the Euclidean distance between two models, over their floating-point entries.

    Without BLAS, whose threads wait for one another longer than they compute when other processes
    use the cores too: a hundred times longer was measured.
    """
    total = 0.0
    for dtype, vector in a.items():
        if _is_floating(vector.dtype):
            for block in blocks(vector.size):
                difference = vector[block].astype(np.float64) - b[dtype][block]
                difference *= difference
                total += float(np.add.reduce(difference))
    return float(np.sqrt(total))


def blocks(size: int) -> list[slice]:
    """Return slices that cut a vector into blocks of a size that stays in the cache."""
    return [slice(low, low + _BLOCK) for low in range(0, size, _BLOCK)]


def _accumulate(
    total: Vector, terms: Sequence[Vector], scales: Sequence[Any], fresh: bool, summer: Summer
) -> None:
    """Add ``scales[i] * terms[i]`` to ``total``, or overwrite it if ``fresh``, block by block."""
    if total.size <= _BLOCK:
        summer(total, terms, scales, fresh)
        return
    for block in blocks(total.size):
        summer(total[block], [term[block] for term in terms], scales, fresh)


def _choose_summer(*vectors: Vector) -> Summer:
    """Return what sums a block: compiled code for large vectors if it is available, else NumPy."""
    first = vectors[0]
    if first.size >= _LEAST_COMPILED and all(_plain(v, first) for v in vectors):
        compiled = compiled_summer(first.dtype)
        if compiled is not None:
            return compiled
    return _numpy_summer(first)


def _numpy_summer(like: Vector) -> Summer:
    scratch = np.empty(min(_BLOCK, like.size), dtype=like.dtype)

    def add_to(total: Vector, terms: Sequence[Vector], scales: Sequence[Any], fresh: bool) -> None:
        if fresh:
            np.multiply(terms[0], scales[0], total)
            terms, scales = terms[1:], scales[1:]
        product = scratch if total.size == scratch.size else scratch[: total.size]
        for term, scale in zip(terms, scales, strict=True):
            np.multiply(term, scale, product)
            np.add(total, product, total)

    return add_to


def _is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is floating-point: sums are then made in it, all others in float64."""
    return dtype.kind in "fc"


def _widened(vector: Vector) -> Vector:
    return vector if _is_floating(vector.dtype) else vector.astype(np.float64)


def _plain(vector: Vector, like: Vector) -> bool:
    """Whether compiled code, which checks nothing, may read a vector."""
    flags = vector.flags
    return vector.shape == (like.size,) and flags.c_contiguous and flags.aligned
