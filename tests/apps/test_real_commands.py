"""Real commands with Flower: many at once, own modules on PYTHONPATH, and a clock."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from mll_flower.apps.launch import run_in_process
from mll_flower.results import files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

COMMAND = str(Path(sys.executable).parent / "mll-flower")
SMALL: dict[str, Any] = {
    "hubs": 2,
    "workers-per-hub": "2",
    "model": "logistic",
    "tau": 2,
    "q": 2,
    "slots": 64,
    "evaluate-limit": 100,
}
RUNS = 20


def options(values: dict[str, Any]) -> list[str]:
    return [text for key, value in values.items() for text in (f"--{key}", str(value))]


def rows_of(output: Path, *dropped: str) -> list[dict[str, str]]:
    with (output / files.ROWS).open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if k not in dropped} for row in rows]


def same_model(first: Path, second: Path) -> None:
    expected, found = load_file(first / files.MODEL), load_file(second / files.MODEL)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_twenty_runs_at_once_are_those_in_sequence(tmp_path: Path) -> None:
    """Twenty commands from a loop, in an empty folder, against runs one after another."""
    empty = tmp_path / "empty"
    empty.mkdir()
    run = " ".join([COMMAND, "run", *options(SMALL), "--actors", "1"])
    loop = f"for i in $(seq 0 {RUNS - 1}); do {run} --seed $i > log$i 2>&1 & done; wait"
    subprocess.run(["bash", "-c", loop], cwd=empty, check=True)
    logs = "\n".join((empty / f"log{i}").read_text() for i in range(RUNS))
    found = {
        json.loads((folder / files.METRICS).read_text())["config"]["seed"]: folder
        for folder in (empty / "runs").iterdir()
    }
    assert sorted(found) == list(range(RUNS)), logs
    for seed, folder in found.items():
        alone = tmp_path / f"alone{seed}"
        run_in_process({**SMALL, "seed": seed, "output": str(alone)}, plots=False, lines=False)
        seconds = ("seconds", "evaluation_seconds")
        assert rows_of(folder, *seconds) == rows_of(alone, *seconds)
        same_model(alone, folder)


LIBRARY = """
import numpy as np
from torch import nn

def load():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 200)
    x = (rng.normal(size=(200, 5)) + y[:, None]).astype(np.float32)
    return x[:150], y[:150], x[150:], y[150:]

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
"""


def test_modules_on_pythonpath_reach_the_actors(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "lib_work.py").write_text(LIBRARY)
    empty = tmp_path / "empty"
    empty.mkdir()
    values = {**SMALL, "model": "lib_work:Net", "dataset": "lib_work:load", "output": "out"}
    environment = {**os.environ, "PYTHONPATH": "../lib"}
    subprocess.run([COMMAND, "run", *options(values)], cwd=empty, env=environment, check=True)
    summary = json.loads((empty / "out" / files.METRICS).read_text())["summary"]
    assert summary["absent"] == 0
    assert summary["accuracy"] > 0.5


CLOCK = """
[clock]
model-megabytes = 1
[[region]]
name = "a"
workers = 2
seconds-per-step = [0.5, 4]
down-mbit = 8
up-mbit = 8
[[region]]
name = "b"
workers = 2
seconds-per-step = [0.5, 1]
down-mbit = 80
up-mbit = 8
[links]
mbit = 16
"""


def test_a_clock_counts_the_same_seconds_on_flower(tmp_path: Path) -> None:
    (tmp_path / "clock.toml").write_text(CLOCK)
    values = {k: v for k, v in SMALL.items() if k not in ("hubs", "workers-per-hub")}
    values["clock"] = "clock.toml"
    command = [COMMAND, "run", *options(values)]
    for name, more in (("flower", []), ("alone", ["--in-process"])):
        subprocess.run([*command, "--output", name, *more], cwd=tmp_path, check=True)
    flower, alone = tmp_path / "flower", tmp_path / "alone"
    assert rows_of(flower) == rows_of(alone)
    assert float(rows_of(flower)[-1]["seconds"]) > 32  # slots, of half a second; and transfers
    curves = [
        [record["seconds"] for record in json.loads((f / files.METRICS).read_text())["evaluations"]]
        for f in (flower, alone)
    ]
    assert curves[0] == curves[1]
    same_model(alone, flower)
