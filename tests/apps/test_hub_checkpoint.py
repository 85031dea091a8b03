"""A hub takes its own whole checkpoint, and keeps any other file aside."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from mll_flower.apps.hub_checkpoint import HubCheckpoint
from mll_flower.models.checkpoint import FILE, save_checkpoint
from mll_flower.models.layout import Layout

ARRAYS = {"x": np.arange(4, dtype=np.float32), "n": np.array([2], dtype=np.int64)}
LAYOUT = Layout.of(ARRAYS)


def row(**changes: Any) -> dict[str, Any]:
    reply = {"node": "11", "worker": 0}
    whole = {"round": 6, "arrived": [reply], "absent": [], "model_bytes": 1, "time": time.time()}
    return {**whole, **changes}


def save(path: Path, run: str = "trial", hub: str = "a", fill: float = 1.0, **changes: Any) -> None:
    model = LAYOUT.flatten({**ARRAYS, "x": np.full(4, fill, dtype=np.float32)})
    HubCheckpoint(path, run, hub).save(6, LAYOUT, model, {11: 3.0}, row(**changes))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def earlier(path: Path, **extra: Any) -> None:
    """Write a checkpoint as earlier versions did, which did not name the hub."""
    whole = {"run": "trial", "weights": {"11": 3.0}, "row": row(), **extra}
    save_checkpoint(path, 6, LAYOUT, [LAYOUT.flatten(ARRAYS)], whole)


def test_a_hub_takes_its_own_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / FILE
    assert HubCheckpoint(path, "trial", "a").load(LAYOUT) is None
    for write in (save, earlier):
        write(path)
        found = HubCheckpoint(path, "trial", "a").load(LAYOUT)
        assert found is not None
        assert (found.round, found.extra["weights"]) == (6, {"11": 3.0})
    assert [file.name for file in tmp_path.iterdir()] == [FILE]


BAD = {
    "NaN": (lambda p: save(p, fill=np.nan), "NaN or an infinity"),
    "infinity": (lambda p: save(p, fill=np.inf), "NaN or an infinity"),
    "truncated": (lambda p: (save(p), p.write_bytes(p.read_bytes()[:-9])), "not a checkpoint"),
    "flipped": (lambda p: (save(p), flip(p)), "do not match their checksum"),
    "empty": (lambda p: p.write_bytes(b""), "not a checkpoint"),
    "foreign": (lambda p: save_file(ARRAYS, p), "not a checkpoint"),
    "text": (lambda p: p.write_text("hello" * 99), "not a checkpoint"),
    "folder": (lambda p: p.mkdir(), "checkpoint"),
    "other run": (lambda p: save(p, run="another"), "belongs to run 'another'"),
    "other hub": (lambda p: save(p, hub="b"), "belongs to hub 'b'"),
    "future": (lambda p: save(p, time=time.time() + 3e5), "from the future, by 83 hours"),
    "no row": (lambda p: earlier(p, row=None), "cannot be read"),
    "other row": (lambda p: save(p, round=5), "cannot be read"),
    "half a row": (lambda p: earlier(p, row={"round": 6}), "cannot be read"),
    "weights": (lambda p: earlier(p, weights={"x": 1}), "cannot be read"),
    "NaN weight": (lambda p: earlier(p, weights={"11": np.nan}), "cannot be read"),
    "worker": (lambda p: save(p, absent=[{"node": "1", "worker": []}]), "cannot be read"),
}


@pytest.mark.parametrize("case", BAD)
def test_any_other_file_is_named_and_kept_aside(case: str, tmp_path: Path, caplog) -> None:
    path = tmp_path / FILE
    make, said = BAD[case]
    for count in (1, 2):  # twice within a second, as in a restart
        make(path)
        assert HubCheckpoint(path, "trial", "a").load(LAYOUT) is None
        assert not path.exists()
        assert len(list(tmp_path.glob(f"{FILE}.bad-*"))) == count
    assert said in caplog.text
    assert str(path) in caplog.text


def test_another_model_is_kept_aside(tmp_path: Path, caplog) -> None:
    save(tmp_path / FILE)
    other = Layout.of({"x": np.zeros(5, dtype=np.float32)})
    assert HubCheckpoint(tmp_path / FILE, "trial", "a").load(other) is None
    assert "holds another model than this run trains" in caplog.text
