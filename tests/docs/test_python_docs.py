"""docs/python.md: its code runs, as the cells of a notebook, and it explains every argument."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import mll_flower
from mll_flower.config import RunConfig
from tests.support.event_files import scalars
from tests.support.run_folders import write_hub

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
CELLS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def outputs(folder: Path) -> list[list[dict[str, Any]]]:
    """Run the page as a notebook; return the outputs of each cell."""
    write_hub(folder / "state" / "hub-paris")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    return [list(cell.outputs) for cell in notebook.cells]


def data(outputs: list[dict[str, Any]], kind: str) -> list[str]:
    return [output["data"][kind] for output in outputs if kind in output.get("data", {})]


def cell_with(text: str) -> int:
    (index,) = [index for index, code in enumerate(CELLS) if text in code]
    return index


def test_a_run_shows_a_bar_and_its_summary(outputs: list[list[dict[str, Any]]]) -> None:
    bar, summary = data(outputs[0], "text/html")
    assert '<progress value="128" max="128"' in bar
    assert re.search(r"slot 128 of 128 .* loss 0\.\d{4}  accuracy 0\.\d{4}", bar)
    assert "3 hubs (path), tau = 8, q = 2" in summary
    # Nothing else: no line of a log, no warning.
    assert len(outputs[0]) == 2


def test_figures_and_frames_are_shown(outputs: list[list[dict[str, Any]]]) -> None:
    shown = {index: data(cell, "image/png") for index, cell in enumerate(outputs)}
    for index, code in enumerate(CELLS):
        assert len(shown[index]) == (".plot(" in code), code
    (table,) = data(outputs[cell_with("groupby")], "text/plain")
    assert "distance" in table


def test_the_runs_are_on_disk(outputs: list[list[dict[str, Any]]], folder: Path) -> None:
    short = mll_flower.load_run(folder / "runs" / "short")
    assert short.finished
    assert short.evaluations[-1]["slot"] == 512
    (bar,) = data(outputs[cell_with("except GoodEnough")], "text/html")
    assert "stopped: GoodEnough" in bar
    assert "averaged model/accuracy" in scalars(folder / "events" / "trial")


def test_every_argument_and_result_is_explained() -> None:
    keys = {field.name for field in fields(RunConfig)}
    for name in set(inspect.signature(mll_flower.simulate).parameters) - keys:
        assert f"`{name}`" in PAGE, name
    public = {name for name in vars(mll_flower.RunResult) if not name.startswith("_")}
    for name in (public | {f.name for f in fields(mll_flower.RunResult)}) - {"from_run", "title"}:
        assert re.search(rf"`{name}[`(]", PAGE), name
