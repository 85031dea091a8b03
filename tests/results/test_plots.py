"""The plots that a run leaves in its folder, and curves of several runs."""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from mll_flower.results.plots import plot_curves, plot_run
from mll_flower.results.runs import load_run
from tests.support.run_folders import absent, write_run

NAMES = ["learning.png", "disagreement.png", "steps.png", "graph.png"]


@pytest.fixture
def warned() -> Iterator[list[str]]:
    """The warnings of Flower's logger during a test."""
    lines: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Collect(logging.WARNING)
    logger = logging.getLogger("flwr")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def red_pixels(path: Path) -> int:
    """Number of pixels in the colour that marks what went wrong."""
    pixels = imread(path)[..., :3]
    return int(np.all(np.abs(pixels - np.array([200, 30, 30]) / 255) < 0.02, axis=-1).sum())


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
def test_every_run_gets_its_plots(
    tmp_path: Path, warned: list[str], setting: dict[str, Any]
) -> None:
    path = write_run(tmp_path / "a", **setting)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = plot_run(path)
    assert warned == []
    assert drawn == [path / "plots" / name for name in NAMES]
    for file in drawn:
        pixels = imread(file)
        assert pixels.shape[0] > 400
        assert pixels.shape[1] > 800
        assert pixels[..., :3].std() > 0.02, f"{file} is blank"


def test_absences_are_marked(tmp_path: Path) -> None:
    complete = write_run(tmp_path / "a")
    with_absence = write_run(tmp_path / "b", absences=[absent(3, 1, 4)])
    plot_run(complete)
    plot_run(with_absence)
    for name in ("disagreement.png", "steps.png"):
        assert red_pixels(complete / "plots" / name) == 0
        assert red_pixels(with_absence / "plots" / name) > 10


def test_values_that_are_not_finite_are_marked(tmp_path: Path) -> None:
    converged = write_run(tmp_path / "a", rounds=3)
    diverged = write_run(tmp_path / "b", rounds=3, losses=[2.0, 1.0, math.nan, math.inf])
    plot_run(converged)
    plot_run(diverged)
    assert red_pixels(converged / "plots/learning.png") == 0
    assert red_pixels(diverged / "plots/learning.png") > 10


def test_a_plot_that_fails_is_logged_and_the_others_are_drawn(
    tmp_path: Path, warned: list[str]
) -> None:
    path = write_run(tmp_path / "a")
    result = json.loads((path / "metrics.json").read_text())
    del result["network"]["H"]
    (path / "metrics.json").write_text(json.dumps(result))
    assert [p.name for p in plot_run(path)] == NAMES[:3]
    assert len(warned) == 1
    assert "graph.png not drawn: KeyError: 'H'" in warned[0]


def test_a_folder_that_cannot_be_drawn_does_not_raise(tmp_path: Path, warned: list[str]) -> None:
    assert plot_run(tmp_path) == []
    assert "is not a run's output" in warned[0]
    path = write_run(tmp_path / "a")
    (path / "plots").write_text("in the way")
    assert plot_run(path) == []
    assert "FileExistsError" in warned[1]


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
    # matplotlib draws text as paths, each after a comment with the text.
    drawn = out.read_text()
    for text in ("first", "second", "A title", "bytes sent", "test loss", "2 kB"):
        assert f"<!-- {text} -->" in drawn
    with pytest.raises(ValueError, match=r"p.jpg: a figure's name must end in one of .png"):
        plot_curves(runs, tmp_path / "p.jpg")


def test_a_logarithmic_axis_has_plain_numbers(tmp_path: Path) -> None:
    losses = [10.0 ** -(r / 2) for r in range(9)]
    run = load_run(write_run(tmp_path / "a", rounds=8, losses=losses))
    out = plot_curves([run], tmp_path / "p.svg", y=("loss",), log_y=True)
    text = out.read_text()
    for label in ("0.0001", "0.01", "1"):
        assert f"<!-- {label} -->" in text
    assert "mathdefault" not in text
