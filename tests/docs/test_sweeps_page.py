"""docs/sweeps.md shows the example's file, and names every key of sweep.json."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from mll_flower.sweeps.runner import Job, Progress
from mll_flower.sweeps.setups import Setup
from mll_flower.sweeps.state import FILE, StateWriter
from mll_flower.sweeps.sweep_file import _CLAIM, _PARTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sweeps.md").read_text()


def test_the_file_of_the_page_is_the_example() -> None:
    example = (ROOT / "examples" / "sweeps" / "periods.toml").read_text()
    shown = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert shown is not None
    assert tomllib.loads(shown[1]) == tomllib.loads(example)


def test_every_part_and_key_of_a_file_is_explained() -> None:
    for name in (*_PARTS, *_CLAIM):
        assert re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", PAGE), name


def test_every_key_of_the_state_is_explained(tmp_path: Path) -> None:
    setup = Setup("a", "a", {"slots": 64})
    folders = [tmp_path / "runs" / name for name in ("x", "y")]
    jobs = [Job(setup.config(0), folders[0])]
    state = StateWriter(tmp_path, "title", "file", [(setup, range(2))], jobs, 1)
    first, second = state.runs
    part = first.with_name("x.1.part")
    state.update(Progress(running={first: part}, failures={second: "why"}))
    written = json.loads((tmp_path / FILE).read_text())
    assert [run["state"] for run in written["runs"]] == ["running", "failed"]
    assert written["runs"][0]["part"] == "runs/x.1.part"
    section = PAGE[PAGE.index("## The state of a sweep") :]
    keys = {*written, *(key for run in written["runs"] for key in run)}
    assert {"updated", "seconds_left", "share", "error"} <= keys
    assert [key for key in keys if f"`{key}`" not in section] == []
    state.end("interrupted")
    written = json.loads((tmp_path / FILE).read_text())
    assert [run["state"] for run in written["runs"]] == ["waiting", "failed"]
