"""Config values in Flower's spelling, read back by Flower's own parser."""

from __future__ import annotations

import math

import pytest
from flwr.common.config import parse_config_args
from hypothesis import given
from hypothesis import strategies as st

from mll_flower.processes.config_pairs import config_pairs

names = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True)
# Surrogates alone are no text: no command line can carry them.
texts = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.floats(allow_nan=False) | st.integers(-(2**63), 2**63 - 1)


@given(st.dictionaries(names, st.booleans() | numbers | texts, max_size=6))
def test_flower_reads_what_was_written(values: dict[str, bool | int | float | str]) -> None:
    read = parse_config_args([config_pairs(values)])
    assert read == values
    assert [type(read[key]) for key in values] == [type(value) for value in values.values()]


@pytest.mark.parametrize(
    "value",
    [
        "/a folder/with spaces=and more/run.toml",
        "C:\\data\\new",
        "ends with a backslash\\",
        'one "double" quote',
        "one 'single' quote",
        '\'both\' "kinds" \\"escaped\\"',
        "two\nlines\tand a tab",
        "Zürich \N{WHITE SMILING FACE} \N{GRINNING FACE}",
        "dirichlet(0.5)",
        "network.toml",
        "",
    ],
)
def test_strings_that_are_easily_misread(value: str) -> None:
    read = parse_config_args([config_pairs({"first": 1, "key": value, "last": "x"})])
    assert read == {"first": 1, "key": value, "last": "x"}


def test_the_spelling() -> None:
    values = {"hubs": 5, "rate": 1e-05, "wait": True, "off": False, "model": "cnn"}
    assert config_pairs(values) == 'hubs=5 rate=1e-05 wait=true off=false model="cnn"'
    assert math.isnan(parse_config_args([config_pairs({"x": math.nan})])["x"])
    assert config_pairs({}) == ""


@pytest.mark.parametrize("value", [None, [1, 2], {"a": 1}])
def test_values_that_no_config_can_hold_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"key=.*: use a number, a string, true or false"):
        config_pairs({"key": value})


@pytest.mark.parametrize("name", ["", "two words", "a=b", "a.b", '"quoted"', "a\n"])
def test_names_that_flower_would_misread_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="use letters, digits, hyphens and underscores"):
        config_pairs({name: 1})
