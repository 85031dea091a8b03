"""Which runs are seeds of one setting, and what differs between runs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from mll_flower.results.comparison import differing_settings, group_by_setting, merge_rows
from mll_flower.results.runs import load_run
from tests.support.run_folders import write_run

ROW = {
    "run": "a",
    "preset": "mll-sgd",
    "tau": 4,
    "q": 2,
    "graph": "ring",
    "slot": 8,
    "zeta": 0.5,
    "final_loss": 1.0,
    "best_loss": 1.0,
    "final_accuracy": 0.5,
    "best_accuracy": 0.5,
}


def test_runs_that_differ_in_the_seed_alone_are_one_group(tmp_path: Path) -> None:
    settings = [
        {"seed": 1, "output": "x"},
        {"seed": 2, "tau": 8},
        {"seed": 2, "output": "y"},
        {"seed": 1},  # the same run again is no further seed
        {},  # a run that does not say
    ]
    runs = [load_run(write_run(tmp_path / str(i), **s)) for i, s in enumerate(settings)]
    assert group_by_setting(runs) == [[0, 2], [1], [3], [4]]
    (tmp_path / "2" / "metrics.json").unlink()
    assert group_by_setting([load_run(run.path) for run in runs]) == [[0], [1], [2], [3], [4]]


def test_settings_that_differ(tmp_path: Path) -> None:
    first = load_run(write_run(tmp_path / "a", seed=1, output="x", tau=4))
    second = load_run(write_run(tmp_path / "b", seed=2, output="y", tau=8, hubs=4, rounds=4))
    # tau is a column of the table anyway; the output is no setting.
    assert differing_settings([first, second]) == ["hubs", "seed"]
    assert differing_settings([first, first]) == []


def test_a_row_of_several_seeds(tmp_path: Path) -> None:
    merged = merge_rows([{**ROW, "final_loss": loss, "zeta": 0.5} for loss in (1.0, 2.0)])
    assert merged["final_loss"] == pytest.approx((1.5, 12.706 * 0.5), rel=1e-4)
    assert merged["best_accuracy"] == (0.5, 0.0)
    assert (merged["zeta"], merged["tau"]) == (0.5, 4)
    assert merged["run"] == "a and others: 2 seeds"
    diverged = merge_rows([{**ROW, "final_loss": loss} for loss in (1.0, math.nan)])
    assert math.isnan(diverged["final_loss"][0])
    assert merge_rows([ROW]) == ROW
