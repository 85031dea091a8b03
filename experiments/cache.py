"""Runs that are kept: where the run of a config is, and whether it is there."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from mll_flower.config import RunConfig

ALGORITHM = {"cnn": 3}
"""Version of what decides the numbers of a model's runs: 1 if it is not here.

Raise it when a change alters them.
"""

# Where and how patiently a run runs, not what it computes.
_IRRELEVANT = {
    "output",
    "data-dir",
    "reply-timeout",
    "node-timeout",
    "checkpoint-every",
    "resume",
    "pool",
    "preset",
}


def run_key(config: RunConfig) -> str:
    """Name of a run: the same for configs that compute the same."""
    values = {k: v for k, v in config.to_run_config().items() if k not in _IRRELEVANT}
    text = json.dumps({"algorithm": ALGORITHM.get(config.model, 1), **values}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run_folder(out: Path, config: RunConfig) -> Path:
    """Return where the run of a config is kept."""
    return out / "runs" / f"{config.model}-{config.hubs}x{_workers(config)}-{run_key(config)}"


def is_there(folder: Path) -> bool:
    """Whether a run has been done: folders appear under their name when the run has ended."""
    return (folder / "metrics.json").is_file()


def _workers(config: RunConfig) -> str:
    return config.workers_per_hub.replace(",", "+")[:20]
