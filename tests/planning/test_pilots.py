"""Playing runs: they end at their target, and no process outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from mll_flower.config import RunConfig
from mll_flower.planning.pilots import Job, Players, play

CONFIG = RunConfig(
    hubs=2, workers_per_hub="2", tau=4, q=1, slots=64, model="mlp", rates="1", checkpoint_every=0
)


def job(folder: Path, **values: object) -> Job:
    return Job(replace(CONFIG, output=str(folder / "run")), **values)  # type: ignore[arg-type]


def test_a_run_ends_at_its_target(tmp_path: Path) -> None:
    whole = play(job(tmp_path))
    assert (whole.rounds[-1], whole.reached) == (16, False)
    target = whole.values[3]
    cut = play(job(tmp_path, target=target, keep=True))
    assert cut.reached
    assert cut.values == whole.values[: len(cut.values)]
    assert cut.values[-1] >= target > max(cut.values[:-1])
    assert (tmp_path / "run").is_dir()  # kept


def test_a_loss_falls_to_its_target(tmp_path: Path) -> None:
    curve = play(job(tmp_path, target=2.2, measure="test_loss", falls=True))
    assert curve.reached
    assert curve.values[-1] <= 2.2 < curve.values[-2]
    assert not (tmp_path / "run").exists()


def test_a_run_that_fails_is_named(tmp_path: Path) -> None:
    bad = replace(CONFIG, output=str(tmp_path / "bad"), mixing="no-such-rule")
    with (
        Players(1) as players,
        pytest.raises(RuntimeError, match=r"bad: ValueError: .*no-such-rule"),
    ):
        players.play_all([Job(bad)], lambda curve: None)


PARENT = """
import sys
from pathlib import Path
from dataclasses import replace
from mll_flower.config import RunConfig
from mll_flower.planning.pilots import Job, Players

if __name__ == "__main__":
    config = RunConfig(model="cnn", slots=100000, output=sys.argv[1], checkpoint_every=0)
    with Players(1) as players:
        players.play_all([Job(config)], lambda curve: None)
"""


@pytest.mark.slow
def test_no_process_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    command = [sys.executable, str(tmp_path / "parent.py"), str(tmp_path / "run")]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "run" / "metrics.csv").is_file():
            assert time.monotonic() < deadline
            time.sleep(0.2)
        children = psutil.Process(parent.pid).children(recursive=True)
        assert children
        os.kill(parent.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(children, timeout=20)
        assert not alive
    finally:
        parent.kill()
        parent.wait()
