"""How far a hub believes its workers: limits for the weight, the update and the size of a reply."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from flwr.supercore import log

from mll_flower.grids.absences import Absence
from mll_flower.models.layout import Flat, Layout
from mll_flower.models.norm_limit import NormLimit, check_norm_limit
from mll_flower.models.subnetwork_average import NOT_FINITE
from mll_flower.models.sums import distance, is_finite
from mll_flower.strategies.arguments import check_positive, check_whole
from mll_flower.strategies.reports import Absent, Arrival

MAX_WEIGHT = 1e100
"""Largest weight that any worker may have: sums of such weights never overflow."""

_HEADER = 1 << 12  # bytes of the header of an .npy file, at most


@dataclass(frozen=True)
class ReplyLimits:
    """What a reply may be at most; None for no limit.

    Parameters
    ----------
    max_examples : float, optional
        Largest weight of a worker; more counts as this much.
    max_update_norm : float or str, optional
        Largest Euclidean distance between a worker's model and the one that its hub sent; a
        number, or a multiple such as ``"5x"`` of the running median of the hub's workers.
    max_metrics : int, optional
        Largest number of values in the metrics of a reply.
    max_reply_bytes : int, optional
        Largest number of bytes of the arrays and other records of a reply.
    """

    max_examples: float | None = None
    max_update_norm: float | str | None = None
    max_metrics: int | None = None
    max_reply_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.max_examples is not None:
            check_positive("max_examples", self.max_examples)
        check_norm_limit("max_update_norm", self.max_update_norm)
        for name in ("max_metrics", "max_reply_bytes"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1)

    def settings(self) -> dict[str, float | str | None]:
        """Return the limits by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def too_large(self, content: RecordDict) -> str | None:
        """Return by what a reply is too large; None if it is not."""
        if self.max_metrics is not None:
            count = _values(content)
            if count > self.max_metrics:
                return f"{count} values in its metrics, more than max_metrics={self.max_metrics}"
        if self.max_reply_bytes is not None:
            size = _bytes(content)
            if size > self.max_reply_bytes:
                return f"{size} bytes, more than max_reply_bytes={self.max_reply_bytes}"
        return None

    def believed_weight(self, node: int, weight: float) -> float:
        """Return a worker's weight, at most ``max_examples``."""
        if self.max_examples is None or weight <= self.max_examples:
            return weight
        shown = f"{weight:.6g}" if isinstance(weight, float) else str(weight)[:20]
        log(WARNING, "Node %d claims weight %s: it counts as %g", node, shown, self.max_examples)
        return float(self.max_examples)


class UpdateNorms:
    """Judges how far the workers' models of a hub have moved.

    Parameters
    ----------
    layout : Layout
        Names, shapes and dtypes of the hub's model.
    limit : float or str, optional
        ``max_update_norm``; None judges nothing.
    """

    def __init__(self, layout: Layout, limit: float | str | None) -> None:
        self.layout = layout
        self._limit = None if limit is None else NormLimit(limit, "max_update_norm")

    @property
    def is_on(self) -> bool:
        """Whether there is a limit."""
        return self._limit is not None

    def judge(self, sent: Flat, arrived: Mapping[int, Arrival]) -> dict[int, Absent]:
        """Return who is absent because of a NaN, or of a model too far from the one sent."""
        absent: dict[int, Absent] = {}
        norms: dict[int, float] = {}
        for node, arrival in arrived.items():
            model = self.layout.flatten(arrival.arrays)
            if not is_finite(model):
                absent[node] = Absent(node, Absence.NOT_FINITE, NOT_FINITE)
            elif self._limit is not None:
                norms[node] = _distance(model, sent)
        if self._limit is None:
            return absent
        bound = self._limit.bound(norms.values())
        self._limit.remember(norms.values(), bound)
        for node, norm in norms.items():
            if norm > bound:
                why = f"its update has norm {norm:.4g}, more than {bound:.4g} "
                why += f"(max_update_norm={self._limit.given!r})"
                absent[node] = Absent(node, Absence.TOO_LARGE, why)
        return absent


def _distance(a: Flat, b: Flat) -> float:
    """Return the distance between two finite models; infinity if it is beyond all numbers."""
    with np.errstate(over="ignore", invalid="ignore"):
        norm = distance(a, b)
    return math.inf if math.isnan(norm) else norm


def oversized(layout: Layout, arrays: ArrayRecord) -> str | None:
    """Return which array has more bytes than the model has use for, before it is read.

    A worker may send floats that are wider than the model's, up to 16 bytes each.
    """
    sizes = dict(zip(layout.names, layout.shapes, strict=True))
    for name, array in arrays.items():
        if name in sizes:
            most = 16 * math.prod(sizes[name]) + _HEADER
            if len(array.data) > most:
                return f"{name!r} has {len(array.data)} bytes, expected at most {most}"
    return None


def _values(content: RecordDict) -> int:
    return sum(
        len(value) if isinstance(value, list) else 1
        for metrics in content.metric_records.values()
        for value in metrics.values()
    )


def _bytes(content: RecordDict) -> int:
    arrays = sum(len(a.data) for record in content.array_records.values() for a in record.values())
    configs = sum(
        _length(value) for record in content.config_records.values() for value in record.values()
    )
    return arrays + configs + 8 * _values(content)


def _length(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_length, value))
    return len(value) if isinstance(value, bytes | str) else 8
