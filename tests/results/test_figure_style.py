"""The common look of figures: colours, and when matplotlib is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mll_flower.results.figure_style import colours, saved_figure


@pytest.mark.parametrize("number", [1, 8, 9, 20, 60])
def test_colours_differ_and_can_be_read_on_white_and_on_dark(number: int) -> None:
    palette = colours(number)
    assert len(set(palette)) == number
    for colour in palette:
        rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        luminance = float(linear @ [0.2126, 0.7152, 0.0722])
        assert 1.05 / (luminance + 0.05) > 2, f"{colour} on white"
        assert (luminance + 0.05) / (0.016 + 0.05) > 2, f"{colour} on the dark page"


def test_the_same_numbers_give_the_same_file(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        with saved_figure(tmp_path / name, 1, 2, "T", (4, 2)) as (left, right):
            left.plot([1, 2, 4])
            right.plot([4, 2, 1])
    content = (tmp_path / "a.png").read_bytes()
    assert content == (tmp_path / "b.png").read_bytes()
    assert b"Software" not in content


def test_nothing_is_written_when_drawing_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyError), saved_figure(tmp_path / "a.png", 1, 1, "", (4, 2)):
        raise KeyError
    with pytest.raises(ValueError, match=r"a.jpg: a figure's name must end in one of .png, .svg"):
        saved_figure(tmp_path / "a.jpg", 1, 1, "", (4, 2)).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_matplotlib_is_loaded_only_to_draw() -> None:
    script = (
        "import sys, mll_flower.results.plots, mll_flower.results.html_report, mll_flower.cli; "
        "assert 'matplotlib' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
