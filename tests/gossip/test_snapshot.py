"""Snapshots: immutable copies, and the checks before one is mixed."""

from __future__ import annotations

import numpy as np
import pytest

from mll_flower.gossip.snapshot import RejectedSnapshot, Rejection, Snapshot, check_snapshot
from tests.support.gossip_hubs import (
    REJECTED_AS,
    RUN,
    SNAPSHOT_FAULTS,
    Fault,
    model,
    snapshot,
    spoil,
)


def snap(**arrays: np.ndarray) -> Snapshot:
    return Snapshot(RUN, 1, "a", 1.0, 1, arrays)


def test_snapshots_are_immutable_copies() -> None:
    mine = np.arange(6.0).reshape(2, 3)
    taken = snap(x=mine.T, big_endian=np.ones(2, ">f4"))
    mine[:] = -1
    assert taken.arrays["x"].flags.c_contiguous
    np.testing.assert_array_equal(taken.arrays["x"], np.arange(6.0).reshape(2, 3).T)
    assert taken.arrays["big_endian"].dtype.isnative
    with pytest.raises(ValueError, match="read-only"):
        taken.arrays["x"][0, 0] = 1
    with pytest.raises(TypeError):
        taken.arrays["y"] = mine  # type: ignore[index]
    with pytest.raises(ValueError, match="dtype object"):
        snap(x=np.array([{}]))


def check(found: Snapshot, **changes: object) -> None:
    expected = {"peer": "c", "run": RUN, "mixing": 1, "like": model("a")} | changes
    check_snapshot(found, **expected)


def test_a_good_snapshot_passes() -> None:
    check(snapshot("c"))


@pytest.mark.parametrize("fault", SNAPSHOT_FAULTS)
def test_each_fault_has_its_rejection(fault: Fault) -> None:
    with pytest.raises(RejectedSnapshot) as rejected:
        check(spoil(snapshot("c"), fault))
    assert rejected.value.rejection is REJECTED_AS[fault]
    assert str(rejected.value).startswith(REJECTED_AS[fault].value)


def test_to_catch_up_any_mixing_and_any_arrays_pass_but_not_a_nan() -> None:
    newer = snapshot("c", mixing=9, arrays={"other": np.zeros(2)})
    check(newer, mixing=None, like=None)
    with pytest.raises(RejectedSnapshot) as rejected:
        check(snapshot("c", arrays={"other": np.array([np.nan])}), mixing=None, like=None)
    assert rejected.value.rejection is Rejection.NOT_FINITE
