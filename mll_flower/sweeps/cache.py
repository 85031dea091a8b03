"""Finished runs are kept and used again: the folder of a run follows from its config."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from mll_flower.config import RunConfig
from mll_flower.results import files
from mll_flower.sweeps.named_files import digests

ALGORITHM = {"cnn": 3}
"""Version of the code that decides the numbers of a model's runs; 1 for models not listed.

Raise it when a change alters the numbers: runs of other versions are then not used again.
"""

# Keys that decide where and how patiently a run executes, but none of its numbers.
_IRRELEVANT = {
    "output", "data-dir", "reply-timeout", "node-timeout", "checkpoint-every", "resume", "pool",
    "preset",
}  # fmt: skip

# Keys that count whatever their value. All others came later: with their defaults, the numbers are
# those of runs from before them.
_FIRST = {
    "hubs", "workers-per-hub", "graph", "mixing", "tau", "q", "slots", "wait-for-all", "rates",
    "weights", "dataset", "partition", "model", "batch-size", "learning-rate", "lr-milestones",
    "lr-factor", "momentum", "weight-decay", "engine", "evaluate-every", "evaluate-limit", "absent",
    "seed", "tensorboard",
}  # fmt: skip


def run_key(config: RunConfig) -> str:
    """Return a hash that is the same for configs that give the same numbers.

    Files that the config names count by their contents: a run with a file that has since been
    changed is another run.
    """
    defaults = RunConfig().to_run_config()
    values = {
        key: value
        for key, value in config.to_run_config().items()
        if key not in _IRRELEVANT and (key in _FIRST or value != defaults[key])
    }
    if contents := digests(config):
        values["files"] = json.dumps(contents, sort_keys=True)
    text = json.dumps({"algorithm": ALGORITHM.get(config.model, 1), **values}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run_folder(out: Path, config: RunConfig) -> Path:
    """Return the folder in which the run of a config is kept."""
    model = re.sub(r"[^\w.-]+", "_", config.model)  # one of the user's own may be a path
    return out / "runs" / f"{model}-{config.hubs}x{_workers(config)}-{run_key(config)}"


def is_finished(folder: Path) -> bool:
    """Whether a run has ended: only then does its folder exist under this name."""
    return (folder / files.METRICS).is_file()


def _workers(config: RunConfig) -> str:
    return config.workers_per_hub.replace(",", "+")[:20]
