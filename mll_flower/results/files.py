"""Names of the files in a run's output folder, the columns of metrics.csv, and how JSON is written.

`recorder` writes these files, `plots` and the HTML report add theirs, and `runs` and the command
line read them: each name stands here and nowhere else. `output_folder` says when they are removed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

CONFIG = "config.json"
"""The run config, under its own names."""

ROWS = "metrics.csv"
"""One row per hub and message, and one per evaluation; its columns are `COLUMNS`."""

METRICS = "metrics.json"
"""Everything about the run; written when it has reached its end."""

UNFINISHED = "unfinished.json"
"""The same, of a run that has not reached its end: as it was at the start, or where it stopped."""

EVENTS = "events.jsonl"
"""Absences and evaluations of the hubs' own models, as they happen; see `events`."""

PROGRESS = "progress.json"
"""How far the run has got; the progress bar of ``mll-flower run`` reads it."""

MODEL = "model.safetensors"
"""The averaged model at the end, or where a run was interrupted."""

PLOTS = "plots"
"""Folder of the plots."""

REPORT = "report.html"
"""The HTML report, once ``mll-flower report`` has written it."""

TENSORBOARD = "tensorboard"
"""Folder of the event files for TensorBoard, if the run was asked to write them."""

COLUMNS = (
    "slot",
    "round",
    "hub",
    "steps",
    "loss",
    "accuracy",
    "test_loss",
    "distance",
    "bytes",
    "absent",
    "seconds",
)
"""Columns of `ROWS`.

A row with a hub's number describes that hub in the rounds of one message: the steps of its
workers, their mean training loss, the distance of z(d) from the averaged model, the number of
absences. A row with hub ``all`` is an evaluation of the averaged model. Bytes and seconds count
from the start of the run; bytes are what the algorithm sends: per round, one model down to each
worker and one up from it; per mixing, two models over each edge. With a clock, the seconds and the
size of a model are the clock's. A run with another metric than accuracy has that metric's name in
accuracy's place.
"""


def columns(metric: str) -> tuple[str, ...]:
    """Return the columns of `ROWS` for a run with this metric."""
    return tuple(metric if column == "accuracy" else column for column in COLUMNS)


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never a part of it.

    An object has one line per key: more lines than that take twenty times as long to make, seconds
    for the H of a thousand hubs.
    """
    part = path.with_name(path.name + ".part")
    if isinstance(value, dict):
        entries = (f" {json.dumps(str(key))}: {json.dumps(entry)}" for key, entry in value.items())
        text = "{\n" + ",\n".join(entries) + "\n}"
    else:
        text = json.dumps(value, indent=1)
    part.write_text(text + "\n")
    os.replace(part, path)
