"""Weighted sums: bit for bit Flower's for floats, rounded back for integers, dtypes kept."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from hypothesis import given, settings
from hypothesis import strategies as st

from mll_flower.models import sums
from mll_flower.models.layout import Layout, array_view
from mll_flower.models.subnetwork_average import absent_factors
from mll_flower.models.sums import (
    RunningSum,
    distance,
    is_finite,
    sum_models,
    sum_records,
    weighted_sum,
)
from tests.support.arrays import SHAPES, mixed_model, record
from tests.support.random_networks import weights

FLOATS = ["float16", "float32", "float64"]


def model(rng: np.random.Generator, dtype: str, order: str = "C") -> dict[str, np.ndarray]:
    return {
        f"layer{k}": np.array(rng.normal(scale=50, size=shape).astype(dtype), order=order)
        for k, shape in enumerate(SHAPES)
    }


def flower(records: list[ArrayRecord], w: list[float]) -> ArrayRecord:
    """The average as Flower makes it."""
    replies = [
        RecordDict({"arrays": r, "metrics": MetricRecord({"weight": x})})
        for r, x in zip(records, w, strict=True)
    ]
    return aggregate_arrayrecords(replies, "weight")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", FLOATS)
@given(w=st.lists(st.one_of(weights, st.integers(1, 900)), min_size=1, max_size=6), data=st.data())
@settings(max_examples=20, deadline=None)
def test_equal_to_flowers_average_to_the_bit(dtype: str, order: str, w, data) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    records = [record(model(rng, dtype, order)) for _ in w]
    layout = Layout.of(records[0])
    ours = layout.record(sum_records(layout, records, absent_factors(w, [True] * len(w))[0]))
    theirs = flower(records, w)
    assert list(ours) == list(theirs)
    for name in ours:
        assert (ours[name].dtype, ours[name].shape) == (dtype, theirs[name].shape)
        assert theirs[name].dtype == dtype
        assert ours[name].numpy().tobytes() == theirs[name].numpy().tobytes()


@pytest.mark.filterwarnings("error")
def test_small_arrays_in_any_memory_order_and_record_order_give_the_same_bits() -> None:
    # The .npy headers of small arrays are summed along, as if they were numbers. As float16 or
    # int64 they may overflow or be NaN, of which NumPy must not warn.
    models = [mixed_model(seed) for seed in range(3)]
    layout = Layout.of(models[0])
    fortran = {name: np.asfortranarray(array) for name, array in models[1].items()}
    turned = dict(reversed(models[2].items()))
    factors = [0.2, 0.3, 50.0]
    expected = layout.record(sum_records(layout, [record(m) for m in models], factors))
    for one, two, three in (
        (record(models[0]), record(fortran), record(turned)),
        (models[0], record(fortran), record(turned)),
        (models[0], models[1], turned),
    ):
        found = layout.record(sum_records(layout, [one, two, three], factors))
        for name in expected:
            assert found[name].data == expected[name].data
    for name in ("conv", "half", "bn.mean"):
        total = sum(f * np.float64(m[name]) for f, m in zip(factors, models, strict=True))
        np.testing.assert_allclose(expected[name].numpy(), total, rtol=2e-2)
    assert expected["bn.count"].numpy() == round(0.2 * 12 + 0.3 * 13 + 50 * 14)


@pytest.mark.parametrize("compiled", [True, False])
def test_sums_in_blocks_have_the_bits_of_whole_sums(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(sums, "compiled_summer", lambda dtype: None)
    rng = np.random.default_rng(0)
    vectors = [rng.normal(size=sums._BLOCK * 2 + 77).astype(np.float32) for _ in range(3)]
    expected = vectors[0] * 0.2
    expected += vectors[1] * 0.3
    expected += vectors[2] * 0.5
    assert weighted_sum(vectors, [0.2, 0.3, 0.5]).tobytes() == expected.tobytes()


def test_numpy_factors_do_not_change_the_dtype() -> None:
    x = np.ones(3, np.float32)
    assert weighted_sum([x, x], np.array([0.5, 0.5])).dtype == np.float32


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "bool"])
def test_integers_are_averaged_in_float64_and_rounded_back(dtype: str) -> None:
    vectors = [np.array(v, dtype=dtype) for v in ([0, 1, 1], [1, 1, 0], [1, 1, 0])]
    # A third of each: 2/3, 1, 1/3.
    found = weighted_sum(vectors, [1 / 3] * 3)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.array([1, 1, 0], dtype=dtype))


def test_large_counters_keep_their_digits() -> None:
    # float32 would lose the last digits.
    counters = [np.array([100_000_007]), np.array([100_000_009])]
    np.testing.assert_array_equal(weighted_sum(counters, [0.5, 0.5]), [100_000_008])


def test_integers_go_to_out() -> None:
    out = np.empty(2, dtype=np.int64)
    found = weighted_sum([np.array([1, 5]), np.array([2, 8])], [0.25, 0.75], out=out)
    assert found is out
    np.testing.assert_array_equal(out, [2, 7])


@pytest.mark.parametrize("dtype", [">f4", ">i8", "<f4", ">f2"])
def test_other_byte_orders_are_read_and_kept(dtype: str) -> None:
    a, b = np.array([[2, 4], [6, 8]], dtype=dtype), np.array([[4, 8], [2, 4]], dtype=dtype)
    records = [record({"x": a}), record({"x": b})]
    np.testing.assert_array_equal(array_view(records[0]["x"]), [2, 4, 6, 8])
    assert array_view(records[0]["x"]).dtype.isnative
    layout = Layout.of(records[0])
    found = layout.record(sum_records(layout, records, [0.5, 0.5]))["x"].numpy()
    assert found.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(found, [[3, 6], [4, 6]])


def test_models_are_summed_dtype_by_dtype() -> None:
    models = [{"float32": np.array([1, 2], np.float32), "int64": np.array([3])}] * 2
    found = sum_models(models, [0.25, 0.5])
    np.testing.assert_array_equal(found["float32"], np.array([0.75, 1.5], np.float32))
    np.testing.assert_array_equal(found["int64"], [2])


def test_every_vector_needs_a_factor() -> None:
    for vectors, factors in (([], []), ([np.ones(1)], [0.5, 0.5])):
        with pytest.raises(ValueError, match="one factor per vector"):
            weighted_sum(vectors, factors)


def test_is_finite_and_distance() -> None:
    a = {"float32": np.array([3, 0], np.float32), "int64": np.array([7])}
    b = {"float32": np.array([0, 4], np.float32), "int64": np.array([9])}
    assert distance(a, b) == 5
    assert is_finite(a)
    for bad in (np.nan, np.inf, -np.inf):
        assert not is_finite({"float32": np.array([1, bad], np.float32)})


def test_is_finite_and_distance_of_models_of_several_blocks() -> None:
    rng = np.random.default_rng(0)
    a, b = ({"float32": rng.normal(size=2 * 2**17 + 3).astype(np.float32)} for _ in range(2))
    expected = np.linalg.norm(a["float32"].astype(np.float64) - b["float32"])
    assert distance(a, b) == pytest.approx(expected, rel=1e-14)
    assert is_finite(a)
    a["float32"][-1] = np.nan
    assert not is_finite(a)


def test_an_array_whose_bytes_do_not_match_its_dtype_and_shape_is_an_error() -> None:
    good = Array(np.arange(4, dtype=np.float32))
    for content in (np.arange(3, dtype=np.float32), np.arange(4, dtype=np.float64)):
        wrong = Array(content)
        wrong.dtype, wrong.shape = good.dtype, good.shape
        layout = Layout.of({"x": good})
        assert layout.mismatch({"x": wrong}) is None
        with pytest.raises(ValueError, match=r"'x' has .* expected 4 of float32"):
            sum_records(layout, [{"x": good}, {"x": wrong}], [0.5, 0.5])


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_a_running_sum_has_the_same_bits(seed: int, count: int) -> None:
    models = [mixed_model(seed + k) for k in range(count)]
    layout = Layout.of(models[0])
    flats = [layout.flatten(model) for model in models]
    factors = np.random.default_rng(seed).dirichlet(np.ones(count)).tolist()
    running = RunningSum()
    for flat, factor in zip(flats, factors, strict=True):
        running.add(flat, factor)
    at_once, one_by_one = sum_models(flats, factors), running.result()
    for dtype, vector in at_once.items():
        assert one_by_one[dtype].dtype == vector.dtype
        assert one_by_one[dtype].tobytes() == vector.tobytes()


def test_a_running_sum_takes_numpy_factors_for_what_they_are() -> None:
    x = {"float32": np.array([0.1, 0.7], np.float32)}
    one, other = RunningSum(), RunningSum()
    for factor in (1 / 3, 0.2):
        one.add(x, factor)
        other.add(x, np.float64(factor))
    assert one.result()["float32"].tobytes() == other.result()["float32"].tobytes()


def test_a_running_sum_crosses_blocks() -> None:
    rng = np.random.default_rng(1)
    flats = [{"float32": rng.normal(size=sums._BLOCK + 5).astype(np.float32)} for _ in range(3)]
    running = RunningSum()
    for flat in flats:
        running.add(flat, 0.3)
    assert (
        running.result()["float32"].tobytes() == sum_models(flats, [0.3] * 3)["float32"].tobytes()
    )


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 1000),
    size=st.sampled_from([1, 7, 1 << 14, (1 << 14) + 3, 40_000, sums._BLOCK + 3]),
    count=st.integers(1, 6),
    dtype=st.sampled_from(["float32", "float64", "int64", "int32"]),
)
def test_the_running_sum_is_weighted_sum_to_the_bit(
    seed: int, size: int, count: int, dtype: str
) -> None:
    rng = np.random.default_rng(seed)
    vectors = [(rng.normal(size=size) * 100).astype(dtype) for _ in range(count)]
    vectors[0][:1] = -0.0
    factors = rng.dirichlet(np.ones(count)).tolist()
    total = RunningSum()
    for vector, factor in zip(vectors, factors, strict=True):
        total.add({dtype: vector}, factor)
    result = total.result()[dtype]
    assert result.dtype == dtype
    assert result.tobytes() == weighted_sum(vectors, factors).tobytes()
