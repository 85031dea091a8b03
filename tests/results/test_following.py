"""A run in another process, followed through its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mll_flower.results.following import RowFollower
from tests.support.run_folders import write_run


def test_rows_are_given_once_and_whole(tmp_path: Path) -> None:
    text = (write_run(tmp_path / "a", hubs=2, rounds=2) / "metrics.csv").read_bytes()
    folder = tmp_path / "b"
    folder.mkdir()
    seen: list[tuple[str, Any]] = []

    def follow(record: dict[str, Any]) -> None:
        seen.append((str(record.get("hub", "all")), record["slot"]))

    rows = RowFollower(folder, follow, follow)
    rows.look()  # before the run has begun
    for end in range(0, len(text) + 1, 7):
        (folder / "metrics.csv").write_bytes(text[:end])
        rows.look()
    (folder / "metrics.csv").write_bytes(text)
    rows.look()
    rows.look()
    expected = [("all", 0), ("0", 4), ("1", 4), ("all", 4), ("0", 8), ("1", 8), ("all", 8)]
    assert seen == expected
    del seen[:]
    RowFollower(folder, follow, follow, skip=4).look()
    assert seen == expected[4:]
