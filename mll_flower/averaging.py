"""Averages of models: v-averages inside a hub and H-mixing between hubs.

A model travels as a Flower ``ArrayRecord`` (one array a layer). For arithmetic it is
*flat*: one contiguous vector for each dtype, so that one pass over memory averages it.
All averages of the project (simulation, deployment, plugin) end in `weighted_sum`, which
adds in the order given and in the arrays' own precision. That makes it equal to
Flower's ``aggregate_arrayrecords`` to the bit for floating point arrays; integer arrays
(BatchNorm's counters) are averaged in float64 and rounded back to their dtype.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, cast

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

Vector = NDArray[Any]
Flat = dict[str, Vector]
"""A flat model: dtype name -> the entries of that dtype, in order, as one vector."""

AbsentRule = Literal["keep", "renormalise"]
ABSENT_RULES: tuple[AbsentRule, ...] = ("keep", "renormalise")

_STYPE = "numpy.ndarray"

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


@lru_cache(maxsize=4096)
def _npy_header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int, bool]:
    """Parse an .npy header; the same few headers come back with every message.

    Returns the dtype, the shape, the number of entries, and whether it is in Fortran order.
    """
    stream = io.BytesIO(header)
    version = np.lib.format.read_magic(stream)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("an array of Python objects cannot be averaged: send numbers")
    return dtype, shape, math.prod(shape), fortran


def array_view(array: Array) -> Vector:
    """Read a Flower ``Array`` as a flat vector, without a copy where that is possible."""
    data = array.data
    if array.stype != _STYPE:
        raise ValueError(
            f"array of serialisation type {array.stype!r}: only 'numpy.ndarray' can be averaged"
        )
    size = 10 + int.from_bytes(data[8:10], "little")
    if data[6:7] != b"\x01":
        size = 12 + int.from_bytes(data[8:12], "little")
    dtype, shape, count, fortran = _npy_header(data[:size])
    vector = np.frombuffer(data, dtype, count, size)
    if fortran:
        vector = vector.reshape(shape, order="F").ravel()
    return vector if dtype.isnative else vector.astype(dtype.newbyteorder("="))


@dataclass(frozen=True)
class Layout:
    """Names, shapes and dtypes of a model's arrays: how a flat model is laid out.

    Parameters
    ----------
    names : tuple[str, ...]
        Keys of the arrays, in order.
    shapes : tuple[tuple[int, ...], ...]
        Shape of each array.
    dtypes : tuple[str, ...]
        NumPy dtype name of each array.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, arrays: Mapping[str, Array | Vector]) -> Layout:
        """Layout of an ``ArrayRecord`` or of a dict of NumPy arrays."""
        return cls(
            tuple(arrays),
            tuple(tuple(int(n) for n in array.shape) for array in arrays.values()),
            tuple(str(array.dtype) for array in arrays.values()),
        )

    def slices(self) -> list[tuple[str, slice]]:
        """For each array, its dtype and its place in that dtype's vector."""
        return [(place.dtype, place.slice) for place in self.places]

    @cached_property
    def places(self) -> list[_Place]:
        """Where each array is in a flat model."""
        ends: dict[str, int] = {}
        places = []
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            start = ends.get(dtype, 0)
            ends[dtype] = start + math.prod(shape)
            places.append(
                _Place(name, dtype, slice(start, ends[dtype]), _make_header(shape, dtype))
            )
        return places

    def empty(self) -> Flat:
        """Return an uninitialised flat model."""
        sizes: dict[str, int] = {}
        for dtype, place in self.slices():
            sizes[dtype] = place.stop
        return {dtype: np.empty(size, dtype=dtype) for dtype, size in sizes.items()}

    def mismatch(self, arrays: Mapping[str, Array | Vector]) -> str | None:
        """Say how ``arrays`` differ from this layout; None if they do not."""
        if set(arrays) != set(self.names):
            missing = sorted(set(self.names) - set(arrays))
            extra = sorted(set(arrays) - set(self.names))
            return f"other keys (missing {missing}, not expected {extra})"
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            if tuple(arrays[name].shape) != shape:
                return f"{name!r} has shape {tuple(arrays[name].shape)}, expected {shape}"
            if str(arrays[name].dtype) != dtype:
                return f"{name!r} has dtype {arrays[name].dtype}, expected {dtype}"
        return None

    def flatten(self, arrays: Mapping[str, Array | Vector]) -> Flat:
        """Copy ``arrays`` into a flat model."""
        flat = self.empty()
        for name, (dtype, place) in zip(self.names, self.slices(), strict=True):
            flat[dtype][place] = _vector(arrays[name])
        return flat

    def columns(
        self, records: Sequence[Mapping[str, Array | Vector]]
    ) -> Iterable[tuple[Array | Vector, ...]]:
        """For each array of the layout, that array of every record."""
        rows = (
            record.values() if tuple(record) == self.names else map(record.__getitem__, self.names)
            for record in records
        )
        return zip(*rows, strict=True)

    def arrays(self, flat: Flat) -> dict[str, Vector]:
        """Views of a flat model under its names and in its shapes."""
        return {
            name: flat[dtype][place].reshape(shape)
            for name, shape, (dtype, place) in zip(
                self.names, self.shapes, self.slices(), strict=True
            )
        }

    def record(self, flat: Flat) -> ArrayRecord:
        """Return a flat model as an ``ArrayRecord``."""
        record = ArrayRecord()
        for place, shape in zip(self.places, self.shapes, strict=True):
            data = b"".join((place.header, flat[place.dtype][place.slice].data))
            record[place.name] = _new_array(place.dtype, shape, data)
        return record


