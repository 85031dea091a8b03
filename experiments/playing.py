"""What a process that plays runs does: measure, run, report."""

from __future__ import annotations

import logging
import math
import os
import shutil
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from experiments.derived import is_derived, make
from mll_flower.config import RunConfig

# Seconds that a measurement of speed takes at least.
_MEASURE = 0.4
# A model larger than this is not kept: it can be made again, and there are hundreds of runs.
_KEEP_BYTES = 1 << 20


def serve(pipe: Connection, data_dir: str, folder: str) -> None:
    """Answer orders until None comes: ("run", config, folder) or ("measure", config).

    An answer is (value, None), or (None, what went wrong).
    """
    import torch

    torch.set_num_threads(1)
    while (order := _next(pipe)) is not None:
        what, values, *rest = order
        try:
            config = _local(RunConfig(**values), data_dir, Path(folder))
            value = measure(config) if what == "measure" else play(config, Path(rest[0]))
            pipe.send((value, None))
        except Exception as error:
            pipe.send((None, f"{type(error).__name__}: {error}"))


def _next(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:  # who gave the orders is gone
        return None


def _local(config: RunConfig, data_dir: str, folder: Path) -> RunConfig:
    """Return the config with paths of this machine."""
    if is_derived(config.dataset):
        path = make(folder, data_dir or None)
        config = replace(config, dataset=f"npz:{path.absolute()}")
    return replace(config, data_dir=data_dir)


def play(config: RunConfig, folder: Path) -> float:
    """Play a run into a folder; the folder gets its name when the run has ended.

    Returns
    -------
    float
        Seconds that it took.
    """
    from mll_flower.apps.network_run import run_network
    from mll_flower.apps.worker_app import worker_app
    from mll_flower.grids.in_process import InProcessGrid

    logging.getLogger("flwr").setLevel(logging.ERROR)
    started = time.monotonic()
    part = part_folder(folder, os.getpid())
    shutil.rmtree(part, ignore_errors=True)
    config = replace(config, output=str(part))
    values = config.to_run_config()
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):  # there is a bar
        # A figure draws its runs together: four pictures for each of hundreds would take
        # longer than many of the runs. One thread: the other cores have runs of their own.
        run_network(
            InProcessGrid(worker_app(), config.nodes, values), values, plots=False, threads=1
        )
    model = part / "model.safetensors"
    if model.stat().st_size > _KEEP_BYTES:
        model.unlink()
    if folder.exists():  # another command was faster; the numbers are the same
        shutil.rmtree(part)
    else:
        part.rename(folder)
    return time.monotonic() - started


def part_folder(folder: Path, process: int | None) -> Path:
    """Where a run is while a process plays it."""
    return folder.with_name(f"{folder.name}.{process}.part")


def measure(config: RunConfig) -> tuple[float, float]:
    """Measure the seconds that a step takes here, in rounds of tau, and the evaluation of a row."""
    from mll_flower.training.run_engine import run_engine

    engine = run_engine(config)
    model = engine.initial()
    tau = config.tau

    def rounds(steps: int) -> None:
        count = steps // tau
        taken = np.full((count, 1), tau)
        engine.run_hub(model, [0], [1.0], range(count), taken, [1e-4] * count)

    engine.train(model, 0, 1, 1, 1e-4)
    engine.evaluate(model, "test", limit=16, threads=1)
    step = _each(rounds, math.lcm(8, tau))
    row = _each(lambda rows: engine.evaluate(model, "test", limit=rows, threads=1), 8)
    return step, row


def _each(work: Callable[[int], object], many: int) -> float:
    """Seconds of one of many, at least so many: as many as take a while."""
    while True:
        started = time.perf_counter()
        work(many)
        seconds = time.perf_counter() - started
        if seconds > _MEASURE or many > 100_000:
            return seconds / many
        many *= 4
