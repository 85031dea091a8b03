"""Partitions of the user's own: functions and files, checked row by row."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mll_flower.tasks.partitions import parse_partition, partition
from tests.support.own_work import write_user_files

LABELS, HUB_OF = np.arange(12) % 3, np.array([0, 0, 1])


def test_a_function_and_files_give_the_rows(tmp_path: Path) -> None:
    write_user_files(tmp_path)
    rows = [[0, 1], [2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    np.savez(tmp_path / "rows.npz", *rows)
    for spec in ("mine.py:unequal", "rows.json", "rows.npz", f"{tmp_path}/rows.json"):
        assert parse_partition(spec).name == "own"
        parts = partition(spec, LABELS, HUB_OF, 0, str(tmp_path))
        assert [part.tolist() for part in parts] == rows
        assert all(part.dtype == np.int64 for part in parts)


def test_rows_may_overlap_and_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text("[[3, 1], [1, 1], [11]]")
    parts = partition("rows.json", LABELS, HUB_OF, 0, str(tmp_path))
    assert [part.tolist() for part in parts] == [[3, 1], [1, 1], [11]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[0], [1]]", "gives 2 lists for 3 workers"),
        ("[[0], [1], []]", r"worker 2 has rows of shape \(0,\)"),
        ("[[0], [1.5], [2]]", "worker 1 has rows .*dtype float64"),
        ("[[0], [1], 2]", r"worker 2 has rows of shape \(\)"),
        ('[[0], [1], "abc"]', "worker 2 has rows"),
        ("[[0], [1], [12]]", "worker 2 has rows from 12 to 12: .*0 to 11"),
        ("[[-1], [1], [2]]", "worker 0 has rows from -1"),
        ("7", "gives a int for 3 workers"),
        ("[[0], [1]", "cannot be read"),
    ],
)
def test_rows_that_cannot_be_are_explained(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        partition("rows.json", LABELS, HUB_OF, 0, str(tmp_path))
    assert "partition='rows.json'" in str(error.value)


def test_partitions_by_class_need_classes() -> None:
    numbers = np.linspace(0, 1, 12)
    for spec in ("dirichlet(0.5)", "by-hub"):
        with pytest.raises(ValueError, match=r"goes by classes, .* use iid, sized"):
            partition(spec, numbers, HUB_OF, 0)
    by_size = partition("shards(1)", numbers, HUB_OF, 0)
    assert sorted(part.tolist() for part in by_size) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    same = partition("iid", LABELS, HUB_OF, 0)
    for labels in (numbers, np.stack([LABELS, LABELS], 1)):
        assert [p.tolist() for p in partition("iid", labels, HUB_OF, 0)] == [
            p.tolist() for p in same
        ]
