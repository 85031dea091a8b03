"""The picture of a plan: the finalists' curves over the seconds of the clock, with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mll_flower.planning.pilots import Curve
from mll_flower.planning.plan_file import Goal
from mll_flower.planning.verdict import Interval, Verdict
from mll_flower.results.figure_style import INK, colours, saved_figure
from mll_flower.timing.clock import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mll_flower.planning.candidates import Candidate

_POINTS = 200
# Seconds from which on an axis is in minutes, and in hours.
_UNITS = ((7200.0, 3600.0, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


def draw_plan(
    path: Path,
    title: str,
    verdict: Verdict,
    finals: dict[Candidate, list[Curve]],
    goal: Goal,
    measure: str,
) -> None:
    """Draw the finalists: their curves, and what each needs to the target or has at the end.

    Parameters
    ----------
    path : Path
        The file: .png, .svg or .pdf.
    title : str
        Title of the figure.
    verdict : Verdict
        The order of the finalists.
    finals : dict
        Their curves.
    goal : Goal
        Its target is drawn as a line.
    measure : str
        Name of what the goal measures.
    """
    longest = max(curve.seconds[-1] for curves in finals.values() for curve in curves)
    unit, name = next((unit, name) for least, unit, name in _UNITS if longest >= least)
    palette = colours(len(verdict.rows))
    with saved_figure(path, 1, 2, title, size=(12, 4.6)) as (left, right):
        for row, colour in zip(verdict.rows, palette, strict=True):
            line = "--" if row.candidate.waits else "-"
            seconds, low, middle, high = band(finals[row.candidate])
            left.plot(seconds / unit, middle, line, color=colour, label=row.candidate.name)
            left.fill_between(seconds / unit, low, high, color=colour, alpha=0.15, linewidth=0)
        if goal.target is not None:
            left.axhline(goal.target, color=INK, linewidth=1, linestyle=":", label="target")
        left.set_xlabel(f"{name} on the simulated clock")
        left.set_ylabel(f"test {measure}: mean and 95 % interval over seeds")
        left.legend(loc="lower right" if middle[-1] > middle[0] else "upper right", fontsize=8.5)
        _draw_bars(right, verdict, goal, palette, unit, name, measure)


def band(curves: list[Curve]) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return seconds, the mean of some curves at these, and the ends of its interval.

    A curve that has ended at its target stays there.
    """
    seconds = np.linspace(0.0, max(curve.seconds[-1] for curve in curves), _POINTS)
    values = np.array([np.interp(seconds, curve.seconds, curve.values) for curve in curves])
    intervals = [Interval.of(column) for column in values.T]
    middle = np.array([interval.mean for interval in intervals])
    half = np.nan_to_num(np.array([interval.half for interval in intervals]))
    return seconds, middle - half, middle, middle + half


def _draw_bars(
    axes: Axes,
    verdict: Verdict,
    goal: Goal,
    palette: list[str],
    unit: float,
    name: str,
    measure: str,
) -> None:
    """Draw one bar per finalist, the best at the top."""
    has_target = goal.target is not None
    places = np.arange(len(verdict.rows))[::-1]
    for place, row, colour in zip(places, verdict.rows, palette, strict=True):
        interval, scale = (row.seconds, unit) if has_target else (row.value, 1.0)
        axes.barh(place, interval.mean / scale, color=colour, height=0.62)
        axes.errorbar(
            interval.mean / scale,
            place,
            xerr=np.nan_to_num(interval.half) / scale,
            color=INK,
            capsize=3,
            linewidth=1.2,
        )
        if has_target and not row.all_reached:
            text = f" {row.seeds - row.reached} of {row.seeds} did not arrive"
            axes.text(interval.mean / scale, place + 0.34, text, fontsize=8, ha="right")
    axes.set_yticks(places, [row.candidate.name for row in verdict.rows], fontsize=9)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"{name} to the target" if has_target else f"test {measure} at the end")
