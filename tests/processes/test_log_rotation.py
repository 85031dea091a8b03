"""Files that are cut at a size, by name or by copy."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from mll_flower.processes import log_rotation
from mll_flower.processes.log_rotation import parts, rotate_by_copy, rotate_by_name
from mll_flower.processes.process_tree import Processes


@pytest.mark.parametrize("rotate", [rotate_by_name, rotate_by_copy])
def test_a_few_parts_are_kept(tmp_path: Path, rotate: object) -> None:
    path = tmp_path / "x.log"
    rotate(path, 10, 2)  # type: ignore[operator]
    for number in range(6):
        with path.open("a") as file:
            file.write(f"{number}" * 8 + "\n")
        rotate(path, 10, 2)  # type: ignore[operator]
    # Two lines each: with the second one, a file has more than 10 bytes.
    assert [part.name for part in parts(path) if part.stat().st_size] == ["x.log.2", "x.log.1"]
    lines = "".join(part.read_text() for part in parts(path)).split()
    assert lines == ["2" * 8, "3" * 8, "4" * 8, "5" * 8]
    assert not (tmp_path / "x.log.part").exists()


def test_other_files_are_no_parts(tmp_path: Path) -> None:
    for name in ("x.log", "x.log.1", "x.log.10", "x.log.2", "x.log.old", "x.logs.1"):
        (tmp_path / name).touch()
    assert [p.name for p in parts(tmp_path / "x.log")] == [
        "x.log.10",
        "x.log.2",
        "x.log.1",
        "x.log",
    ]
    assert parts(tmp_path / "none.log") == []


def test_a_file_without_an_end_is_kept_if_it_cannot_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "x.log"
    path.write_text("x" * 20)
    monkeypatch.setattr(log_rotation.shutil, "copy2", full)
    rotate_by_copy(path, 10)
    assert path.read_text() == "x" * 20


def test_the_log_of_a_running_process_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "x.log"
    monkeypatch.setattr(
        "mll_flower.processes.process_tree.rotate_by_copy", lambda path: rotate_by_copy(path, 200)
    )
    code = "import time\nfor n in range(300): print(f'line {n:03}', flush=True); time.sleep(0.01)"
    with Processes() as processes:
        processes.start("writer", [sys.executable, "-c", code], {}, log)
        end = time.monotonic() + 30
        while not (tmp_path / "x.log.2").exists():
            assert not processes.ended()
            assert time.monotonic() < end
            time.sleep(0.02)
    text = b"".join(part.read_bytes() for part in parts(log))
    assert b"\0" not in text, "the writer goes on at the beginning of the emptied file"
    numbers = [int(line.split()[1]) for line in text.splitlines() if len(line) == 8]
    assert numbers == sorted(numbers)
    assert all(part.stat().st_size < 5000 for part in parts(log))
