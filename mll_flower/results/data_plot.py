"""Plot of what makes a run non-IID: the labels that each hub holds, and how its model does.

Drawn for runs that have recorded it; see `mll_flower.results.plots`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mll_flower.results.figure_style import INK, saved_figure
from mll_flower.results.runs import Run

NAME = "hubs.png"


def has_data_plot(run: Run) -> bool:
    """Return whether a run has recorded what `plot_data` draws."""
    return bool(run.result and run.result.get("labels") and run.result.get("hub_models"))


def plot_data(run: Run, path: Path) -> None:
    """Draw the share of each label in each hub, and the metric of each hub's model."""
    counts = np.array(run.end["labels"]["hubs"], dtype=float)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    values = [hub[run.metric] for hub in run.end["hub_models"]]
    hubs = np.arange(len(counts))
    height = float(np.clip(1.6 + 0.3 * len(counts), 3.4, 12))
    title = "Labels of each hub's workers, and its model at the end"
    with saved_figure(path, 1, 2, title, size=(10, height)) as (left, right):
        image = left.imshow(shares, aspect="auto", cmap="Blues", vmin=0)
        left.figure.colorbar(image, ax=left, label="share of the hub's rows")
        left.set(xlabel="label", ylabel="hub")
        right.barh(hubs, values, height=0.7)
        right.invert_yaxis()
        right.axvline(run.summary[run.metric], color=INK, linewidth=1.4)
        # Not in a legend, which would lie on a bar.
        label = f"test {run.metric} of each hub's model (line: averaged model)"
        right.set(xlabel=label, ylabel="hub")
        left.grid(visible=False)
        right.grid(visible=False, axis="y")
        for axes in (left, right):
            if len(hubs) <= 30:
                axes.set_yticks(hubs)
