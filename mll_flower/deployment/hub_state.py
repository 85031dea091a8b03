"""What hubs and workers keep on disk: folders, file names, and the phases of a hub.

A phase says what a hub is doing: starting, waiting, training, finished, failed.

The hub's app (`mll_flower.apps.hub_strategy`) writes these files; the commands that start and watch
hubs (`mll_flower.deployment.sites`, ``mll-flower up``) read them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from mll_flower.deployment.network_entries import NetworkFile

NOW_FILE = "now.json"
"""What a hub is doing: one JSON object, replaced as a whole."""

ROUNDS_FILE = "rounds.jsonl"
"""One JSON object per line: a row per round, and events."""

MODEL_FILE = "model.safetensors"
"""The hub's model, when the run is over."""

HUB_LOG = "hub.log"
"""What the hub and its app log. Flower itself shows a ServerApp's output only on request."""

LOCK_FILE = "lock"
"""Locked by the command that runs the hub or the worker, with the id of its process in it."""

SUPERLINK_DATABASE = "superlink.db"
SUPERLINK_LOG = "superlink.log"
SUPERNODE_LOG = "supernode.log"
FLOWER_HOME = "flwr"


class Phase(StrEnum):
    """What a hub is doing."""

    STARTING = "starting"
    WAITING_FOR_WORKERS = "waiting for workers"
    READY = "ready"
    TRAINING = "training"
    FINISHING = "finishing"
    FINISHED = "finished"
    FAILED = "failed"


def state_directory(network: NetworkFile, state: Path | None = None) -> Path:
    """Return where hubs and workers keep their state: ``state`` beside the file unless given."""
    return (state or network.path.parent / "state").absolute()


def hub_directory(network: NetworkFile, hub: str, state: Path | None = None) -> Path:
    """Return where a hub keeps its checkpoint, its records and its Flower home."""
    return state_directory(network, state) / f"hub-{network.hub(hub).id}"


def worker_directory(
    network: NetworkFile, hub: str, number: int, state: Path | None = None
) -> Path:
    """Return where a worker keeps its Flower home and its log."""
    return state_directory(network, state) / f"worker-{network.hub(hub).id}-{number}"


def make_private(folder: Path) -> None:
    """Make a folder of a hub or a worker, and close it to all other users of the machine."""
    # Whoever comes first makes it: the hubs of one machine start at the same time.
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    for path in folder.iterdir():  # of an earlier version, which left them open
        if path.is_file():
            path.chmod(0o600)


def read_now(folder: Path) -> dict[str, Any]:
    """Return what a hub last wrote about itself; empty before its app begins."""
    with suppress(OSError, ValueError):
        return dict(json.loads((folder / NOW_FILE).read_text()))
    return {}


def write_now(folder: Path, now: Mapping[str, Any]) -> None:
    """Replace what a hub has written about itself; a reader sees the old or the new, no part."""
    part = folder / f"{NOW_FILE}.part"
    part.write_text(json.dumps(dict(now)))
    part.replace(folder / NOW_FILE)
