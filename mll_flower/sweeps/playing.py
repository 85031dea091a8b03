"""A process that plays runs: it receives orders, each to play a run or to measure speed.

To play a run is to carry it out without Flower's runtime, with all its nodes in one process.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from mll_flower.config import RunConfig
from mll_flower.models.checkpoint import FILE as CHECKPOINT
from mll_flower.models.checkpoint import load_checkpoint
from mll_flower.processes.answering import answer_orders
from mll_flower.results import files
from mll_flower.sweeps.parts import claimed_part, clear_part

# The shortest measurement of speed that counts, in seconds.
_LONG_ENOUGH = 0.4
# A larger model is not kept: it can be made again, and there are hundreds of runs.
_KEEP_BYTES = 1 << 20


@dataclass(frozen=True)
class Speed:
    """How fast a process trains and evaluates a model.

    Parameters
    ----------
    step, row : float
        Seconds per gradient step, and per row that is evaluated.
    train_rows, test_rows : int
        Rows of the training set and of the test set.
    """

    step: float
    row: float
    train_rows: int
    test_rows: int


def serve(pipe: Connection) -> None:
    """Answer orders until None arrives: ("run", config, folder) or ("measure", config).

    An answer is (value, None), or (None, the error as text).

    Parameters
    ----------
    pipe : Connection
        Brings the orders and takes the answers.
    """
    # Ctrl-C reaches all processes of a terminal; whoever gave the orders ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answer_orders(pipe, _answer)


def _answer(order: Any) -> Any:
    kind, values, *rest = order
    config = RunConfig(**values)
    return measure(config) if kind == "measure" else play(config, Path(rest[0]))


def play(config: RunConfig, folder: Path) -> float:
    """Play a run into a folder, which gets its name when the run has ended.

    What an earlier process has left of the run is continued from its checkpoint, with the numbers
    that the run would have had without the interruption.

    Returns
    -------
    float
        Seconds that it took.
    """
    started = time.monotonic()
    with claimed_part(folder) as part:
        config = replace(config, output=str(part))
        if not (part / CHECKPOINT).is_file() or not _went_on(config, part):
            clear_part(part)
            _run(config)
        model = part / files.MODEL
        if model.stat().st_size > _KEEP_BYTES:
            model.unlink()
    return time.monotonic() - started


def _went_on(config: RunConfig, part: Path) -> bool:
    """Continue a run from its checkpoint; False if that one is damaged or does not fit."""
    try:
        load_checkpoint(part)
    except ValueError:
        return False
    try:
        _run(replace(config, resume=str(part)))
    except ValueError as error:
        if str(error).startswith("resume="):
            return False
        raise
    return True


def _run(config: RunConfig) -> None:
    from mll_flower.apps.launch import run_in_process

    # The command shows one progress bar for all runs, which their own output would break.
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        # No plots: runs are drawn together, and four plots of each of hundreds would take longer
        # than many of the runs. One thread: other runs use the other cores.
        run_in_process(config.to_run_config(), plots=False, threads=1, lines=False)


def measure(config: RunConfig) -> Speed:
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

    data = engine.task.data
    engine.train(model, 0, 1, 1, 1e-4)
    evaluate_rows(16)
    # More rows than the test set has would not be evaluated.
    return Speed(
        _seconds_per_unit(take_steps, math.lcm(8, tau), 100_000),
        _seconds_per_unit(evaluate_rows, 8, len(data.x_test)),
        len(data.x_train),
        len(data.x_test),
    )


def _seconds_per_unit(work: Callable[[int], object], units: int, most: int) -> float:
    """Return the time of ``work(units)`` divided by the units, on a core that is free.

    The units are increased fourfold until the work takes long enough to be measured. Time of the
    processor, not of the clock: what else happens in half a second says nothing about hours.
    """
    while True:
        started = time.process_time()
        work(units)
        seconds = time.process_time() - started
        if seconds > _LONG_ENOUGH or 4 * units > most:
            return seconds / units
        units *= 4
