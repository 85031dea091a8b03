"""Sweeps that are killed: nothing goes on behind them, and the same command continues them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from mll_flower.cli import app
from mll_flower.config import RunConfig
from mll_flower.models.checkpoint import FILE as CHECKPOINT
from mll_flower.results import files
from mll_flower.sweeps.cache import is_finished, run_folder
from mll_flower.sweeps.parts import share_begun, share_done
from mll_flower.sweeps.playing import play
from mll_flower.sweeps.runner import missing, play_all

pytestmark = pytest.mark.timeout(500)

# With many checkpoints, and long enough to be stopped in its middle.
LONG = {"hubs": 2, "workers-per-hub": "2", "model": "logistic", "rates": "0.9", "tau": 4, "q": 1}
LONG |= {"slots": 1200, "evaluate-every": 400, "checkpoint-every": 10, "graph": "path"}

BATCH = """
import json, sys
from pathlib import Path
from mll_flower.config import RunConfig
from mll_flower.sweeps.runner import missing, play_all
if __name__ == "__main__":
    config = RunConfig.from_run_config(json.loads(sys.argv[2]))
    play_all(missing(Path(sys.argv[1]), [config]), 1)
"""


def wait_for(condition: Callable[[], Any], what: str, process: subprocess.Popen[str]) -> Any:
    for _ in range(4000):
        if found := condition():
            return found
        assert process.poll() is None, f"ended before {what}"
        time.sleep(0.05)
    raise AssertionError(f"no {what}")


def player_of(part: Path) -> psutil.Process:
    return psutil.Process(int(part.name.split(".")[-2]))


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def test_a_killed_batch_loses_nothing_before_its_checkpoints(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    config = RunConfig.from_run_config(LONG)
    folder = run_folder(tmp_path, config)
    script = tmp_path / "batch.py"
    script.write_text(BATCH)
    batch = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), json.dumps(LONG)], text=True
    )
    started.append(batch)
    checkpoint = wait_for(
        lambda: next(tmp_path.glob(f"runs/*.part/{CHECKPOINT}"), None), "checkpoint", batch
    )
    player = player_of(checkpoint.parent)
    wait_for(lambda: json.loads((checkpoint.parent / files.PROGRESS).read_text()), "slots", batch)
    assert share_begun(folder) == 0  # the part is in use
    batch.kill()
    assert player.wait(10) is not None or not player.is_running()
    assert not is_finished(folder)
    (job,) = missing(tmp_path, [config])
    assert play_all([job], 1) == {}
    assert is_finished(folder)
    assert sorted(p.name for p in folder.parent.iterdir()) == [folder.name]
    assert not (folder / CHECKPOINT).exists()
    # It went on, and has the numbers of a run that nothing stopped.
    played = json.loads((folder / files.METRICS).read_text())
    assert played["config"]["resume"]
    play(replace(config, checkpoint_every=0), tmp_path / "whole")
    whole = json.loads((tmp_path / "whole" / files.METRICS).read_text())
    for e, f in zip(played["evaluations"], whole["evaluations"], strict=True):
        assert (e["slot"], e["steps"], e["loss"]) == (f["slot"], f["steps"], f["loss"])


def test_a_sweep_that_is_asked_to_end_is_continued_by_the_same_command(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    file, out = tmp_path / "two.toml", tmp_path / "out"
    settings = "\n".join(f"{key} = {json.dumps(value)}" for key, value in LONG.items())
    file.write_text(
        f"seeds = 2\n[settings]\n{settings}\n[grid]\nlearning-rate = [0.2, 1e-6]\n"
        '[[claim]]\nfirst = "learning-rate=0.2"\nsecond = "learning-rate=1e-06"\n'
    )
    arguments = ["sweep", str(file), "--out", str(out), "--jobs", "1"]
    code = "from mll_flower.cli import app; app()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    started.append(process)

    def ended() -> list[Path]:
        found = out.glob(f"runs/*/{files.METRICS}")
        return [path for path in found if path.parent.suffix != ".part"]

    finished = wait_for(ended, "finished run", process)

    def begun() -> list[Path]:
        found = [path.parent for path in out.glob(f"runs/*.part/{CHECKPOINT}")]
        return [part for part in found if share_done(part) > 0]

    parts = wait_for(begun, "second run", process)
    players = [player_of(part) for part in parts]
    before = finished[0].stat().st_mtime_ns
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert re.search(r"Interrupted: \d of 4 runs were played. The same command goes on", output)
    assert not any(player.is_running() for player in players)
    state = json.loads((out / "sweep.json").read_text())
    assert (state["format"], state["state"]) == (1, "interrupted")
    assert {run["state"] for run in state["runs"]} == {"finished", "waiting"}

    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "2 set-ups, seeds 0, 1: 4 runs," in text
    assert "from checkpoints" in text
    assert "holds" in text
    assert finished[0].stat().st_mtime_ns == before
    assert {path.suffix for path in out.glob("runs/*")} == {""}
    state = json.loads((out / "sweep.json").read_text())
    assert state["state"] == "finished"
    assert {run["state"] for run in state["runs"]} == {"finished"}
    assert {run["folder"] for run in state["runs"]} == {
        f"runs/{p.name}" for p in out.glob("runs/*")
    }
    results = json.loads((out / "results.json").read_text())
    assert (results["seeds"], results["slot"]) == ([0, 1], 1200)
    assert [v["verdict"] for v in results["verdicts"]] == ["holds"]
    for name in ("curves.png", "values.png"):
        assert (out / name).read_bytes()[:4] == b"\x89PNG"
    assert len((out / "evaluations.csv").read_text().splitlines()) == 1 + 4 * 4
    again = CliRunner().invoke(app, [*arguments, "--finished"])
    assert again.exit_code == 0, again.output
    assert "to play" not in again.output


def test_a_sweep_without_finished_runs_says_so(tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_text("[settings]\nslots = 64\n")
    result = CliRunner().invoke(app, ["sweep", str(file), f"--out={tmp_path}", "--finished"])
    assert result.exit_code == 2
    assert "no seed has ended in all set-ups yet" in result.output
    file.write_text("[settings]\ntau = 0\n")
    result = CliRunner().invoke(app, ["sweep", str(file), f"--out={tmp_path}"])
    assert result.exit_code == 2
    assert "set-up 'settings': tau=0" in " ".join(result.output.split())
    assert not (tmp_path / "sweep.json").exists()
