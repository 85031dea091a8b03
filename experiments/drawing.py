"""Plots in the paper's form: loss and accuracy over slots, with the spread over the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.figures import Figure, model_title
from experiments.inplace import Departure
from experiments.published import Comparison
from mll_flower.results.figure_style import MUTED, colours, saved_figure
from mll_flower.sweeps.curves import Curves
from mll_flower.sweeps.drawing import draw_curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_figure(figure: Figure, found: Curves, path: Path) -> Path:
    """Draw a figure's curves: the mean over the seeds in a band from the lowest to the highest."""
    if figure.panels:
        return _draw_panels(figure, found, path)
    metrics = ["loss", "accuracy"]
    if any(claim.metric == "distance" for claim in figure.claims):
        metrics.append("distance")
    long = figure.scale == "paper" and len(metrics) == 2
    if long:
        metrics.append("loss")
    title = f"{figure.title}: {model_title(figure.model)}"
    with _panels(path, len(metrics), title) as panels:
        draw_curves(panels, metrics, figure.setups, found, band="range")
        if long:
            _show_the_end(panels[-1], found)
    return path


def _show_the_end(axes: Axes, found: Curves) -> None:
    """Limit a panel of losses to the last quarter, where long runs come near to one another."""
    runs = [curve for many in found.values() for curve in many]
    last = max(curve.series("loss")[0][-1] for curve in runs)
    shown = np.concatenate([y[x >= 0.75 * last] for x, y in (c.series("loss") for c in runs)])
    shown = shown[np.isfinite(shown)]
    axes.set_xlim(0.75 * last, last)
    if shown.size:
        axes.set_ylim(shown.min(), shown.max())
    axes.set_title("the last quarter", fontsize=10, color=MUTED)


def _draw_panels(figure: Figure, found: Curves, path: Path) -> Path:
    """Draw a figure in panels of its own, two of them side by side."""
    setups = {setup.name: setup for setup in figure.setups}
    rows = (len(figure.panels) + 1) // 2
    title = f"{figure.title}: {model_title(figure.model)}"
    with saved_figure(path, rows, 2, title, (11, 4.4 * rows), font=9, dpi=90) as axes:
        for panel, place in zip(figure.panels, axes, strict=False):
            shown = [
                replace(setups[name], label=setups[name].label.removeprefix(f"{panel.title}, "))
                for name in panel.setups
            ]
            curves = {name: found[name] for name in panel.setups}
            draw_curves([place], [panel.metric], shown, curves, band="range")
            place.set_title(panel.title, fontsize=10, color=MUTED)
    return path


def draw_published(comparisons: Sequence[Comparison], path: Path) -> Path:
    """Draw our curves and the authors' points over the gradient steps per worker."""
    titles = ("matched", "as the paper reads")
    with _panels(path, 2, "Logistic regression on MNIST: ours (lines), published (dots)") as panels:
        for axes, kind in zip(panels, titles, strict=True):
            group = [c for c in comparisons if c.label.startswith(kind)]
            for c, colour in zip(group, colours(len(group)), strict=True):
                shown = c.curve_slots >= c.slots[0]
                label = c.label.removeprefix(f"{kind}: ")
                axes.plot(c.curve_slots[shown], c.curve_loss[shown], color=colour, label=label)
                axes.plot(c.slots, c.published, "o", color=colour, markersize=4)
            axes.set_xscale("log")
            axes.set_title(kind, fontsize=10, color=MUTED)
            axes.set_xlabel("gradient steps of a worker")
            axes.set_ylabel("training loss")
            axes.legend(fontsize=8)
    return path


def draw_departures(cases: Sequence[Departure], path: Path) -> Path:
    """Draw the hubs' shares b beside the weights that in-place averaging gives them."""
    with _panels(path, len(cases), "Weights of hubs after averaging in place") as panels:
        for axes, case in zip(panels, cases, strict=True):
            hubs = np.arange(len(case.b))
            blue, orange = colours(2)
            axes.bar(hubs - 0.2, case.b, 0.4, color=blue, label="share b (the paper)")
            axes.bar(hubs + 0.2, case.pi, 0.4, color=orange, label="in place")
            axes.set_title(case.name, fontsize=10, color=MUTED)
            axes.set_xlabel("hub")
        panels[0].set_ylabel("weight in the consensus")
        panels[-1].legend(fontsize=8)
    return path


def _panels(path: Path, columns: int, title: str) -> AbstractContextManager[list[Axes]]:
    return saved_figure(path, 1, columns, title, (4.3 * columns, 3.3), font=9, dpi=90)
