"""Arrays and records of every shape and dtype that a model may have."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord

SHAPES = [(), (0,), (1,), (7,), (3, 4), (2, 0, 3), (2, 3, 5)]


def record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Return arrays as a Flower record."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def mixed_model(seed: int = 0) -> dict[str, np.ndarray]:
    """A model with floats of three widths, an integer and an empty array."""
    rng = np.random.default_rng(seed)
    return {
        "conv": rng.normal(size=(2, 3)).astype(np.float32),
        "bn.count": np.array(12 + seed, dtype=np.int64),
        "half": rng.normal(size=4).astype(np.float16),
        "bn.mean": rng.normal(size=3).astype(np.float32),
        "none": np.zeros((0, 2)),
    }
