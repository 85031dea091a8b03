"""Where runs are kept: names that never change, and files that count by their contents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.figures import figures
from mll_flower.config import RunConfig
from mll_flower.sweeps.cache import is_finished, run_folder, run_key


def test_key_of_a_run() -> None:
    config = RunConfig()
    assert run_key(config) == run_key(replace(config, output="/x", data_dir="/y", pool="worker"))
    for change in ({"seed": 1}, {"tau": 4}, {"learning_rate": 0.1}, {"graph": "path"}):
        assert run_key(config) != run_key(replace(config, **change))


def test_names_of_finished_runs_stay() -> None:
    # Days of computing are kept under these names: a change of the code that alters them without
    # altering the numbers would throw them away.
    (figure,) = figures("tau-q", "cnn", "paper")
    names = {setup.name: run_folder(Path("/"), setup.config(0)).name for setup in figure.setups}
    assert names["distributed"] == "cnn-1x100-332e649bac196fbb"
    assert "cnn-10x10-2612c77cdf77bf7a" in names.values()


def test_files_count_by_their_contents(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("def net(): ...\n")
    config = replace(RunConfig(), model="own.py:net", code_dir=str(tmp_path))
    module = replace(config, model="own:net")
    before = run_key(config), run_key(module)
    assert (run_key(config), run_key(module)) == before
    own.write_text("def net(): return 1\n")
    assert run_key(config) != before[0]
    assert run_key(module) != before[1]
    # A name that is a path makes no folders of its own.
    assert run_folder(tmp_path, replace(config, model="a/own.py:net")).parent == tmp_path / "runs"


@pytest.mark.parametrize("name", ["x.npz", "graph.json"])
def test_a_run_is_finished_when_its_folder_has_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert not is_finished(tmp_path)
    (tmp_path / "metrics.json").touch()
    assert is_finished(tmp_path)
