"""A weighted sum of flat models that come one at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from mll_flower.layout import Flat, Vector

# Elements a block: the sum's block and the scratch space stay in the cache.
_BLOCK = 1 << 15


class RunningSum:
    """The sum that `weighted_sum` gives, to the bit, with one model in memory at a time."""

    def __init__(self) -> None:
        self._sums: Flat = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._scratch: dict[str, Vector] = {}

    def add(self, flat: Flat, factor: float) -> None:
        """Add a model times a factor."""
        scale = float(factor)
        for dtype, vector in flat.items():
            terms = vector
            if vector.dtype.kind not in "fc":
                terms = vector.astype(np.float64)  # integers: rounded only at the end
            if dtype not in self._sums:
                self._dtypes[dtype] = vector.dtype
                self._sums[dtype] = terms * scale
                self._scratch[dtype] = np.empty(min(_BLOCK, terms.size), dtype=terms.dtype)
                continue
            total = self._sums[dtype]
            if terms.size <= _BLOCK:
                total += np.multiply(terms, scale, out=self._scratch[dtype])
                continue
            for low in range(0, terms.size, _BLOCK):
                block = total[low : low + _BLOCK]
                product = self._scratch[dtype][: block.size]
                np.multiply(terms[low : low + _BLOCK], scale, out=product)
                block += product

    def result(self) -> Flat:
        """Give the sum, in the dtypes of the models."""
        return {
            dtype: total if total.dtype == wanted else np.rint(total).astype(wanted)
            for (dtype, total), wanted in zip(
                self._sums.items(), self._dtypes.values(), strict=True
            )
        }
