"""The model that a strategy is given at the start of a round, which may not be what it returned.

Flower's loop hands the averaged model u that ``aggregate_train`` returned back to
``configure_train``. In between, a wrapper (differential privacy adds noise) or a subclass may
change it. What was returned is compared with what is given by content, because a record may have
been changed in place, and if the two differ the hubs' models are moved by the difference.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from flwr.app import Array, ArrayRecord

from mll_flower.models.layout import Flat, Layout, Vector
from mll_flower.models.sums import is_finite
from mll_flower.strategies.inner_strategy import restore_dtypes


class LastModel:
    """The model that the strategy and Flower's loop agreed on last."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    def remember(self, arrays: ArrayRecord) -> None:
        """Remember a model; its bytes are shared, not copied."""
        self._arrays = {name: copy.copy(array) for name, array in arrays.items()}

    def is_same(self, arrays: ArrayRecord) -> bool:
        """Return whether a record holds the remembered model, byte for byte."""
        if list(arrays) != list(self._arrays):
            return False
        pairs = [(array.data, self._arrays[name].data) for name, array in arrays.items()]
        # Bytes never change, so the same object needs no comparison: the usual case is cheap.
        return all(given is last or given == last for given, last in pairs)

    def flat(self, layout: Layout) -> Flat:
        """Return the remembered model as a flat one."""
        return layout.flatten(self._arrays)


def read_model(layout: Layout, arrays: ArrayRecord, source: str) -> Flat:
    """Return a given model as a flat one, in the dtypes of the layout; integers are rounded.

    Parameters
    ----------
    layout : Layout
        The model's names, shapes and dtypes.
    arrays : ArrayRecord
        The given model.
    source : str
        Where it comes from, for the error.

    Raises
    ------
    ValueError
        If it has other names or shapes, or a value that is not finite.
    """
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    expected = dict(zip(layout.names, layout.shapes, strict=True))
    if shapes != expected:
        raise ValueError(
            f"{source} do not fit the model in training: "
            f"{layout.mismatch(arrays)}. Give arrays with the same names and shapes"
        )
    try:
        flat = layout.flatten(restore_dtypes(layout, arrays))
        if other := [dtype for dtype, vector in flat.items() if vector.dtype.kind not in "fciub"]:
            raise ValueError(f"dtype {other[0]}")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{source} cannot be averaged: {error}. Give arrays of numbers, such as float32"
        ) from error
    if not is_finite(flat):
        raise ValueError(f"{source} have a NaN or an infinity: no hub can train from them")
    return flat


def restored_model(layout: Layout, model: ArrayRecord | Flat) -> Flat:
    """Return the model of a hub that a run continues from, as a flat one."""
    if isinstance(model, ArrayRecord):
        return read_model(layout, model, "the restored models")
    sizes = {dtype: vector.size for dtype, vector in model.items()}
    expected = {dtype: vector.size for dtype, vector in layout.empty().items()}
    if sizes != expected:
        raise ValueError(
            f"the restored models do not fit initial_arrays: {sizes} entries instead of {expected}"
        )
    return model


def move_models(models: Sequence[Flat], last: Flat, given: Flat) -> list[Flat]:
    """Move every hub's model by the same difference, so that their average becomes ``given``.

    Parameters
    ----------
    models : Sequence[Flat]
        The hubs' models, whose average is ``last``; they are not changed.
    last, given : Flat
        The average as it was, and as it is to be.

    Returns
    -------
    list of Flat
        The moved models. One hub's is ``given`` itself; those of several hubs have it as their
        average up to the rounding of their dtypes.
    """
    if len(models) == 1:
        return [given]
    changed = [dtype for dtype in given if not np.array_equal(given[dtype], last[dtype])]
    return [
        {
            dtype: _moved(vector, last[dtype], given[dtype]) if dtype in changed else vector
            for dtype, vector in model.items()
        }
        for model in models
    ]


def _moved(vector: Vector, last: Vector, given: Vector) -> Vector:
    if vector.dtype.kind in "fc":
        return np.asarray(vector + (given - last))
    moved = np.rint(vector.astype(np.float64) + given - last)
    if vector.dtype.kind == "b":
        return np.asarray(moved > 0)
    limits = np.iinfo(vector.dtype)
    return np.asarray(np.clip(moved, limits.min, limits.max).astype(vector.dtype))
