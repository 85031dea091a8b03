"""The file through which a run tells its progress bar how far it has got."""

from __future__ import annotations

from pathlib import Path

import pytest

from mll_flower.results import progress
from mll_flower.results.progress import ProgressWriter, loss_and_metric, read_progress


def test_what_is_written_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = ProgressWriter(tmp_path, slots=64)
    assert read_progress(tmp_path) is None
    writer.values.update(slot=8, loss=0.5, accuracy=0.25)
    writer.write()
    assert read_progress(tmp_path) == {"total": 64, "slot": 8, "loss": 0.5, "accuracy": 0.25}
    assert capsys.readouterr().out == ""
    writer.values["done"] = True
    writer.write()
    assert capsys.readouterr().out == "slot 8 of 64  loss 0.5000  accuracy 0.2500\n"


def test_the_file_is_not_written_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    writer = ProgressWriter(tmp_path, slots=64)
    assert not writer.due
    now += 0.5
    assert writer.due
    writer.write()
    assert not writer.due


def test_a_file_that_is_not_json_is_no_progress_yet(tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text('{"total": 6')
    assert read_progress(tmp_path) is None


def test_no_text_before_the_first_evaluation() -> None:
    assert loss_and_metric({"total": 64, "slot": 8}) == ""
