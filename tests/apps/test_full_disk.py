"""A disk that is full: one line for the user, and a run that needs no checkpoint goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mll_flower.models.checkpoint import FILE
from tests.support.simulated import play

# The limit on the size of a file stands for a full disk: writing fails in the same way.
CODE = """
import resource
from mll_flower.cli import app
resource.setrlimit(resource.RLIMIT_FSIZE, (14_000, 14_000))
app()
"""


def test_results_that_cannot_be_written_are_one_line(tmp_path):
    output = tmp_path / "out"
    options = ["--hubs", "2", "--tau", "4", "--q", "1", "--model", "logistic", "--slots", "1600"]
    ended = subprocess.run(
        [sys.executable, "-c", CODE, "run", "--in-process", *options, "--output", str(output)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert ended.returncode == 2, ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"Error: the results cannot be written into {output}: File too large")
    assert "Traceback" not in ended.stdout + ended.stderr


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(tmp_path):
    # A folder where the file would be written.
    (tmp_path / "out" / f"{FILE}.part").mkdir(parents=True)
    run = play(tmp_path / "out", checkpoint_every=1)
    assert run.same_model(play(Path(tmp_path / "other")))
    assert not (tmp_path / "out" / FILE).exists()
