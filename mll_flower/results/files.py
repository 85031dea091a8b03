"""Names of the files that a run leaves in its output folder."""

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
"""Everything about the run; written when it has ended."""

PROGRESS = "progress.json"
"""How far the run is, for whoever watches."""

MODEL = "model.safetensors"
"""The averaged model at the end."""

PLOTS = "plots"
"""Folder of the plots."""

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

A row with a hub's number is about that hub in the rounds of one message: steps of its workers,
their mean training loss, the distance of z(d) from the averaged model, absent workers. A row
with hub ``all`` is an evaluation of the averaged model. Bytes and seconds are since the start of
the run; bytes are what the algorithm sends: per round one model down to and one up from each
worker, per mixing two models over each link.
"""


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never a part of it."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(part, path)
