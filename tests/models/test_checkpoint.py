"""Checkpoints are written whole or not at all, and read back bit for bit."""

from __future__ import annotations

import os

import numpy as np
import pytest
from safetensors.numpy import save_file

from mll_flower.models import checkpoint as module
from mll_flower.models.checkpoint import FILE, load_checkpoint, save_checkpoint
from mll_flower.models.layout import Layout

ARRAYS = {
    "z.weight": np.arange(6, dtype=np.float32).reshape(2, 3) / 7,
    "a.count": np.array(3, dtype=np.int64),
    "m.bias": np.array([1e-45, -0.0, 3e38], dtype=np.float32),
    "b.exact": np.array([1 / 3], dtype=np.float64),
}
LAYOUT = Layout.of(ARRAYS)


def test_what_was_saved_is_loaded_to_the_bit(tmp_path):
    one = LAYOUT.flatten(ARRAYS)
    two = {dtype: vector + 1 for dtype, vector in one.items()}
    save_checkpoint(tmp_path / "new" / FILE, 12, LAYOUT, [one, two], {"steps": [1, 2]})
    back = load_checkpoint(tmp_path / "new")
    assert (back.round, back.layout, back.extra) == (12, LAYOUT, {"steps": [1, 2]})
    for saved, loaded in zip([one, two], back.models, strict=True):
        assert {k: v.tobytes() for k, v in saved.items()} == {
            k: v.tobytes() for k, v in loaded.items()
        }


def test_a_write_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / FILE
    save_checkpoint(path, 1, LAYOUT, [LAYOUT.flatten(ARRAYS)])
    before = path.read_bytes()

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        save_checkpoint(path, 2, LAYOUT, [LAYOUT.flatten(ARRAYS)])
    assert path.read_bytes() == before
    assert load_checkpoint(path).round == 1


def test_an_unfinished_file_is_never_read(tmp_path):
    save_checkpoint(tmp_path / FILE, 1, LAYOUT, [LAYOUT.flatten(ARRAYS)])
    os.replace(tmp_path / FILE, tmp_path / f"{FILE}.part")
    with pytest.raises(ValueError, match="does not exist: was the run made with checkpoint-eve"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_an_error_that_names_it(tmp_path, share):
    path = tmp_path / FILE
    save_checkpoint(path, 1, LAYOUT, [LAYOUT.flatten(ARRAYS)])
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ValueError, match="is not a checkpoint of a run") as error:
        load_checkpoint(tmp_path)
    assert str(path) in str(error.value)


def test_a_file_of_another_kind_is_an_error(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(ARRAYS, path)
    with pytest.raises(ValueError, match="is not a checkpoint of a run"):
        load_checkpoint(path)
