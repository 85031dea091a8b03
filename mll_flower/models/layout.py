"""Layouts: how a model of many arrays becomes one vector per dtype, and back.

A model travels as a Flower ``ArrayRecord``, with one array per layer. For arithmetic it is
*flat*: one contiguous vector per dtype, so that one pass over memory averages it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from mll_flower.models._new_array import STYPE, new_array

Vector = NDArray[Any]
Flat = dict[str, Vector]
"""A flat model: dtype name -> the entries of that dtype, in order, as one vector."""


@lru_cache(maxsize=4096)
def _parse_header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int, bool]:
    """Parse an .npy header; cached, as every message brings the same few headers.

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
    """Return the entries of a Flower ``Array`` as one vector, without a copy where possible."""
    data = array.data
    if array.stype != STYPE:
        raise ValueError(
            f"array of serialisation type {array.stype!r}: only 'numpy.ndarray' can be averaged"
        )
    size = 10 + int.from_bytes(data[8:10], "little")
    if data[6:7] != b"\x01":
        size = 12 + int.from_bytes(data[8:12], "little")
    dtype, shape, count, fortran = _parse_header(data[:size])
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
        """Return the layout of an ``ArrayRecord`` or of a dict of NumPy arrays."""
        return cls(
            tuple(arrays),
            tuple(tuple(int(n) for n in array.shape) for array in arrays.values()),
            tuple(str(array.dtype) for array in arrays.values()),
        )

    @cached_property
    def places(self) -> list[Place]:
        """Where each array lies in a flat model."""
        ends: dict[str, int] = {}
        places = []
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            start = ends.get(dtype, 0)
            ends[dtype] = start + math.prod(shape)
            places.append(Place(name, dtype, slice(start, ends[dtype]), _make_header(shape, dtype)))
        return places

    def empty(self) -> Flat:
        """Return an uninitialised flat model."""
        sizes: dict[str, int] = {}
        for place in self.places:
            sizes[place.dtype] = place.slice.stop
        return {dtype: np.empty(size, dtype=dtype) for dtype, size in sizes.items()}

    def mismatch(self, arrays: Mapping[str, Array | Vector]) -> str | None:
        """Return how ``arrays`` differ from this layout; None if they do not."""
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
        for place in self.places:
            flat[place.dtype][place.slice] = _vector(arrays[place.name])
        return flat

    def rows(
        self, records: Sequence[Mapping[str, Array | Vector]]
    ) -> list[Sequence[Array | Vector]]:
        """Return the arrays of each record, in the layout's order."""
        return [
            list(record.values())
            if tuple(record.keys()) == self.names
            else [record[name] for name in self.names]
            for record in records
        ]

    def arrays(self, flat: Flat) -> dict[str, Vector]:
        """Return views of a flat model, by name and in their shapes."""
        return {
            place.name: flat[place.dtype][place.slice].reshape(shape)
            for place, shape in zip(self.places, self.shapes, strict=True)
        }

    def record(self, flat: Flat) -> ArrayRecord:
        """Return a flat model as an ``ArrayRecord``."""
        record = ArrayRecord()
        for place, shape in zip(self.places, self.shapes, strict=True):
            record[place.name] = place.array(shape, flat[place.dtype][place.slice])
        return record


def _make_header(shape: tuple[int, ...], dtype: str) -> bytes:
    stream = io.BytesIO()
    description = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(
        stream, {"shape": shape, "fortran_order": False, "descr": cast(str, description)}
    )
    return stream.getvalue()


def _vector(array: Array | Vector) -> Vector:
    return array_view(array) if isinstance(array, Array) else np.ravel(array)


@dataclass(frozen=True)
class Place:
    """Where an array lies in a flat model, and the .npy header that it most likely has."""

    name: str
    dtype: str
    slice: slice
    header: bytes

    @cached_property
    def count(self) -> int:
        """Number of entries."""
        return int(self.slice.stop - self.slice.start)

    @cached_property
    def length(self) -> int:
        """Bytes of the .npy file."""
        return len(self.header) + self.count * np.dtype(self.dtype).itemsize

    def views(self, arrays: Iterable[Array | Vector]) -> list[Vector]:
        """Return the entries of each array, without a copy where possible."""
        start = len(self.header)
        return [
            self._read_other(array)
            if (data := self._expected_data(array)) is None
            else np.frombuffer(data, self.dtype, self.count, start)
            for array in arrays
        ]

    def array(self, shape: tuple[int, ...], vector: Vector) -> Array:
        """Return a vector of the place's entries as a Flower ``Array``."""
        return new_array(self.dtype, shape, b"".join((self.header, vector.data)))

    def npy(self, array: Array | Vector) -> bytes:
        """Return an array as an .npy file with the expected header."""
        data = self._expected_data(array)
        return b"".join((self.header, self._read_other(array).data)) if data is None else data

    def _expected_data(self, array: Array | Vector) -> bytes | None:
        """Return the array's .npy file if it has the expected header and length, else None."""
        if isinstance(array, Array) and array.stype == STYPE:
            data = array.data
            if len(data) == self.length and data.startswith(self.header):
                return data
        return None

    def _read_other(self, array: Array | Vector) -> Vector:
        """Read an array with another header, or a NumPy array."""
        vector = _vector(array)
        if vector.size != self.count or vector.dtype != self.dtype:
            raise ValueError(
                f"{self.name!r} has {vector.size} entries of {vector.dtype}, "
                f"expected {self.count} of {self.dtype}"
            )
        return vector
