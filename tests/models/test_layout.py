"""Layouts: a model becomes flat vectors and comes back; arrays are read without copies."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array

from mll_flower.models.layout import Layout, array_view
from tests.support.arrays import SHAPES, mixed_model, record


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
