"""Ctrl-C in a run: where the results are, and a command that goes on."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mll_flower.cli import app
from mll_flower.results.recorder import Recorder
from mll_flower.results.runs import load_run

OPTIONS = ["run", "--in-process", "--hubs", "2", "--workers-per-hub", "1", "--tau", "2", "--q", "1"]
OPTIONS += ["--slots", "40", "--model", "logistic", "--evaluate-limit", "100"]


@pytest.fixture(autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Let Ctrl-C do what it does in a terminal; the tests may run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_after(monkeypatch: pytest.MonkeyPatch, evaluations: int) -> None:
    """Press Ctrl-C at an evaluation."""
    record, count = Recorder.evaluation, []

    def interrupted(self: Recorder, *values: object, **more: object) -> object:
        count.append(1)
        if len(count) > evaluations:
            signal.raise_signal(signal.SIGINT)
        return record(self, *values, **more)

    monkeypatch.setattr(Recorder, "evaluation", interrupted)


def test_the_command_that_an_interrupted_run_prints_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "it's a run"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 5)
        options = [*OPTIONS, "--checkpoint-every", "1", "--output", str(output)]
        result = CliRunner().invoke(app, options)
    assert result.exit_code == 130
    assert f"The results so far are in {output}" in result.output
    command = shlex.split(result.output.strip().splitlines()[-1])
    assert command[0] == "mll-flower"
    result = CliRunner().invoke(app, [*command[1:], "--in-process"])
    assert result.exit_code == 0, result.output
    assert load_run(output).finished


def test_without_a_checkpoint_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_after(monkeypatch, 5)
    result = CliRunner().invoke(app, [*OPTIONS, "--output", str(tmp_path / "run")])
    assert result.exit_code == 130
    assert "no checkpoint to go on from: --checkpoint-every 1 makes more" in result.output
