"""Large data sets are held once per machine, with the same values, and are never mistaken."""

from __future__ import annotations

import multiprocessing
import os
import stat
import time
from pathlib import Path

import numpy as np
import pytest

from mll_flower.tasks import shared_data
from mll_flower.tasks.data import load_dataset
from mll_flower.tasks.dataset import Dataset

ROWS = 3000  # of 28x28 float32: 9 MB


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mll-flower" / "data"


def save(path: Path, seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(256, size=(ROWS, 28, 28), dtype=np.uint8), np.arange(ROWS) % 10
    np.savez(path, x_train=x, y_train=y, x_test=x[:50], y_test=y[:50])
    return f"npz:{path}"


def entries(cache: Path) -> list[Path]:
    return [entry for entry in cache.glob("*/*") if entry.is_dir()]


def arrays(data: Dataset) -> list[bytes]:
    return [a.tobytes() for a in (data.x_train, data.y_train, data.x_test, data.y_test)]


def is_mapped(array: np.ndarray) -> bool:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return isinstance(array, np.memmap)


def test_the_second_reader_maps_the_same_values(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = save(tmp_path / "images.npz")
    with monkeypatch.context() as patch:
        patch.setattr(shared_data, "private_folder", lambda name: None)
        alone = load_dataset(name)
    assert not is_mapped(alone.x_train)
    first = load_dataset(name)
    monkeypatch.setattr("mll_flower.tasks.data._read", None)
    second = load_dataset(name)
    for data in (first, second):
        assert is_mapped(data.x_train)
        assert type(data.x_train) is np.ndarray
        assert arrays(data) == arrays(alone)
        assert (data.name, data.label, data.classes) == (name, "images.npz", 10)
    [entry] = entries(cache)
    assert stat.S_IMODE(entry.stat().st_mode) == 0o700


def test_what_one_process_writes_others_do_not_see(cache: Path, tmp_path: Path) -> None:
    name = save(tmp_path / "images.npz")
    first = load_dataset(name)
    value = float(first.x_train[0, 0, 0, 0])
    first.x_train[0, 0, 0, 0] = 7.0
    assert float(load_dataset(name).x_train[0, 0, 0, 0]) == value


def test_a_changed_file_and_other_options_are_read_anew(cache: Path, tmp_path: Path) -> None:
    name = save(tmp_path / "images.npz")
    before = load_dataset(name)
    status = (tmp_path / "images.npz").stat()
    save(tmp_path / "images.npz", seed=1)
    # Same size, and a time of change that was set back: the file is another one all the same.
    os.utime(tmp_path / "images.npz", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert arrays(load_dataset(name)) != arrays(before)
    assert load_dataset(name, classes=12).classes == 12
    assert len(entries(cache)) == 3


def test_small_data_and_functions_are_not_kept(cache: Path, tmp_path: Path) -> None:
    load_dataset("digits")
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def load():\n"
        f"    x = np.ones(({ROWS}, 784), np.float32)\n"
        "    return x, x[:, 0], x[:9], x[:9, 0]\n"
    )
    assert not is_mapped(load_dataset("mine.py:load", code_dir=str(tmp_path)).x_train)
    assert entries(cache) == []


@pytest.mark.parametrize("damage", ["truncated", "incomplete"])
def test_a_damaged_entry_is_written_again(cache: Path, tmp_path: Path, damage: str) -> None:
    name = save(tmp_path / "images.npz")
    expected = arrays(load_dataset(name))
    [entry] = entries(cache)
    if damage == "truncated":
        os.truncate(entry / "x_train.npy", 5000)
    else:
        (entry / "y_test.npy").unlink()
    found = load_dataset(name)
    assert arrays(found) == expected
    assert is_mapped(found.x_train)


def test_without_room_or_folder_the_data_are_in_memory(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = save(tmp_path / "images.npz")
    monkeypatch.setattr(shared_data, "_SPARE", 1 << 60)
    assert not is_mapped(load_dataset(name).x_train)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "images.npz"))
    assert len(load_dataset(name).x_train) == ROWS
    assert entries(cache) == []


def test_old_entries_make_room(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [save(tmp_path / f"{n}.npz", n) for n in range(3)]
    kept = load_dataset(names[0])
    [first] = entries(cache)
    long_ago = time.time() - 30 * 24 * 3600
    os.utime(first, (long_ago, long_ago))
    load_dataset(names[1])
    assert not first.exists()
    assert kept.x_train.sum() > 0  # a process that maps a removed file keeps it
    monkeypatch.setattr(shared_data, "_MOST", 10 << 20)
    load_dataset(names[2])
    assert len(entries(cache)) == 1


def _load(name: str, answers: multiprocessing.queues.SimpleQueue[bytes]) -> None:
    answers.put(load_dataset(name).x_train[-1].tobytes())


def test_processes_that_begin_together_share_one_entry(cache: Path, tmp_path: Path) -> None:
    name = save(tmp_path / "images.npz")
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    processes = [context.Process(target=_load, args=(name, answers)) for _ in range(3)]
    for process in processes:
        process.start()
    found = {answers.get() for _ in processes}
    for process in processes:
        process.join()
    assert len(found) == 1
    assert len(entries(cache)) == 1
    assert not list(cache.glob("*/part-*"))
