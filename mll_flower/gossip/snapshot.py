"""Snapshots: what a hub offers its neighbours at a mixing, and the checks before one is used.

A snapshot is z(d), the average of the models of hub d's workers, together with what its
neighbours need to compute their columns of H without knowing the whole network: the total weight
of d's workers and d's degree in the hub graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MAX_DEGREE = 1_000_000
"""Largest number of neighbours that a hub may claim to have."""

MAX_WEIGHT = 1e150
"""Largest weight that a hub may claim to have: sums of such weights never overflow."""


class Rejection(StrEnum):
    """Why a snapshot or a call was turned away."""

    RUN = "another run"
    MIXING = "another mixing number"
    AHEAD = "a mixing number that cannot be reached yet"
    TERMS = "other terms of the run"
    HUB = "a hub other than the connection's"
    KEYS = "other arrays"
    SHAPE = "another shape"
    DTYPE = "another dtype"
    NOT_FINITE = "a value that is not finite"
    DISTANCE = "a model too far from this hub's own"
    WEIGHT = "a weight that is negative or not finite"
    DEGREE = "a degree that no hub has"
    OVERSIZED = "more bytes than allowed"
    CHECKSUM = "bytes that do not match their checksum"
    GARBLED = "bytes that are no snapshot"
    STRANGER = "a caller that is no neighbour"
    IMPOSTOR = "a caller that claims another hub's name"
    UNTRUSTED = "a certificate that this network did not sign for that hub"


class RejectedSnapshot(Exception):
    """A snapshot that must not be used; `rejection` is the reason, the text gives details."""

    def __init__(self, rejection: Rejection, detail: str) -> None:
        super().__init__(f"{rejection.value}: {detail}")
        self.rejection = rejection


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A hub's z(d) at one mixing; immutable.

    Parameters
    ----------
    run : str
        Name of the run that all hubs of the network share.
    mixing : int
        Number of the mixing that this model is for (1 is the first).
    hub : str
        Id of the hub d.
    weight : float
        Total weight of the hub's workers at this mixing: b(d) up to a factor common to all hubs.
        0 if none of them has reported its weight yet.
    degree : int
        Degree of the hub in the hub graph.
    arrays : Mapping[str, numpy.ndarray]
        z(d) by name. Kept as read-only, C-ordered copies in native byte order.
    links : Mapping[str, int]
        How often the hub has used the link to each neighbour, if hubs correct their drift.
    """

    run: str
    mixing: int
    hub: str
    weight: float
    degree: int
    arrays: Mapping[str, Array]
    links: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        frozen = {name: _frozen(name, array) for name, array in self.arrays.items()}
        object.__setattr__(self, "arrays", MappingProxyType(frozen))


def _frozen(name: str, array: Array) -> Array:
    array = np.asarray(array)
    if array.dtype.kind not in "biufc":
        raise ValueError(
            f"array {name!r} has dtype {array.dtype}; a model may hold only booleans, integers "
            "and floating-point numbers"
        )
    copy = np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
    copy.flags.writeable = False
    return copy


def check_snapshot(
    snapshot: Snapshot,
    *,
    peer: str,
    run: str,
    mixing: int | None,
    like: Mapping[str, Array] | None,
) -> None:
    """Raise `RejectedSnapshot` unless a neighbour's snapshot may be mixed.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot that arrived.
    peer : str
        The hub at the other end of the connection, known by its certificate.
    run : str
        The run of the checking hub.
    mixing : int | None
        The mixing number that it must have; None accepts any (to catch up after a restart).
    like : Mapping[str, numpy.ndarray] | None
        Arrays whose names, shapes and dtypes it must have; None accepts any.
    """
    if snapshot.run != run:
        raise RejectedSnapshot(Rejection.RUN, f"{snapshot.run!r}, not {run!r}")
    if snapshot.hub != peer:
        raise RejectedSnapshot(Rejection.HUB, f"{snapshot.hub!r}, not {peer!r}")
    if mixing is not None and snapshot.mixing != mixing:
        raise RejectedSnapshot(Rejection.MIXING, f"{snapshot.mixing}, not {mixing}")
    if not 0 <= snapshot.weight <= MAX_WEIGHT:
        raise RejectedSnapshot(Rejection.WEIGHT, f"{snapshot.weight}")
    if not 1 <= snapshot.degree <= MAX_DEGREE:
        raise RejectedSnapshot(Rejection.DEGREE, f"{snapshot.degree}"[:20])
    if like is not None:
        _check_arrays(snapshot.arrays, like)
    for name, array in snapshot.arrays.items():
        if array.dtype.kind in "fc" and not np.isfinite(array).all():
            raise RejectedSnapshot(Rejection.NOT_FINITE, f"in array {name!r}")


def _check_arrays(arrays: Mapping[str, Array], like: Mapping[str, Array]) -> None:
    if arrays.keys() != like.keys():
        missing = sorted(like.keys() - arrays.keys())
        extra = sorted(arrays.keys() - like.keys())
        raise RejectedSnapshot(Rejection.KEYS, f"missing {missing}, unexpected {extra}")
    for name, own in like.items():
        array = arrays[name]
        if array.shape != own.shape:
            raise RejectedSnapshot(Rejection.SHAPE, f"{name!r}: {array.shape}, not {own.shape}")
        if array.dtype != own.dtype:
            raise RejectedSnapshot(Rejection.DTYPE, f"{name!r}: {array.dtype}, not {own.dtype}")


def snapshot_distance(a: Mapping[str, Array], b: Mapping[str, Array] | None) -> float:
    """Return the Euclidean distance between two models of one layout, or the norm of the first.

    Floating-point entries count; a distance beyond all numbers is infinite.
    """
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for name, array in a.items():
            if array.dtype.kind in "fc":
                wide = array.astype(np.result_type(array.dtype, np.float64)).ravel()
                difference = wide if b is None else wide - b[name].ravel()
                total += float(np.vdot(difference, difference).real)
    return math.sqrt(total) if math.isfinite(total) else math.inf
