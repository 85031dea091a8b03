"""Runs, read back from their output folders."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from mll_flower.results.runs import HubRow, labels_for, load_run, metric_name, parse_row
from tests.support.run_folders import write_run


def test_a_finished_run_is_read(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "a", hubs=3, workers_per_hub=2, rounds=8))
    assert run.name == "a"
    assert run.finished
    assert run.config["tau"] == 4
    assert len(run.evaluations) == 9
    assert len(run.hub_rows) == 24
    assert run.hub_rows[4] == HubRow(8, 2, 1, 8, 0.5, 0.4, 2000, 0, 1.0)
    assert run.network.hubs == 3
    assert run.network.p.tolist() == [0.5, 0.5, 1, 1, 1, 1]
    assert run.zeta == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ("slots", [0, 4, 8]),
        ("rounds", [0, 1, 2]),
        ("steps", [0, 24, 48]),
        ("bytes", [0, 1000, 2000]),
        ("seconds", [0, 0.5, 1]),
    ],
)
def test_curves_over_every_axis(tmp_path: Path, x: str, expected: list[float]) -> None:
    run = load_run(write_run(tmp_path / "a", rounds=2))
    xs, ys = run.series(x, "loss")
    assert xs.tolist() == expected
    assert ys == pytest.approx([2, 1, 2 / 3])
    assert run.series(x, "test_loss")[1] == pytest.approx([2.2, 1.1, 2.2 / 3])
    assert run.series(x, "accuracy")[1] == pytest.approx([0, 1 / 3, 2 / 3])


def test_unknown_axes_are_named(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "a"))
    with pytest.raises(ValueError, match=r"'epochs' is not known: use slots, rounds"):
        run.series("epochs", "loss")
    with pytest.raises(ValueError, match=r"'f1' is not known: use accuracy"):
        run.series("slots", "f1")


def test_best_and_final_values_of_a_run_that_diverged(tmp_path: Path) -> None:
    losses = [2.0, 1.0, math.inf, math.nan]
    run = load_run(write_run(tmp_path / "a", rounds=3, losses=losses))
    assert run.best("loss") == 1.0
    assert math.isnan(run.final("loss"))
    assert run.best("accuracy") == run.final("accuracy") == 0.75
    diverged = load_run(write_run(tmp_path / "b", rounds=1, losses=[math.nan] * 2))
    assert math.isnan(diverged.best("loss"))
    unevaluated = load_run(write_run(tmp_path / "c", evaluations=False))
    assert math.isnan(unevaluated.best("accuracy"))
    assert math.isnan(unevaluated.final("accuracy"))


def test_the_first_evaluation_that_reaches_an_accuracy(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "a", rounds=3))
    found = run.reached(0.5)
    assert found is not None
    assert (found["slot"], found["bytes"]) == (8, 2000)
    assert run.reached(0.76) is None


def test_expected_steps_follow_the_clock(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "a", rounds=8, tau=4))
    assert run.expected_steps().tolist() == [16, 16, 32, 32, 32, 32]
    waiting = load_run(write_run(tmp_path / "b", rounds=8, tau=4, wait_for_all=True))
    assert waiting.expected_steps().tolist() == [32] * 6


def test_an_unfinished_run_is_read_as_far_as_it_has_got(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", rounds=3)
    whole = load_run(path)
    (path / "metrics.json").unlink()
    with (path / "metrics.csv").open("a") as file:
        file.write("16,4,0,8,0.2")
    run = load_run(path)
    assert not run.finished
    assert run.hub_rows == whole.hub_rows
    for x in ("slots", "steps", "bytes", "seconds"):
        for ours, theirs in zip(run.series(x, "loss"), whole.series(x, "loss"), strict=True):
            np.testing.assert_allclose(ours, theirs)
    assert math.isnan(run.zeta)
    assert (run.summary["slot"], run.summary["steps"]) == (12, 3 * 3 * 8)
    with pytest.raises(ValueError, match="has not finished, without its network"):
        _ = run.network


def test_an_unfinished_run_knows_its_network_from_the_start(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", rounds=3)
    whole = load_run(path)
    (path / "metrics.json").rename(path / "unfinished.json")
    run = load_run(path)
    assert not run.finished
    assert run.zeta == whole.zeta
    assert run.network.p.tolist() == whole.network.p.tolist()
    assert run.evaluations[-1]["loss"] == whole.evaluations[-1]["loss"]
    assert (run.summary["slot"], run.summary["rounds"], run.summary["accuracy"]) == (12, 3, 0.75)
    # The run finishes while it is read: what was written last counts.
    (path / "metrics.json").write_text((path / "unfinished.json").read_text())
    assert load_run(path).finished


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere is not a folder"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(
        ValueError, match=r"not a run's output \(it needs config.json and metrics.csv\)$"
    ):
        load_run(tmp_path)
    write_run(tmp_path / "a")
    with pytest.raises(ValueError, match=r"it contains runs, such as .*a: name one of them$"):
        load_run(tmp_path)


def test_broken_files_are_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    table, result = path / "metrics.csv", path / "metrics.json"
    good_table, good_result = table.read_text(), result.read_text()

    table.write_text(good_table + "x,4,0,8,0.2,,,0.1,4000,0,2\n")
    with pytest.raises(ValueError, match=r"metrics.csv, line \d+: .*'x'.* is not a row"):
        load_run(path)
    table.write_text(good_table + "16,4,0,8\n")
    with pytest.raises(ValueError, match="is not a row"):
        load_run(path)
    table.write_text(good_table.replace("distance", "length", 1))
    with pytest.raises(ValueError, match="columns distance are missing"):
        load_run(path)
    table.write_text(good_table)

    result.write_text("{")
    with pytest.raises(ValueError, match=r"metrics.json cannot be read"):
        load_run(path)
    result.write_text("[]")
    with pytest.raises(ValueError, match=r"an object was expected, not list"):
        load_run(path)
    broken = json.loads(good_result)
    del broken["workers"]
    result.write_text(json.dumps(broken))
    with pytest.raises(ValueError, match="workers is missing"):
        load_run(path)


def test_labels_are_those_given_or_the_folders_names(tmp_path: Path) -> None:
    runs = [load_run(write_run(tmp_path / name)) for name in ("x/a", "y/a", "b")]
    assert labels_for(runs) == [str(tmp_path / "x/a"), str(tmp_path / "y/a"), "b"]
    assert labels_for(runs, ["1", "2", "3"]) == ["1", "2", "3"]
    with pytest.raises(ValueError, match="2 labels for 3 runs"):
        labels_for(runs, ["1", "2"])


def test_a_row_may_have_another_metric() -> None:
    row = {"slot": "8", "round": "2", "hub": "all", "steps": "9", "loss": "0.5", "mae": "3"}
    row |= {"test_loss": "0.6", "distance": "", "bytes": "7", "absent": "0", "seconds": "1.5"}
    record = parse_row(row)
    assert isinstance(record, dict)
    assert (record["mae"], record["bytes"], metric_name(record)) == (3.0, 7, "mae")
    assert "distance" not in record
    assert metric_name({"slot": 1, "accuracy": 0.5, "evaluation_seconds": 2}) == "accuracy"
