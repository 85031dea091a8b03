"""Plots of set-ups: curves with their spread over the seeds, and last values with intervals.

matplotlib is imported only when a plot is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mll_flower.results.figure_style import DASHES, INK, colours, saved_figure
from mll_flower.sweeps.curves import Curve, Curves, FloatArray
from mll_flower.sweeps.setups import Setup
from mll_flower.sweeps.verdicts import interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Band = Literal["interval", "range"]

# With more lines than this, a legend would hide the plot.
_LONGEST_LEGEND = 12


def plot_curves(setups: Sequence[Setup], found: Curves, title: str, path: Path) -> Path:
    """Draw loss and metric over the slots: the mean over the seeds in its 95 % interval."""
    with saved_figure(path, 1, 2, title, (11, 4.4)) as panels:
        draw_curves(panels, ("loss", "accuracy"), setups, found, band="interval")
    return path


def plot_last_values(
    setups: Sequence[Setup], found: Curves, slot: int, title: str, path: Path
) -> Path:
    """Draw each set-up's values at a slot: one dot per seed, the mean and its 95 % interval."""
    height = max(2.4, 1.4 + 0.34 * len(setups))
    places = np.arange(len(setups))[::-1]
    with saved_figure(path, 1, 2, title, (11, height)) as panels:
        for axes, metric in zip(panels, ("loss", "accuracy"), strict=True):
            for place, setup, colour in zip(places, setups, colours(len(setups)), strict=True):
                values = np.array([curve.at(slot, metric) for curve in found[setup.name]])
                axes.plot(values, np.full(len(values), place), "o", color=colour, alpha=0.4)
                half = interval(values)
                error = [half] if np.isfinite(half) else None
                axes.errorbar(
                    [values.mean()], [place], xerr=error, fmt="|", color=INK, capsize=4, zorder=3
                )
            axes.set_yticks(places, [setup.label for setup in setups])
            axes.set_xlabel(f"{_axis_label(found, metric)} at slot {slot:,}")
            axes.set_ylim(-0.6, len(setups) - 0.4)
        panels[1].set_yticklabels([])
    return path


def draw_curves(
    panels: Sequence[Axes],
    metrics: Sequence[str],
    setups: Sequence[Setup],
    found: Curves,
    band: Band,
) -> None:
    """Draw each metric of all set-ups into its panel: the mean over the seeds, in a band.

    Parameters
    ----------
    panels, metrics : sequence
        The panels, and one metric for each of them.
    setups : sequence of Setup
        The set-ups, in the order of their colours.
    found : Curves
        Their curves.
    band : {"interval", "range"}
        The mean's 95 % confidence interval (Student's t), or from the lowest to the highest.
    """
    for axes, metric in zip(panels, metrics, strict=True):
        for place, (setup, colour) in enumerate(zip(setups, colours(len(setups)), strict=True)):
            style = {"color": colour, "linestyle": DASHES[place % len(DASHES)]}
            _band(axes, found[setup.name], metric, style, setup.label, band)
        axes.set_xlabel("slot")
        axes.set_ylabel(_axis_label(found, metric))
        if band == "interval":
            _limit(axes, [c for many in found.values() for c in many], metric)
    if len(setups) <= _LONGEST_LEGEND:
        panels[0].legend(fontsize=8)


def _axis_label(found: Curves, metric: str) -> str:
    if metric == "distance":
        return "hubs' distance from the averaged model"
    first = next(many[0] for many in found.values() if many)
    return first.run.y_label(metric)


def _band(
    axes: Axes,
    many: Sequence[Curve],
    metric: str,
    style: dict[str, Any],
    label: str,
    band: Band,
) -> None:
    x = many[0].series(metric)[0]
    end = min(curve.series(metric)[0][-1] for curve in many)
    x = x[x <= end]
    # An algorithm that waits for its workers is evaluated at other slots with each seed.
    y = np.stack([np.interp(x, *curve.series(metric)) for curve in many])
    if metric == "loss" and len(x) > 1:
        # Without the untrained model, whose loss would squeeze all others into a flat line.
        x, y = x[1:], y[:, 1:]
    marker = "o" if len(x) <= 12 else None
    mean = y.mean(axis=0)
    axes.plot(x, mean, **style, label=label, marker=marker, markersize=3)
    if len(many) > 1:
        low, high = _edges(y, mean, band)
        axes.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)


def _limit(axes: Axes, many: Sequence[Curve], metric: str) -> None:
    """Show no more than twice the height of the curves: intervals of two seeds can be huge."""
    values = np.concatenate([curve.series(metric)[1][1:] for curve in many])
    values = values[np.isfinite(values)]
    if values.size:
        low, high, room = values.min(), values.max(), max(np.ptp(values) / 2, 1e-6)
        bottom, top = axes.get_ylim()
        axes.set_ylim(max(bottom, low - room), min(top, high + room))


def _edges(y: FloatArray, mean: FloatArray, band: Band) -> tuple[FloatArray, FloatArray]:
    if band == "range":
        return y.min(axis=0), y.max(axis=0)
    half = np.array([interval(column) for column in y.T])
    return mean - half, mean + half
