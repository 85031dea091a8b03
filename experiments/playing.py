"""A process that plays runs: it receives orders, each to play a run or to measure speed.

To play a run is to carry it out without Flower's runtime, with all its nodes in one process.
"""

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

from experiments.derived import is_derived, make_derived
from mll_flower.config import RunConfig
from mll_flower.results import files

# The shortest measurement of speed that counts, in seconds.
_LONG_ENOUGH = 0.4
# A larger model is not kept: it can be made again, and there are hundreds of runs.
_KEEP_BYTES = 1 << 20


def serve(pipe: Connection, data_dir: str, folder: str) -> None:
    """Answer orders until None arrives: ("run", config, folder) or ("measure", config).

    An answer is (value, None), or (None, the error as text).

    Parameters
    ----------
    pipe : Connection
        Brings the orders and takes the answers.
    data_dir : str
        Folder of the data sets.
    folder : str
        Folder of the derived data set.
    """
    import torch

    torch.set_num_threads(1)
    while (order := _next_order(pipe)) is not None:
        kind, values, *rest = order
        try:
            config = _with_local_paths(RunConfig(**values), data_dir, Path(folder))
            value = measure(config) if kind == "measure" else play(config, Path(rest[0]))
            pipe.send((value, None))
        except Exception as error:
            pipe.send((None, f"{type(error).__name__}: {error}"))


def _next_order(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:  # the process that gave the orders has ended
        return None


def _with_local_paths(config: RunConfig, data_dir: str, folder: Path) -> RunConfig:
    """Return the config with this machine's paths of the data."""
    if is_derived(config.dataset):
        path = make_derived(folder, data_dir or None)
        config = replace(config, dataset=f"npz:{path.absolute()}")
    return replace(config, data_dir=data_dir)


def play(config: RunConfig, folder: Path) -> float:
    """Play a run into a folder, which gets its name when the run has ended.

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
    config = replace(config, output=str(part), checkpoint_every=0)
    values = config.to_run_config()
    # The command shows one progress bar for all runs, which their own output would break.
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        # No plots: the figure draws its runs together, and four plots of each of hundreds would
        # take longer than many of the runs. One thread: other runs use the other cores.
        run_network(
            InProcessGrid(worker_app(), config.nodes, values), values, plots=False, threads=1
        )
    model = part / files.MODEL
    if model.stat().st_size > _KEEP_BYTES:
        model.unlink()
    if folder.exists():  # another command was faster; its numbers are the same
        shutil.rmtree(part)
    else:
        part.rename(folder)
    return time.monotonic() - started


def part_folder(folder: Path, process: int | None) -> Path:
    """Return the folder of a run while a process is playing it."""
    return folder.with_name(f"{folder.name}.{process}.part")


def measure(config: RunConfig) -> tuple[float, float]:
    """Return the seconds per step in rounds of tau steps, and per row that is evaluated."""
    from mll_flower.training.run_engine import run_engine

    engine = run_engine(config)
    model = engine.initial()
    tau = config.tau

    def take_steps(steps: int) -> None:
        count = steps // tau
        taken = np.full((count, 1), tau)
        engine.run_hub(model, [0], [1.0], range(count), taken, [1e-4] * count)

    def evaluate_rows(rows: int) -> None:
        engine.evaluate(model, "test", limit=rows, threads=1)

    engine.train(model, 0, 1, 1, 1e-4)
    evaluate_rows(16)
    return _seconds_per_unit(take_steps, math.lcm(8, tau)), _seconds_per_unit(evaluate_rows, 8)


def _seconds_per_unit(work: Callable[[int], object], units: int) -> float:
    """Return the time of ``work(units)`` divided by the units.

    The units are increased fourfold until the work takes long enough to be measured.
    """
    while True:
        started = time.perf_counter()
        work(units)
        seconds = time.perf_counter() - started
        if seconds > _LONG_ENOUGH or units > 100_000:
            return seconds / units
        units *= 4
