"""``mll-flower resume``: no option retyped, and a run can be made longer."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from mll_flower.cli import app
from tests.support.simulated import Results, play

SETTINGS = {"pool": "hub", "slots": 32, "checkpoint_every": 1}


@pytest.fixture(autouse=True)
def no_plots():
    """They take longer than the runs."""
    with patch("mll_flower.results.plots.plot_run"):
        yield


def resume(*options: object):
    return CliRunner().invoke(app, ["resume", *map(str, options), "--in-process"])


def interrupted(output: Path) -> None:
    calls = []

    def stop() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(output, on_message=stop, **SETTINGS)


def test_an_interrupted_run_ends_in_its_folder_as_if_nothing_had_happened(tmp_path):
    whole = play(tmp_path / "whole", **SETTINGS)
    interrupted(tmp_path / "part")
    result = resume(tmp_path / "part")
    assert result.exit_code == 0, result.output
    assert Results(tmp_path / "part").same_model(whole)
    assert Results(tmp_path / "part").timeless == whole.timeless


def test_a_run_that_has_ended_is_made_longer(tmp_path):
    whole = play(tmp_path / "whole", **{**SETTINGS, "slots": 64})
    play(tmp_path / "run", **SETTINGS)
    result = resume(tmp_path / "run", "--slots", 64)
    assert result.exit_code == 0, result.output
    assert Results(tmp_path / "run").same_model(whole)
    assert Results(tmp_path / "run").report["summary"]["slot"] == 64
    assert Results(tmp_path / "run").config.slots == 64


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        (None, [], "holds no run: give the folder that mll-flower run wrote"),
        ({"checkpoint_every": 0}, [], "has no checkpoint: the run was made with"),
        ({}, [], "has ended: give more --slots to make it longer"),
        ({}, ["--slots", "16"], "was made with slots=32, this run has 16"),
    ],
    ids=str,
)
def test_what_cannot_be_resumed_is_explained(tmp_path, settings, options, message):
    if settings is not None:
        play(tmp_path / "run", **{**SETTINGS, **settings})
    result = resume(tmp_path / "run", *options)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    if settings is not None:
        assert Results(tmp_path / "run").report["summary"]["slot"] == 32
