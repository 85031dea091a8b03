"""docs/architecture.md: the files that it names exist, and its layers are the checked ones."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
# `room/module.py` in the text is below mll_flower/, apart from the tests.
FILES = sorted(set(re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", PAGE)))


def layers() -> list[list[str]]:
    """The rooms of the import contract, from the top; rooms side by side in one list."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    return [row.split(" | ") for row in contracts[0]["layers"]]


@pytest.mark.parametrize("path", FILES)
def test_every_file_that_is_named_exists(path: str) -> None:
    assert (ROOT / "mll_flower" / path).exists() or (ROOT / path).exists()


def test_the_page_names_enough_to_be_worth_a_test() -> None:
    assert len(FILES) > 20


def test_the_picture_has_the_layers_that_are_checked() -> None:
    picture = re.search(r"^```\n( server_app .*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert picture is not None
    rows = [
        re.findall(r"(?<![a-z_])([a-z]+)(?:/|\.py) ", row) for row in picture[1].splitlines()[2:]
    ]
    assert [row for row in rows if row] == layers()


def test_every_room_is_in_a_layer() -> None:
    package = ROOT / "mll_flower"
    rooms = {p.parent.name for p in package.glob("*/__init__.py")}
    modules = {p.stem for p in package.glob("*.py")} - {"__init__"}
    assert rooms | modules == {room for row in layers() for room in row}
