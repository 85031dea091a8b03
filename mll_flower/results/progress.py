"""The progress of a run, in a file: how many slots are done, the newest loss and metric.

The run writes the file, in a process of Flower's; ``mll-flower run`` reads it in another process
and shows a progress bar.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mll_flower.results import files

# Least seconds between two versions of the file, and between two lines of the log.
_FILE_EVERY, _LINE_EVERY = 0.5, 5.0


class ProgressWriter:
    """Writes a run's progress to a file, and now and then as a line to the log.

    Parameters
    ----------
    output : Path
        The run's folder.
    slots : int
        Slots of the whole run.
    lines : bool
        Whether to print lines.
    """

    def __init__(self, output: Path, slots: int, lines: bool = True) -> None:
        self.path = output / files.PROGRESS
        self.values: dict[str, Any] = {"total": slots}
        self.lines = lines
        self._file_written = self._line_printed = time.monotonic()
        self._printed_slot = -1

    @property
    def due(self) -> bool:
        """Whether the file is old enough to be written again."""
        return time.monotonic() - self._file_written >= _FILE_EVERY

    def evaluated(self, slot: int, values: Mapping[str, Any]) -> None:
        """Take the loss and the metric of an evaluation, and write."""
        self.values.update(values, slot=slot, evaluated=slot)
        self.write()

    def write(self) -> None:
        """Write the file; print a line if the last one is old or the run is done.

        A line pairs a slot with the loss and the accuracy that were measured at this very slot,
        so each evaluation has one line at most.
        """
        files.write_json(self.path, self.values)
        self._file_written = now = time.monotonic()
        slot, slots = self.values.get("evaluated", -1), self.values["total"]
        old = now - self._line_printed > _LINE_EVERY
        if self.lines and slot > self._printed_slot and (old or "done" in self.values):
            # Not through Flower's logger, which is silenced during the rounds.
            print(f"slot {slot} of {slots}  {loss_and_metric(self.values)}", flush=True)
            self._line_printed, self._printed_slot = now, slot


def read_progress(output: Path) -> dict[str, Any] | None:
    """Return the progress of the run in this folder; None before its first round.

    The keys are ``total`` (slots of the whole run) and, once they are known, ``slot``, ``loss`` and
    ``accuracy`` with the slot at which they were measured (``evaluated``), and ``done``. With
    another metric, ``metric`` is its name, which is also the key of its value.
    """
    try:
        values: dict[str, Any] = json.loads((output / files.PROGRESS).read_text())
    except (OSError, ValueError):
        return None
    return values


def loss_and_metric(progress: dict[str, Any]) -> str:
    """Return the newest loss and metric as text; empty before the first evaluation."""
    if "loss" not in progress:
        return ""
    metric = progress.get("metric", "accuracy")
    return f"loss {progress['loss']:.4f}  {metric} {progress[metric]:.4f}"


def newest_evaluation(progress: dict[str, Any]) -> str:
    """Return `loss_and_metric`, with the slot of that evaluation if the run has gone on since."""
    text = loss_and_metric(progress)
    behind = text and progress.get("slot") != progress["evaluated"]
    return f"{text}  (slot {progress['evaluated']})" if behind else text
