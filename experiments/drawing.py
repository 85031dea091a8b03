"""Plots in the paper's form: loss and accuracy over slots, with the spread over the seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.figures import Figure, model_title
from experiments.inplace import Departure
from experiments.published import Comparison
from experiments.results import Curve
from mll_flower.results.figure_style import MUTED, colours, saved_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AXIS_LABELS = {
    "loss": "training loss",
    "accuracy": "test accuracy",
    "distance": "hubs' distance from the averaged model",
}


def draw_figure(figure: Figure, found: Mapping[str, list[Curve]], path: Path) -> Path:
    """Draw a figure's curves: the mean over the seeds in a band from the lowest to the highest."""
    metrics = ["loss", "accuracy"]
    if any(claim.metric == "distance" for claim in figure.claims):
        metrics.append("distance")
    title = f"{figure.title}: {model_title(figure.model)}"
    with _panels(path, len(metrics), title) as panels:
        for axes, metric in zip(panels, metrics, strict=True):
            for setup, colour in zip(figure.setups, colours(len(figure.setups)), strict=True):
                _band(axes, found[setup.name], metric, colour, setup.label)
            axes.set_xlabel("slot")
            axes.set_ylabel(_AXIS_LABELS[metric])
        panels[0].legend(fontsize=8)
    return path


def _band(axes: Axes, many: Sequence[Curve], metric: str, colour: str, label: str) -> None:
    x = many[0].series(metric)[0]
    end = min(curve.series(metric)[0][-1] for curve in many)
    x = x[x <= end]
    # An algorithm that waits for its workers is evaluated at other slots with each seed.
    y = np.stack([np.interp(x, *curve.series(metric)) for curve in many])
    if metric == "loss":
        # Without the untrained model, whose loss would squeeze all others into a flat line.
        x, y = x[1:], y[:, 1:]
    marker = "o" if len(x) <= 12 else None
    axes.plot(x, y.mean(axis=0), color=colour, label=label, marker=marker, markersize=3)
    if len(many) > 1:
        axes.fill_between(x, y.min(axis=0), y.max(axis=0), color=colour, alpha=0.2, linewidth=0)


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