def _make_header(shape: tuple[int, ...], dtype: str) -> bytes:
    stream = io.BytesIO()
    description = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(
        stream, {"shape": shape, "fortran_order": False, "descr": cast(str, description)}
    )
    return stream.getvalue()


def _new_array(dtype: str, shape: tuple[int, ...], data: bytes) -> Array:
    """Make an ``Array``; Flower's constructor takes longer than to average a small one."""
    array = Array.__new__(Array)
    vars(array).update(dtype=dtype, shape=shape, stype=_STYPE, data=data)
    return array


def _vector(array: Array | Vector) -> Vector:
    return array_view(array) if isinstance(array, Array) else np.ravel(array)


@dataclass(frozen=True)
class _Place:
    """Where an array is in a flat model, and the .npy header that it most likely has."""

    name: str
    dtype: str
    slice: slice
    header: bytes

    @cached_property
    def count(self) -> int:
        return int(self.slice.stop - self.slice.start)

    @cached_property
    def length(self) -> int:
        return len(self.header) + self.count * np.dtype(self.dtype).itemsize

    def views(self, arrays: Iterable[Array | Vector]) -> list[Vector]:
        """Entries of each model's array, without a copy where that is possible."""
        start = len(self.header)
        return [
            self._other(array)
            if (data := self._expected(array)) is None
            else np.frombuffer(data, self.dtype, self.count, start)
            for array in arrays
        ]

    def contents(self, arrays: Iterable[Array | Vector]) -> list[bytes]:
        """Entries of each model's array, as bytes."""
        start = len(self.header)
        return [
            self._other(array).tobytes()
            if (data := self._expected(array)) is None
            else data[start:]
            for array in arrays
        ]

    def _expected(self, array: Array | Vector) -> bytes | None:
        """Return the array's data if they begin with the header that is expected."""
        if isinstance(array, Array) and array.stype == _STYPE:
            data = array.data
            if len(data) == self.length and data.startswith(self.header):
                return data
        return None

    def _other(self, array: Array | Vector) -> Vector:
        """Read an array that was stored in another way, or is none."""
        vector = _vector(array)
        if vector.size != self.count or vector.dtype != self.dtype:
            raise ValueError(
                f"{self.name!r} has {vector.size} entries of {vector.dtype}, "
                f"expected {self.count} of {self.dtype}"
            )
        return vector


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
