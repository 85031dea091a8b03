"""`mll_flower.load_run` of a deployed hub's folder; of a simulation in tests/results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import mll_flower
from mll_flower.deployment.hub_state import ROUNDS_FILE, Phase, write_now
from tests.support.run_folders import write_hub


def test_a_hub_that_goes_on_is_read_as_far_as_it_has_got(tmp_path: Path) -> None:
    result = mll_flower.load_run(write_hub(tmp_path))
    assert not result.finished
    assert result.title == "hub paris of trial"
    assert [(r["round"], r["hub"], r["steps"], r["absent"]) for r in result.rounds] == [
        (1, "paris", 0, 1),
        (2, "paris", 5, 0),
    ]
    (evaluation,) = result.evaluations
    assert evaluation == {
        "round": 2,
        "steps": 5,
        "loss": 1.0,
        "test_loss": 0.75,
        "accuracy": 0.5,
        "bytes": 211,
        "seconds": 15.0,
    }
    assert (result.summary["rounds"], result.summary["silent"]) == (2, 1)
    assert result.plot().axes[0].get_xlabel() == "round"
    assert "has not finished" in result._repr_html_()
    assert result.rounds_frame()["late"].tolist() == [-1.5, -1.5]
    with pytest.raises(ValueError, match=r"is a hub of a deployment: the report is one of simu"):
        result.report()


def test_a_hub_that_has_finished_has_its_model(tmp_path: Path) -> None:
    write_now(write_hub(tmp_path), {"run": "trial", "hub": "paris", "phase": Phase.FINISHED})
    save_file({"w": np.ones(2)}, tmp_path / "model.safetensors")
    result = mll_flower.load_run(tmp_path)
    assert result.finished
    assert result.model()["w"].tolist() == [1, 1]


def test_a_broken_record_is_named(tmp_path: Path) -> None:
    (tmp_path / ROUNDS_FILE).write_text("{}\n".replace("}", ""))
    with pytest.raises(ValueError, match=r"rounds\.jsonl, line 1: not a JSON object"):
        mll_flower.load_run(tmp_path)


def test_a_hub_before_its_first_round(tmp_path: Path) -> None:
    (tmp_path / ROUNDS_FILE).write_text('{"event": "begins", "time": 1.0, "round": 0}\n')
    result = mll_flower.load_run(tmp_path)
    assert (result.rounds, result.evaluations, result.summary["rounds"]) == ([], [], 0)


def test_a_folder_that_is_neither(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a run's output"):
        mll_flower.load_run(tmp_path)
