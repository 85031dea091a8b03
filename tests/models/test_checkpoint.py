"""Checkpoints are written whole or not at all, and read back bit for bit."""

from __future__ import annotations

import json
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


def test_further_state_is_loaded_to_the_bit(tmp_path):
    state = {"drift/0/float32": np.arange(3, dtype=np.float32), "rates": np.array([[1, 2]])}
    save_checkpoint(tmp_path / FILE, 1, LAYOUT, [LAYOUT.flatten(ARRAYS)], state=state)
    back = load_checkpoint(tmp_path)
    assert list(back.state) == list(state)
    for name, array in state.items():
        assert back.state[name].dtype == array.dtype
        np.testing.assert_array_equal(back.state[name], array)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match="damaged"):
        load_checkpoint(tmp_path)


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
    with pytest.raises(ValueError, match="does not exist: the run was made with checkpoint-eve"):
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


def test_a_flipped_bit_is_found_wherever_it_is(tmp_path):
    path = tmp_path / FILE
    save_checkpoint(path, 1, LAYOUT, [LAYOUT.flatten(ARRAYS)], {"steps": [1, 2]})
    whole, saved = path.read_bytes(), LAYOUT.flatten(ARRAYS)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            back = load_checkpoint(path)
        except ValueError:
            continue
        # The flip was in the name of the checksum, or in padding: nothing has changed.
        assert (back.round, back.layout, back.extra) == (1, LAYOUT, {"steps": [1, 2]})
        assert all(back.models[0][k].tobytes() == v.tobytes() for k, v in saved.items())


def test_a_checkpoint_of_an_earlier_version_has_no_checksum(tmp_path):
    about = {"round": 3, "hubs": 1, "names": list(ARRAYS), "extra": {}}
    tensors = {f"0/{name}": array for name, array in ARRAYS.items()}
    save_file(tensors, tmp_path / FILE, metadata={"mll-flower": json.dumps(about)})
    assert load_checkpoint(tmp_path).round == 3


@pytest.mark.parametrize(
    "change", [{"hubs": 0}, {"names": None}, {"extra": 1}, {"round": "x"}, {"format": 99}]
)
def test_a_checkpoint_whose_description_makes_no_sense_is_an_error(tmp_path, change):
    about = {"round": 3, "hubs": 1, "names": list(ARRAYS), "extra": {}} | change
    tensors = {f"0/{name}": array for name, array in ARRAYS.items()}
    save_file(tensors, tmp_path / FILE, metadata={"mll-flower": json.dumps(about)})
    with pytest.raises(ValueError, match="is not a checkpoint of a run"):
        load_checkpoint(tmp_path)
