"""Plots of runs."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from mll_flower.results.plots import colours, plot_curves, plot_run
from mll_flower.results.runs import load_run
from tests.support.run_folders import absent, write_run

NAMES = ["learning.png", "disagreement.png", "steps.png", "graph.png"]


@pytest.fixture
def told() -> Iterator[list[str]]:
    """What Flower's logger warns of."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Keep(logging.WARNING)
    logger = logging.getLogger("flwr")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def red(path: Path) -> int:
    """Number of pixels in the colour of what went wrong."""
    picture = imread(path)[..., :3]
    return int(np.all(np.abs(picture - np.array([200, 30, 30]) / 255) < 0.02, axis=-1).sum())


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"hubs": 1, "workers_per_hub": 2, "graph": "complete"},
        {"hubs": 2, "graph": "path", "rounds": 1},
        {"evaluations": False},
        {"rounds": 3, "losses": [math.nan] * 4},
        {"rounds": 3, "losses": [2.0, math.inf, math.nan, 1.0]},
        {"hubs": 30, "graph": "path", "workers_per_hub": 5, "rounds": 60},
        {"absences": [absent(0, 0, 1), absent(5, 2, 8)]},
        {"wait_for_all": True},
        {"dataset": "npz:/tmp/$x_{$<script>.npz", "graph": "ring"},
    ],
    ids=str,
)
def test_every_run_gets_its_plots(tmp_path: Path, told: list[str], setting: dict[str, Any]) -> None:
    path = write_run(tmp_path / "a", **setting)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = plot_run(path)
    assert told == []
    assert drawn == [path / "plots" / name for name in NAMES]
    for file in drawn:
        picture = imread(file)
        assert picture.shape[0] > 400
        assert picture.shape[1] > 800
        assert picture[..., :3].std() > 0.02, f"{file} is blank"


def test_absences_are_marked(tmp_path: Path) -> None:
    plain = write_run(tmp_path / "a")
    gone = write_run(tmp_path / "b", absences=[absent(3, 1, 4)])
    plot_run(plain)
    plot_run(gone)
    for name in ("disagreement.png", "steps.png"):
        assert red(plain / "plots" / name) == 0
        assert red(gone / "plots" / name) > 10


def test_values_that_are_not_finite_are_marked(tmp_path: Path) -> None:
    plain = write_run(tmp_path / "a", rounds=3)
    diverged = write_run(tmp_path / "b", rounds=3, losses=[2.0, 1.0, math.nan, math.inf])
    plot_run(plain)
    plot_run(diverged)
    assert red(plain / "plots/learning.png") == 0
    assert red(diverged / "plots/learning.png") > 10


def test_a_picture_that_fails_is_told_and_the_others_are_drawn(
    tmp_path: Path, told: list[str]
) -> None:
    path = write_run(tmp_path / "a")
    result = json.loads((path / "metrics.json").read_text())
    del result["network"]["H"]
    (path / "metrics.json").write_text(json.dumps(result))
    assert [p.name for p in plot_run(path)] == NAMES[:3]
    assert len(told) == 1
    assert "graph.png not drawn: KeyError: 'H'" in told[0]


def test_a_folder_that_cannot_be_drawn_does_not_raise(tmp_path: Path, told: list[str]) -> None:
    assert plot_run(tmp_path) == []
    assert "is not a run's output" in told[0]
    path = write_run(tmp_path / "a")
    (path / "plots").write_text("in the way")
    assert plot_run(path) == []
    assert "FileExistsError" in told[1]


@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")]
)
def test_curves_in_every_format(tmp_path: Path, suffix: str, start: bytes) -> None:
    runs = [load_run(write_run(tmp_path / name)) for name in ("a", "b")]
    out = plot_curves(runs, tmp_path / f"p{suffix}", y=("loss", "accuracy"), title="T")
    assert out.read_bytes().startswith(start)


def test_curves_show_what_was_asked_for(tmp_path: Path) -> None:
    runs = [load_run(write_run(tmp_path / name)) for name in ("a", "b")]
    out = plot_curves(
        runs, tmp_path / "p.svg", "bytes", ("test_loss",), ["first", "second"], "A title", True
    )
    # matplotlib names each text that it draws as paths in a comment.
    words = out.read_text()
    for text in ("first", "second", "A title", "bytes sent", "test loss", "2 kB"):
        assert f"<!-- {text} -->" in words
    with pytest.raises(ValueError, match=r"p.jpg: a picture's name must end in one of .png"):
        plot_curves(runs, tmp_path / "p.jpg")


@pytest.mark.parametrize("number", [1, 8, 9, 20, 60])
def test_colours_are_told_apart_and_read_on_white_and_dark(number: int) -> None:
    palette = colours(number)
    assert len(set(palette)) == number
    for colour in palette:
        rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        light = float(linear @ [0.2126, 0.7152, 0.0722])
        assert 1.05 / (light + 0.05) > 2, f"{colour} on white"
        assert (light + 0.05) / (0.016 + 0.05) > 2, f"{colour} on the dark page"


def test_matplotlib_is_loaded_only_to_draw() -> None:
    script = (
        "import sys, mll_flower.results.plots, mll_flower.results.html_report, mll_flower.cli; "
        "assert 'matplotlib' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
