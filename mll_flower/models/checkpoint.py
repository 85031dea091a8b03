"""Checkpoints: hub models on disk, from which a run continues with the same bits."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from mll_flower.models.layout import Flat, Layout, Vector

FILE = "checkpoint.safetensors"
"""Name of a checkpoint in the folder of its run."""

FORMAT, FORMAT_WITH_STATE = 1, 2
"""Version of the format: older versions of this project cannot read files with further state."""


@dataclass(frozen=True)
class Checkpoint:
    """Hub models after some rounds.

    Parameters
    ----------
    round : int
        Rounds done.
    models : list[Flat]
        y(d) of each hub.
    layout : Layout
        How the models are laid out.
    extra : dict
        Further values that its writer saved, such as the config.
    state : dict
        Further arrays by name, such as what corrections have learned.
    """

    round: int
    models: list[Flat]
    layout: Layout
    extra: dict[str, Any]
    state: dict[str, Vector] = field(default_factory=dict)


class CheckpointTimes:
    """Decides when a checkpoint is due, so that they take less than 1 % of a run's time.

    Parameters
    ----------
    size : int
        Bytes of a checkpoint. The time that the first one takes is guessed from them, of a slow
        disk; afterwards it is known.
    """

    # Seconds between two: at least this, and this many times what the last one took.
    _LEAST, _TIMES = 5.0, 200.0

    def __init__(self, size: int) -> None:
        self.cost = size / 50e6
        self._last = time.monotonic()

    def due(self) -> bool:
        """Return whether it is time for the next one."""
        return time.monotonic() - self._last >= max(self._LEAST, self._TIMES * self.cost)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure how long a checkpoint takes."""
        started = time.monotonic()
        yield
        self._last = time.monotonic()
        self.cost = self._last - started


def save_checkpoint(
    path: str | Path,
    round: int,
    layout: Layout,
    models: Sequence[Flat],
    extra: Mapping[str, Any] | None = None,
    state: Mapping[str, Vector] | None = None,
) -> None:
    """Write a checkpoint atomically: a reader sees the old one or the new one, never a part.

    Raises
    ------
    OSError
        If it cannot be written, as on a full disk; the old one stays.
    """
    path = Path(path)
    tensors = {
        f"{d}/{name}": array
        for d, model in enumerate(models)
        for name, array in layout.arrays(model).items()
    }
    tensors |= {f"state/{name}": array for name, array in (state or {}).items()}
    # Keeps the order of the names: the file sorts its tensors.
    about = json.dumps(
        {
            "format": FORMAT_WITH_STATE if state else FORMAT,
            "round": round,
            "hubs": len(models),
            "names": layout.names,
            **({"state": list(state)} if state else {}),
            "extra": extra or {},
        }
    )
    part = path.with_name(path.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        save_file(tensors, part, metadata={"mll-flower": about, "sha256": _digest(about, tensors)})
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except (SafetensorError, OSError) as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise OSError(f"the checkpoint {path} cannot be written: {error}") from None


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint, given the path of its file or of the folder that holds it."""
    path = Path(path)
    if path.is_dir():
        path = path / FILE
    if not path.is_file():
        raise ValueError(
            f"checkpoint {path} does not exist: the run was made with checkpoint-every=0, or it "
            "stopped before the first one"
        )
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata()
            about = json.loads(metadata["mll-flower"])
            if about.get("format", FORMAT) > FORMAT_WITH_STATE:
                raise ValueError("a newer version of mll-flower wrote it")
            tensors = {
                f"{d}/{name}": file.get_tensor(f"{d}/{name}")
                for d in range(about["hubs"])
                for name in about["names"]
            }
            saved = {f"state/{name}": name for name in about.get("state", [])}
            tensors |= {key: file.get_tensor(key) for key in saved}
        # Earlier versions wrote no checksum.
        if metadata.get("sha256", "") not in ("", _digest(metadata["mll-flower"], tensors)):
            raise ValueError("its bytes do not match their checksum, so that it is damaged")
        hubs = [
            {name: tensors[f"{d}/{name}"] for name in about["names"]} for d in range(about["hubs"])
        ]
        round, extra, layout = int(about["round"]), dict(about["extra"]), Layout.of(hubs[0])
        models = [layout.flatten(arrays) for arrays in hubs]
        state = {name: tensors[key] for key, name in saved.items()}
    except (SafetensorError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is not a checkpoint of a run: {error}") from None
    return Checkpoint(round, models, layout, extra, state)


def _digest(about: str, tensors: Mapping[str, Vector]) -> str:
    """Return a checksum of all that a checkpoint holds."""
    digest = hashlib.sha256(about.encode())
    for name, array in tensors.items():
        digest.update(repr((name, str(array.dtype), array.shape)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
