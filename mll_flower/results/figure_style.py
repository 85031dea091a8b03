"""The style of all figures: colours, the common matplotlib style, how a figure is written.

Plots of runs, drawings of the hub graph, the HTML report, the experiments and the benchmarks use
this module, so that their figures look alike. matplotlib is imported only when a figure is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
"""Endings of a figure's file name."""

INK, MUTED, EDGE, GRID = "#1f2933", "#616e7c", "#9aa5b1", "#e4e7eb"
"""Colours of text, of labels and ticks, of a graph's edges, of grid lines."""

ALERT = "#c81e1e"
"""Colour of what went wrong: absent workers, values that are not finite."""

PALETTE = ("#2f6fb5", "#d9822b", "#2a9d8f", "#b5477d", "#7a6bc9", "#8a6d3b", "#4fa3d8", "#5f6b7a")
"""Colours that differ for every kind of colour vision, and in lightness when printed in grey."""


DASHES: tuple[Any, ...] = ("-", (0, (7, 2)), (0, (3, 2)), (0, (1, 1.2)), (0, (7, 1.5, 1, 1.5)))
"""Lines of curves that are drawn one after another: where one hides another, both are seen."""


def colours(number: int) -> list[str]:
    """Return ``number`` distinct colours for the hubs, or the runs, of a figure.

    Up to eight are those of `PALETTE`. Beyond that they are spaced evenly around the colour
    wheel, and neighbours differ in lightness too.
    """
    if number <= len(PALETTE):
        return list(PALETTE[:number])
    return [_hue(i / number, (0.56, 0.68)[i % 2]) for i in range(number)]


@contextmanager
def saved_figure(
    path: Path,
    rows: int,
    columns: int,
    title: str,
    size: tuple[float, float],
    font: float = 10.5,
    dpi: int = 150,
) -> Iterator[list[Axes]]:
    """Open a figure in the common style, and write it to a file at the end.

    Parameters
    ----------
    path : Path
        The file; its name ends in one of `FORMATS`.
    rows, columns : int
        Number of panels down and across.
    title : str
        Title of the whole figure; none when empty.
    size : tuple of float
        Width and height in inches.
    font : float
        Font size in points.
    dpi : int
        Pixels per inch of a PNG.

    Yields
    ------
    list of Axes
        The panels, row by row.
    """
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{path}: a figure's name must end in one of {', '.join(FORMATS)}")
    with styled_figure(rows, columns, title, size, font) as (figure, panels):
        yield panels
    # matplotlib's version is left out of the file: the same numbers give the same bytes.
    metadata = {"Software": None} if path.suffix == ".png" else {}
    figure.savefig(path, dpi=dpi, metadata=metadata)


@contextmanager
def styled_figure(
    rows: int, columns: int, title: str, size: tuple[float, float], font: float = 10.5
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Open a figure in the common style, which whoever asked for it shows or saves.

    Parameters
    ----------
    rows, columns, title, size, font
        As in `saved_figure`.

    Yields
    ------
    figure : Figure
        The figure.
    panels : list of Axes
        Its panels, row by row.
    """
    from matplotlib import rc_context

    # Not through pyplot, which wants a display and keeps state that other code shares.
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "font.size": font,
        "text.color": INK,
        "text.parse_math": False,
        "axes.edgecolor": GRID,
        "axes.labelcolor": MUTED,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": GRID,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
    }
    with rc_context(style):

        class ShownFigure(Figure):
            """A figure that a notebook shows, as it shows those of pyplot."""

            def _repr_png_(self) -> bytes:
                image = BytesIO()
                self.savefig(image, format="png")
                return image.getvalue()

        figure = ShownFigure(figsize=size, layout="constrained", facecolor="white")
        yield figure, list(figure.subplots(rows, columns, squeeze=False).flat)
        if title:
            figure.suptitle(title, fontsize=font + 2)


def _hue(turn: float, lightness: float) -> str:
    """Return a colour of the OKLCH wheel, as #rrggbb; ``turn`` goes once around from 0 to 1.

    All hues of this wheel look equally light at the same lightness, so that none fades on white
    or on a dark page. The matrices are those that define OKLab (Ottosson 2020).
    """
    a, b = (0.13 * part(2 * math.pi * turn) for part in (math.cos, math.sin))
    cube = np.array(
        [
            lightness + 0.3963377774 * a + 0.2158037573 * b,
            lightness - 0.1055613458 * a - 0.0638541728 * b,
            lightness - 0.0894841775 * a - 1.2914855480 * b,
        ]
    )
    to_rgb = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ]
    )
    linear = np.clip(to_rgb @ cube**3, 0, 1)
    rgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(255 * float(part)):02x}" for part in rgb)
