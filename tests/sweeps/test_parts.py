"""The folder of a run while it is played: claimed, taken over, never shared."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mll_flower.models.checkpoint import FILE as CHECKPOINT
from mll_flower.results import files
from mll_flower.sweeps.parts import claimed_part, part_folder, share_begun

UNUSED = 2_000_000_000  # no process has such a number


def leave(folder: Path, process: int, slot: int, checkpoint: bool = True) -> Path:
    """Leave a part as a process that was killed does."""
    kept = part_folder(folder, process)
    kept.mkdir()
    (kept / "playing.lock").touch()  # which nobody holds
    (kept / files.PROGRESS).write_text(json.dumps({"slot": slot, "total": 100}))
    if checkpoint:
        (kept / CHECKPOINT).touch()
    return kept


def test_a_part_gets_the_runs_name_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "run"
    with claimed_part(folder) as part:
        assert part == part_folder(folder, os.getpid())
        (part / "result").touch()
        (part / CHECKPOINT).touch()
        assert share_begun(folder) == 0  # it is in use
    assert [path.name for path in folder.iterdir()] == ["result"]
    # A second one that comes later leaves the first as it is.
    with claimed_part(folder) as part:
        (part / "other").touch()
    assert [path.name for path in folder.iterdir()] == ["result"]
    assert list(folder.parent.iterdir()) == [folder]


def test_the_abandoned_part_that_is_furthest_is_continued(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    # A name that begins alike is another run.
    other = leave(tmp_path / "run-2", UNUSED, 90)
    leave(folder, UNUSED, 20)
    leave(folder, UNUSED + 1, 60)
    leave(folder, UNUSED + 2, 80, checkpoint=False)
    assert share_begun(folder) == 0.6
    with claimed_part(folder) as part:
        assert json.loads((part / files.PROGRESS).read_text())["slot"] == 60
        assert sorted(tmp_path.iterdir()) == sorted([other, part])


def fail_after(folder: Path, name: str) -> None:
    with claimed_part(folder) as part:
        (part / name).touch()
        raise OSError("full")


def test_a_part_without_a_checkpoint_does_not_outlive_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for name, left in (("metrics.csv", []), (CHECKPOINT, [part_folder(folder, os.getpid())])):
        with pytest.raises(OSError, match="full"):
            fail_after(folder, name)
        assert list(tmp_path.iterdir()) == left
    with claimed_part(folder) as again:
        assert (again / CHECKPOINT).is_file()


def test_litter_of_earlier_versions_is_removed_but_nothing_in_use(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    dead, alive, new = (part_folder(folder, p) for p in (UNUSED, os.getppid(), UNUSED + 1))
    for part in (dead, alive, new):
        part.mkdir()
    for part in (dead, alive):
        os.utime(part, (0, 0))
    with claimed_part(folder):
        assert not dead.exists()
        assert alive.exists()
        assert new.exists()
