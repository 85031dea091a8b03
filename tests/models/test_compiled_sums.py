"""Compiled sums: NumPy's bits, for the vectors they take; NumPy for all others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mll_flower.models import _compiled_sums as compiled
from mll_flower.models import sums
from mll_flower.models._compiled_sums import compiled_summer
from mll_flower.models.sums import weighted_sum
from mll_flower.native.machine_code import why_unavailable

if why_unavailable() is not None:
    pytest.skip(f"nothing can be compiled here: {why_unavailable()}", allow_module_level=True)
SIZE = sums._LEAST_COMPILED + 5


def by_hand(vectors: list[np.ndarray], factors: list[float]) -> np.ndarray:
    total = vectors[0] * factors[0]
    for vector, factor in zip(vectors[1:], factors[1:], strict=True):
        total += vector * factor
    return total


def vectors_of(count: int, dtype: str, size: int = SIZE, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=size) * 100).astype(dtype) for _ in range(count)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Dtypes of the blocks that compiled code summed."""
    seen: list[str] = []

    def summer(dtype: np.dtype) -> compiled.Summer | None:
        inner = compiled_summer(dtype)
        if inner is None:
            return None

        def add_to(total, vectors, factors, fresh) -> None:
            seen.append(str(dtype))
            inner(total, vectors, factors, fresh)

        return add_to

    monkeypatch.setattr(sums, "compiled_summer", summer)
    return seen


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 11),
    dtype=st.sampled_from(["float32", "float64"]),
    size=st.sampled_from([SIZE, sums._BLOCK + 3]),
    seed=st.integers(0, 1000),
)
def test_the_bits_are_numpys(count: int, dtype: str, size: int, seed: int) -> None:
    vectors = vectors_of(count, dtype, size, seed)
    vectors[0][:4] = [-0.0, np.inf, np.nan, np.finfo(dtype).smallest_subnormal]
    vectors[-1][4:6] = [np.finfo(dtype).max, -0.0]
    factors = np.random.default_rng(seed).normal(size=count).tolist()
    with np.errstate(all="ignore"):
        expected = by_hand(vectors, factors)
    found = weighted_sum(vectors, factors)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    numbers = ~np.isnan(expected)
    assert found[numbers].tobytes() == expected[numbers].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_vectors_are_summed_by_compiled_code(calls: list[str], dtype: str) -> None:
    vectors = vectors_of(3, dtype)
    for vector in vectors[:2]:
        vector.flags.writeable = False  # as those of a message
    out = np.empty(SIZE, dtype)
    assert weighted_sum(vectors, [0.2, 0.3, 0.5], out=out) is out
    assert out.tobytes() == by_hand(vectors, [0.2, 0.3, 0.5]).tobytes()
    assert calls == [dtype]


def unaligned(vector: np.ndarray) -> np.ndarray:
    data = b"x" + vector.tobytes()
    return np.frombuffer(data, vector.dtype, vector.size, 1)


def strided(vector: np.ndarray) -> np.ndarray:
    return np.repeat(vector, 2)[::2]


@pytest.mark.parametrize("change", [unaligned, strided, lambda v: v.astype(">f4"), np.float16])
def test_other_vectors_are_left_to_numpy(calls: list[str], change) -> None:
    vectors = [change(v) for v in vectors_of(3, "float32")]
    found = weighted_sum(vectors, [0.2, 0.3, 0.5])
    assert calls == []
    np.testing.assert_array_equal(found, by_hand(vectors, [0.2, 0.3, 0.5]))


def test_small_vectors_are_left_to_numpy(calls: list[str]) -> None:
    weighted_sum(vectors_of(2, "float32", sums._LEAST_COMPILED - 1), [0.5, 0.5])
    assert calls == []


def test_where_nothing_can_be_compiled_numpy_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = vectors_of(3, "float32")
    expected = weighted_sum(vectors, [0.2, 0.3, 0.5])
    monkeypatch.setattr(compiled, "why_unavailable", lambda: "the CPU has no fma")
    compiled_summer.cache_clear()
    try:
        assert compiled_summer(np.dtype(np.float32)) is None
        assert weighted_sum(vectors, [0.2, 0.3, 0.5]).tobytes() == expected.tobytes()
    finally:
        compiled_summer.cache_clear()


def test_an_llvmlite_that_fails_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def fail(*args: object) -> None:
        raise RuntimeError("no such target")

    monkeypatch.setattr(compiled, "log", lambda level, text, *more: said.append(text % more))
    monkeypatch.setattr(compiled, "load", fail)
    compiled_summer.cache_clear()
    vectors = vectors_of(2, "float32")
    try:
        for _ in range(2):
            found = weighted_sum(vectors, [0.5, 0.5])
    finally:
        compiled_summer.cache_clear()
    assert found.tobytes() == by_hand(vectors, [0.5, 0.5]).tobytes()
    assert said == ["sums are not compiled, averages take longer: no such target"]


def test_vectors_of_other_lengths_are_never_read_beyond_their_end(calls: list[str]) -> None:
    long, short = np.ones(SIZE, np.float32), np.ones(SIZE - 1, np.float32)
    for vectors in ([long, short], [short, long]):
        with pytest.raises(ValueError, match="could not be broadcast"):
            weighted_sum(vectors, [0.5, 0.5])
    with pytest.raises(ValueError, match="could not be broadcast"):
        weighted_sum([long, long], [0.5, 0.5], out=short)
    assert calls == []
