"""Averages: to the bit Flower's own for floats, rounded back for integers, dtypes kept."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from hypothesis import given, settings
from hypothesis import strategies as st

from mll_flower.algorithm.mixing import mixing_matrix
from mll_flower.algorithm.network import HubNetwork
from mll_flower.models import sums
from mll_flower.models.hub_mixing import mix_models
from mll_flower.models.layout import Layout, array_view
from mll_flower.models.subnetwork_average import absent_factors
from mll_flower.models.sums import distance, is_finite, sum_models, sum_records, weighted_sum
from tests.support.random_networks import networks, weights

FLOATS = ["float16", "float32", "float64"]
SHAPES = [(), (0,), (1,), (7,), (3, 4), (2, 0, 3), (2, 3, 5)]


def model(rng: np.random.Generator, dtype: str, order: str = "C") -> dict[str, np.ndarray]:
    return {
        f"layer{k}": np.array(rng.normal(scale=50, size=shape).astype(dtype), order=order)
        for k, shape in enumerate(SHAPES)
    }


def record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


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
def test_small_arrays_are_averaged_together_whatever_they_came_in() -> None:
    # Among them halves and integers, as which parts of an .npy header are no numbers.
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
def test_blocks_do_not_show(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_array_view_reads_any_shape_in_c_order(shape: tuple[int, ...], order: str) -> None:
    array = np.array(np.random.default_rng(0).normal(size=shape), order=order)
    np.testing.assert_array_equal(array_view(Array(array)), array.ravel())


def test_array_view_copies_nothing_where_it_can() -> None:
    array = Array(np.arange(5.0))
    assert np.shares_memory(array_view(array), np.frombuffer(array.data, dtype=np.uint8))


def test_array_view_reads_a_long_header() -> None:
    # Version 2 of the format, which NumPy writes for long headers.
    import io

    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.arange(6.0).reshape(2, 3), version=(2, 0))
    array = Array(dtype="float64", shape=(2, 3), stype="numpy.ndarray", data=stream.getvalue())
    np.testing.assert_array_equal(array_view(array), np.arange(6.0))


def test_array_view_refuses_what_it_cannot_read() -> None:
    data = Array(np.ones(2)).data
    other = Array(dtype="float64", shape=(2,), stype="torch", data=data)
    with pytest.raises(ValueError, match=r"serialisation type 'torch': only 'numpy\.ndarray'"):
        array_view(other)


def test_array_view_refuses_python_objects() -> None:
    import io

    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.array([{}]), allow_pickle=True)
    array = Array(dtype="object", shape=(1,), stype="numpy.ndarray", data=stream.getvalue())
    with pytest.raises(ValueError, match="Python objects cannot be averaged: send numbers"):
        array_view(array)


def mixed_model(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "conv": rng.normal(size=(2, 3)).astype(np.float32),
        "bn.count": np.array(12 + seed, dtype=np.int64),
        "half": rng.normal(size=4).astype(np.float16),
        "bn.mean": rng.normal(size=3).astype(np.float32),
        "none": np.zeros((0, 2)),
    }


def test_layout_round_trip() -> None:
    arrays = mixed_model()
    for source in (arrays, record(arrays)):
        layout = Layout.of(source)
        flat = layout.flatten(source)
        assert {k: v.size for k, v in flat.items()} == {
            "float32": 9,
            "int64": 1,
            "float16": 4,
            "float64": 0,
        }
        back, as_record = layout.arrays(flat), layout.record(flat)
        assert list(back) == list(as_record) == list(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(back[name], array)
            np.testing.assert_array_equal(as_record[name].numpy(), array)
            assert back[name].dtype == as_record[name].numpy().dtype == array.dtype
        assert as_record.object_id == record(arrays).object_id
        assert layout.mismatch(as_record) is None
        assert Layout.of(as_record) == layout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conv": None}, r"other keys (missing ['conv'], not expected [])"),
        ({"more": np.ones(1)}, r"other keys (missing [], not expected ['more'])"),
        ({"conv": np.ones((3, 2), np.float32)}, "'conv' has shape (3, 2), expected (2, 3)"),
        ({"conv": np.ones((2, 3))}, "'conv' has dtype float64, expected float32"),
    ],
)
def test_mismatch_says_what_differs(change: dict[str, np.ndarray | None], message: str) -> None:
    layout = Layout.of(mixed_model())
    changed = {k: v for k, v in {**mixed_model(), **change}.items() if v is not None}
    assert layout.mismatch(changed) == message
    assert layout.mismatch(record(changed)) == message


@given(network=networks(min_hubs=2), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_mix_is_h_transposed_times_the_averages(network: HubNetwork, seed: int) -> None:
    H = mixing_matrix(network.graph, network.b)
    z = np.random.default_rng(seed).normal(size=(network.hubs, 5))
    y = np.array([flat["float64"] for flat in mix_models([{"float64": row} for row in z], H)])
    np.testing.assert_allclose(y, H.T @ z, rtol=0, atol=1e-13)
    np.testing.assert_allclose(network.b @ y, network.b @ z, rtol=0, atol=1e-12)


def test_mix_reads_every_model_before_it_writes_one() -> None:
    H = np.full((2, 2), 0.5)
    models = [{"float64": np.array([0.0])}, {"float64": np.array([4.0])}]
    assert [float(y["float64"][0]) for y in mix_models(models, H)] == [2.0, 2.0]
    assert [float(z["float64"][0]) for z in models] == [0.0, 4.0]


def test_combine_averages_each_dtype() -> None:
    models = [{"float32": np.array([1, 2], np.float32), "int64": np.array([3])}] * 2
    found = sum_models(models, [0.25, 0.5])
    np.testing.assert_array_equal(found["float32"], np.array([0.75, 1.5], np.float32))
    np.testing.assert_array_equal(found["int64"], [2])


def test_absent_share_stays_with_the_hubs_model() -> None:
    # Worker 1 of weights 1, 2, 5 is absent; the hub sent 100.
    factors, kept = absent_factors([1, 2, 5], [True, False, True], "keep")
    assert (factors, kept) == ([1 / 8, 5 / 8], 2 / 8)
    models = [np.array([8.0]), np.array([16.0]), np.array([100.0])]
    assert weighted_sum(models, [*factors, kept])[0] == 1 + 10 + 25


def test_absent_renormalise_divides_by_the_arrived() -> None:
    factors, kept = absent_factors([1, 2, 5], [True, False, True], "renormalise")
    assert (factors, kept) == ([1 / 6, 5 / 6], 0.0)


@pytest.mark.parametrize("rule", ["keep", "renormalise"])
def test_absent_rules_agree_when_all_are_there_or_nobody_is(rule) -> None:
    assert absent_factors([1, 2, 5], [True] * 3, rule) == ([1 / 8, 2 / 8, 5 / 8], 0.0)
    assert absent_factors([1, 2, 5], [False] * 3, rule) == ([], 1.0)


def test_absent_wants_one_answer_a_worker() -> None:
    with pytest.raises(ValueError):
        absent_factors([1, 2, 5], [True])


def test_one_factor_a_vector() -> None:
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


def test_an_array_that_is_not_what_its_record_says() -> None:
    good = Array(np.arange(4, dtype=np.float32))
    for content in (np.arange(3, dtype=np.float32), np.arange(4, dtype=np.float64)):
        wrong = Array(content)
        wrong.dtype, wrong.shape = good.dtype, good.shape
        layout = Layout.of({"x": good})
        assert layout.mismatch({"x": wrong}) is None
        with pytest.raises(ValueError, match=r"'x' has .* expected 4 of float32"):
            sum_records(layout, [{"x": good}, {"x": wrong}], [0.5, 0.5])
