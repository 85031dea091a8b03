"""Runs on Flower's simulation engine, timed by what they record, so that start-up is left out."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from benchmarks.report import cores
from mll_flower.config import RunConfig
from mll_flower.processes.flower_environment import app_directory
from mll_flower.processes.simulation import run_app, simulation_superlink
from mll_flower.results import files


def _run(app: Path, values: dict[str, Any], nodes: int, home: Path) -> None:
    federation = {
        "num-supernodes": nodes,
        "client-resources-num-cpus": 1,
        "init-args-num-cpus": cores(),
        "init-args-log-to-driver": False,
    }
    # Ray starts actors at nice 15, where they would wait for whatever else the machine does.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # A benchmark that is terminated must end Flower's processes too.
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    try:
        with simulation_superlink(home) as superlink:
            run_app(superlink, app, values, federation, lambda line: None)
    finally:
        signal.signal(signal.SIGTERM, before)


def run_ours(values: dict[str, Any], output: Path, home: Path) -> Path:
    """Run this project's app; return the folder of its results."""
    config = RunConfig.read({**values, "output": str(output.absolute())})
    _run(app_directory(), config.to_run_config(), config.nodes, home)
    return output


def message_ends(output: Path) -> list[float]:
    """Return the seconds at which the replies to each message had been averaged and mixed."""
    with (output / files.ROWS).open(newline="") as file:
        return [float(row["seconds"]) for row in csv.DictReader(file) if row["hub"] == "0"]


def run_fedavg(values: dict[str, Any], output: Path, home: Path) -> list[float]:
    """Run Flower's FedAvg with one SuperNode per worker; return the times at which rounds ended."""
    config = RunConfig.read(values)
    workers = sum(config.worker_counts())
    app = Path(__file__).resolve().parent / "fedavg_app"
    wanted = ("tau", "dataset", "data-dir", "model", "batch-size", "learning-rate", "slots")
    ours = {key: value for key, value in config.to_run_config().items() if key in wanted}
    ours |= {"workers-per-hub": str(workers), "output": str(output.absolute())}
    _run(app, ours, workers, home)
    ended: list[float] = json.loads(output.read_text())
    return ended
