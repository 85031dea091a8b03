"""Runs on Flower's simulation engine, timed by what they record themselves: start-up apart."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from mll_flower.config import RunConfig
from mll_flower.processes.simulation import app_directory, run_app, simulation_superlink


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _run(app: Path, values: dict[str, Any], nodes: int, home: Path) -> None:
    federation = {
        "num-supernodes": nodes,
        "client-resources-num-cpus": 1,
        "init-args-num-cpus": cores(),
        "init-args-log-to-driver": False,
    }
    # Ray starts actors at nice 15: beside other work that would time the other work.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Whoever ends the benchmark ends Flower's processes with it.
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    try:
        with simulation_superlink(home) as superlink:
            run_app(superlink, app, values, federation, lambda line: None)
    finally:
        signal.signal(signal.SIGTERM, before)


def run_ours(values: dict[str, Any], output: Path, home: Path) -> Path:
    """Run this project's app; return where its results are."""
    config = RunConfig.read({**values, "output": str(output.absolute())})
    _run(app_directory(), config.to_run_config(), config.hubs, home)
    return output


def message_ends(output: Path) -> list[float]:
    """Seconds at which each message of a run had been averaged and mixed."""
    with (output / "metrics.csv").open(newline="") as file:
        return [float(row["seconds"]) for row in csv.DictReader(file) if row["hub"] == "0"]


def run_fedavg(values: dict[str, Any], output: Path, home: Path) -> list[float]:
    """Run Flower's FedAvg with a SuperNode a worker; return when each round ended."""
    config = RunConfig.read(values)
    nodes = sum(config.worker_counts())
    app = Path(__file__).resolve().parent / "fedavg_app"
    wanted = ("tau", "dataset", "data-dir", "model", "batch-size", "learning-rate", "slots")
    ours = {key: value for key, value in config.to_run_config().items() if key in wanted}
    ours |= {"workers-per-hub": str(nodes), "output": str(output.absolute())}
    _run(app, ours, nodes, home)
    ended: list[float] = json.loads(output.read_text())
    return ended
