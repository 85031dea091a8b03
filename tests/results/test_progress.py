"""The file through which a run tells its progress bar how far it has got."""

from __future__ import annotations

from pathlib import Path

import pytest

from mll_flower.results import progress
from mll_flower.results.progress import (
    ProgressWriter,
    loss_and_metric,
    newest_evaluation,
    read_progress,
)


def test_what_is_written_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = ProgressWriter(tmp_path, slots=64)
    assert read_progress(tmp_path) is None
    writer.evaluated(8, {"loss": 0.5, "accuracy": 0.25})
    values = {"total": 64, "slot": 8, "evaluated": 8, "loss": 0.5, "accuracy": 0.25}
    assert read_progress(tmp_path) == values
    assert capsys.readouterr().out == ""
    writer.values["done"] = True
    writer.write()
    assert capsys.readouterr().out == "slot 8 of 64  loss 0.5000  accuracy 0.2500\n"


def test_a_line_has_the_slot_of_its_loss_and_is_printed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    writer = ProgressWriter(tmp_path, slots=24)
    for slot in (8, 16, 24):
        # The end of a round, and some time later the evaluation of the model after it.
        now += 6
        writer.values["slot"] = slot
        writer.write()
        now += 6
        writer.evaluated(slot, {"loss": 1 / slot, "accuracy": slot / 100})
    writer.values["done"] = True
    writer.write()
    assert capsys.readouterr().out.splitlines() == [
        "slot 8 of 24  loss 0.1250  accuracy 0.0800",
        "slot 16 of 24  loss 0.0625  accuracy 0.1600",
        "slot 24 of 24  loss 0.0417  accuracy 0.2400",
    ]


def test_the_bar_says_of_which_slot_the_loss_is() -> None:
    values = {"total": 64, "slot": 8, "evaluated": 8, "loss": 0.5, "accuracy": 0.25}
    assert newest_evaluation(values) == "loss 0.5000  accuracy 0.2500"
    assert newest_evaluation({**values, "slot": 16}) == "loss 0.5000  accuracy 0.2500  (slot 8)"
    assert newest_evaluation({"total": 64, "slot": 8}) == ""
    values = {"slot": 8, "evaluated": 8, "loss": 0.5, "mae": 3.0, "metric": "mae"}
    assert newest_evaluation(values) == "loss 0.5000  mae 3.0000"


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
