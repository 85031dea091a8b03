"""The vectors of corrections: what they leave alone, and their arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from mll_flower.algorithm.corrections import Corrections
from mll_flower.models.corrections import (
    Corrected,
    HubState,
    OuterStep,
    half,
    mean_steps,
    mixed_in_half,
    rounded,
)
from mll_flower.models.layout import Layout

ARRAYS = {
    "conv.weight": np.arange(4, dtype=np.float32).reshape(2, 2),
    "norm.running_mean": np.array([5, 6], np.float32),
    "norm.running_var": np.array([7], np.float32),
    "norm.num_batches_tracked": np.array(3, np.int64),
    "wide": np.array([0.5], np.float64),
}
LAYOUT = Layout.of(ARRAYS)
MODEL = LAYOUT.flatten(ARRAYS)
ENTRIES = Corrected(LAYOUT)


def moved(by: float) -> dict[str, np.ndarray]:
    return LAYOUT.flatten({name: array + array.dtype.type(by) for name, array in ARRAYS.items()})


def test_statistics_of_batch_norm_and_integers_are_left_alone() -> None:
    difference = ENTRIES.difference(moved(2), MODEL)
    assert difference["float32"].tolist() == [2, 2, 2, 2, 0, 0, 0]
    assert difference["float64"].tolist() == [2]
    assert "int64" not in difference
    state = HubState(Corrections(hub="exact-diffusion"), ENTRIES)
    state.learn(moved(2), MODEL, 0.5)
    corrected = LAYOUT.arrays(state.correct(MODEL, steps=3.0, step_size=0.1))
    np.testing.assert_allclose(corrected["conv.weight"], ARRAYS["conv.weight"] - 0.3, atol=1e-6)
    for name in list(ARRAYS)[1:4]:
        np.testing.assert_array_equal(corrected[name], ARRAYS[name])
    outer = OuterStep(Corrections(outer="slowmo", outer_rate=2.0), ENTRIES, MODEL)
    stepped = LAYOUT.arrays(outer.take(moved(1)))
    np.testing.assert_allclose(stepped["conv.weight"], ARRAYS["conv.weight"] + 2)
    for name in list(ARRAYS)[1:4]:
        np.testing.assert_array_equal(stepped[name], ARRAYS[name] + 1)


def test_vectors_survive_as_bytes() -> None:
    flats = [ENTRIES.difference(moved(2), MODEL), ENTRIES.zeros()]
    back = ENTRIES.from_bytes(ENTRIES.to_bytes(flats), 2)
    for one, other in zip(flats, back, strict=True):
        assert one.keys() == other.keys()
        for dtype in one:
            np.testing.assert_array_equal(one[dtype], other[dtype])


def test_no_number_becomes_infinite_in_half_precision() -> None:
    model = {"float32": np.array([1e9, -1e9, 0.1], np.float32), "int64": np.array([7])}
    assert np.isfinite(half(model)["float32"]).all()
    assert half(model)["float32"].dtype == np.float16
    assert rounded(model)["float32"].dtype == np.float32
    assert rounded(model)["int64"].tolist() == [7]
    alone = mixed_in_half(model, rounded(model), rounded(model))
    np.testing.assert_array_equal(alone["float32"], model["float32"])


def test_steps_of_absent_workers_do_not_count() -> None:
    steps = [4, 2, 8], [True, False, True]
    assert mean_steps([1.0, 1.0, 2.0], *steps, "keep") == pytest.approx(5.0)
    assert mean_steps([1.0, 1.0, 2.0], *steps, "renormalise") == pytest.approx(20 / 3)


def test_workers_that_weigh_nothing_are_no_error() -> None:
    state = HubState(Corrections(worker="mtgc"), ENTRIES)
    state.begin({0: 0.0, 1: 0.0})
    shift = state.shift(1, 0.1)
    assert shift is not None
    assert not shift["float32"].any()
