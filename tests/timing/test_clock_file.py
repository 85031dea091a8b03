"""Mistakes in the file of a clock: each is named with its remedy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mll_flower.config import RunConfig
from mll_flower.timing.clock_file import load_clock

GOOD = """
[[region]]
name = "a"
workers = 2
seconds-per-step = 0.5
down-mbit = 8
up-mbit = 8
[[region]]
name = "b"
workers = 1
seconds-per-step = 0.5
down-mbit = 8
up-mbit = 8
[[link]]
between = ["a", "b"]
mbit = 8
"""


def load(folder: Path, text: str) -> object:
    (folder / "clock.toml").write_text(text)
    return load_clock(folder / "clock.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("workers = 2", "workers = 0", r"region a: workers: 0; give a whole number"),
        ("workers = 2", "worker = 2", r"region 1: worker: unknown key; the known ones are"),
        ("workers = 2", "", r"region a: workers: missing; add workers"),
        ('name = "b"', 'name = "a"', r"name: 'a' is taken; give each region"),
        ("seconds-per-step = 0.5", "", r"seconds-per-step / rates: give one of the two"),
        ("seconds-per-step = 0.5", "rates = 0.5", r"clock: slot: missing; rates are steps"),
        ("seconds-per-step = 0.5", "seconds-per-step = [1]", r"has 1 entries; .*\(2\)"),
        ("seconds-per-step = 0.5", "seconds-per-step = -1", r"seconds-per-step: -1; .* above 0"),
        ("down-mbit = 8", "", r"region a: down-mbit: missing; add down-mbit"),
        ("down-mbit = 8", 'down-mbit = "fast"', r"down-mbit: 'fast'; give a number above 0"),
        ('between = ["a", "b"]', 'between = ["a", "c"]', r"no region 'c'; they are a, b"),
        ('between = ["a", "b"]', 'between = ["a"]', r"between: \['a'\]; name two regions"),
        ('between = ["a", "b"]\nmbit = 8', 'between = ["a", "b"]\nclosed = true', r"no link joins"),
        ("[[link]]", "[link]", r"link: is no list of tables; write \[\[link\]\]"),
        ("[[link]]", "[other]", r"other: unknown key"),
        ("[[link]]", "[clock]\nslot = 0\n[[link]]", r"clock: slot: 0; give a number above 0"),
        ("[[link]]", "[clock]\ntrace-steps = 2\n[[link]]", r"given without trace; add trace"),
        ("[[link]]", '[clock]\ntrace = "no.csv"\n[[link]]', r"model-megabytes: missing"),
        ("[[link]]", "[[link", r"not TOML"),
    ],
)
def test_mistakes(tmp_path: Path, old: str, new: str, message: str) -> None:
    load(tmp_path, GOOD)
    with pytest.raises(ValueError, match=message):
        load(tmp_path, GOOD.replace(old, new, 1))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, r"cannot be read"),
        ("worker,seconds\n0,1\n", r"columns round are missing: the first line must be"),
        ("worker,round,seconds\n", r"no row"),
        ("worker,round,seconds\n0,1,9\n1,1,9\n", r"worker 2 has no row in round 1"),
        ("worker,round,seconds\n3,1,9\n", r"line 2: .*give each worker \(0 to 2\)"),
        ("worker,round,seconds\n0,1,x\n", r"line 2: .*give each worker"),
        ("worker,round,seconds\n0,1,9\n0,1,9\n", r"line 3: .*give each worker"),
        ("worker,round,seconds\n0,1,9\n1,1,9\n2,1,1\n", r"worker 2, round 1: it arrived after 1 s"),
    ],
)
def test_bad_traces(tmp_path: Path, rows: str | None, message: str) -> None:
    if rows is not None:
        (tmp_path / "t.csv").write_text(rows)
    clock = '[clock]\nmodel-megabytes = 1\ntrace = "t.csv"\ntrace-steps = 4\n'
    with pytest.raises(ValueError, match=message):
        load(tmp_path, clock + GOOD)


def test_links_for_all_with_exceptions(tmp_path: Path) -> None:
    third = GOOD[: GOOD.index("[[region]]", 5)].replace('"a"', '"c"')
    links = '[links]\nmbit = 16\n[[link]]\nbetween = ["c", "b"]\nclosed = true\n'
    clock: object = load(tmp_path, GOOD + third + links)
    per_byte = clock.link_per_byte  # type: ignore[attr-defined]
    assert per_byte[0, 1] == per_byte[1, 0] == 1e-6  # as listed
    assert per_byte[0, 2] == 0.5e-6  # as all others
    assert np.isinf(per_byte[1, 2])


def test_a_run_must_have_the_workers_and_rates_of_its_clock(tmp_path: Path) -> None:
    load(tmp_path, GOOD)
    path = str(tmp_path / "clock.toml")
    config = RunConfig.from_run_config({"clock": path})
    assert (config.hubs, config.workers_per_hub) == (2, "2,1")
    assert config.network().p.tolist() == [1, 1, 1]
    assert RunConfig.from_run_config({"clock": path, "preset": "fedavg"}).hubs == 1
    for given, message in (
        ({"hubs": 3, "workers-per-hub": "2"}, r"the run has \[2, 2, 2\]: leave out hubs"),
        ({"rates": "0.5"}, r"rates='0.5' are not those of clock"),
    ):
        with pytest.raises(ValueError, match=message):
            RunConfig.from_run_config({"clock": path, **given})
    with pytest.raises(ValueError, match=r"clock file .* cannot be read .*: check the path"):
        RunConfig.from_run_config({"clock": str(tmp_path / "no.toml")})
