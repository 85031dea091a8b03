"""The words of kernels do what they say, for both vector lengths."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mll_flower.native.machine_code import load, why_unavailable

if why_unavailable() is not None:
    pytest.skip(f"nothing can be compiled here: {why_unavailable()}", allow_module_level=True)

from mll_flower.native.vector_code import FLOAT, LANES, POINTER, Buffer, Index, Kernel

INPUT, OUTPUT = Buffer("input", 0, (LANES, 1)), Buffer("output", 0, (LANES, 1))


@pytest.fixture(autouse=True)
def _no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mll_flower.native.machine_code.private_folder", lambda name: None)


def run(body: Callable[[Kernel], None], values: np.ndarray, size: int, lanes: int = LANES) -> Any:
    """Run a kernel that reads ``values`` and writes ``size`` numbers, which begin as -1."""

    def write(module: Any) -> None:
        k = Kernel(module, "run", [("input", POINTER), ("output", POINTER)], lanes=lanes)
        body(k)
        k.done()

    function = load(write, "", __name__).function("run", None, *[ctypes.c_void_p] * 2)
    values, output = values.astype(np.float32), np.full(size, -1, np.float32)
    function(values.ctypes.data, output.ctypes.data)
    return output


@pytest.mark.parametrize(("count", "most"), [(20, 20), (7, 3), (1, 5), (10, 4), (9, 1), (3, 0)])
def test_tiles_cover_everything_once(count: int, most: int) -> None:
    sizes = []

    def body(k: Kernel) -> None:
        for first, size in k.tiles(count, most):
            sizes.append(size)
            for n in range(size):
                place = k.at(OUTPUT, 0, first + n)
                k.store(k.builder.fadd(k.load(place, FLOAT), FLOAT(1.0)), place)

    assert run(body, np.zeros(1), count + 1).tolist() == [0.0] * count + [-1.0]
    assert max(sizes) <= max(1, most)
    assert max(sizes) - min(sizes) <= 1


def test_transpose() -> None:
    def body(k: Kernel) -> None:
        for row, vector in enumerate(k.transpose([k.load(k.at(INPUT, i, 0)) for i in range(16)])):
            k.store(vector, k.at(OUTPUT, row, 0))

    matrix = np.arange(256.0).reshape(16, 16)
    np.testing.assert_array_equal(run(body, matrix.ravel(), 256).reshape(16, 16), matrix.T)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("count", [1, 5, 8])
def test_parts_of_vectors_touch_nothing_else(lanes: int, count: int) -> None:
    def body(k: Kernel) -> None:
        k.store_part(k.load_part(k.at(INPUT, 0, 1), count), k.at(OUTPUT, 0, 2), count)

    output = run(body, np.arange(count + 1.0), 20, lanes)
    assert output.tolist() == [-1, -1, *range(1, count + 1)] + [-1] * (18 - count)


def test_lanes_are_summed_half_to_half() -> None:
    def body(k: Kernel) -> None:
        k.store(k.lane_sum(k.load(k.at(INPUT, 0, 0))), k.at(OUTPUT, 0, 0))

    values = np.random.default_rng(0).normal(size=16).astype(np.float32)
    expected = values
    while expected.size > 1:
        expected = expected[: expected.size // 2] + expected[expected.size // 2 :]
    assert run(body, values, 1)[0] == expected[0]


def test_products_in_sums_are_rounded_once() -> None:
    def body(k: Kernel) -> None:
        a, b, c = (k.load(k.at(INPUT, i, 0)) for i in range(3))
        k.store(k.fma(a, b, c), k.at(OUTPUT, 0, 0))
        k.store(k.builder.fadd(k.builder.fmul(a, b), c), k.at(OUTPUT, 1, 0))

    a = np.full(16, 1 + 2.0**-23)
    fused, apart = run(body, np.concatenate([a, a, -a * a]), 32).reshape(2, 16)
    c = np.float32(-(a * a).astype(np.float32))
    assert np.all(fused == np.float32(a * a + c.astype(np.float64)))
    assert np.all(apart == 0)


def test_positive_parts_keep_nan() -> None:
    def body(k: Kernel) -> None:
        k.store(k.positive_part(k.load(k.at(INPUT, 0, 0))), k.at(OUTPUT, 0, 0))

    values = np.array([1, -1, np.nan, np.inf, -np.inf, 0, -0.0, 2] * 2)
    np.testing.assert_array_equal(run(body, values, 16), np.maximum(values, 0))


def test_indices_are_whole_numbers() -> None:
    counter = object()
    index = 3 + (Index(((counter, 1),)) + 2) * 4 + Index(constant=1)
    assert (index.terms, index.constant) == (((counter, 4),), 12)
