"""Plots of runs: those that every run leaves in its folder, and curves of several runs.

matplotlib is imported only when a plot is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from logging import WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.supercore import log

from mll_flower.results import data_plot, files
from mll_flower.results.data_plot import has_data_plot
from mll_flower.results.figure_style import (
    ALERT,
    INK,
    PALETTE,
    colours,
    saved_figure,
    styled_figure,
)
from mll_flower.results.hub_graph import draw_hub_graph
from mll_flower.results.runs import (
    X_AXES,
    Y_AXES,
    FloatArray,
    Run,
    labels_for,
    load_run,
    shared_y_label,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# With more lines than this, a legend would hide the plot.
_LONGEST_LEGEND = 24


def plot_run(output: Path) -> list[Path]:
    """Draw a run's plots into its folder, under plots/.

    A failure here never costs the results of a run: a plot that cannot be drawn is named in the
    log with the reason, and the others are drawn.

    Parameters
    ----------
    output : Path
        The run's folder, with its metrics.

    Returns
    -------
    list of Path
        The files: learning.png, disagreement.png, steps.png, graph.png, and hubs.png
        if the run has classes.
    """
    drawn: list[Path] = []
    folder = output / files.PLOTS
    try:
        run = load_run(output)
        folder.mkdir(exist_ok=True)
    except Exception as error:
        log(WARNING, "no plots of %s: %s: %s", output, type(error).__name__, error)
        return drawn
    plots = {**_PLOTS, data_plot.NAME: data_plot.plot_data} if has_data_plot(run) else _PLOTS
    for name, draw in plots.items():
        try:
            draw(run, folder / name)
            drawn.append(folder / name)
        except Exception as error:
            log(WARNING, "plot %s not drawn: %s: %s", folder / name, type(error).__name__, error)
    return drawn


def plot_curves(
    runs: Sequence[Run],
    out: str | Path,
    x: str = "slots",
    y: Sequence[str] = ("accuracy",),
    labels: Sequence[str] = (),
    title: str = "",
    log_y: bool = False,
) -> Path:
    """Draw the same curves of several runs, one panel per ``y``.

    Parameters
    ----------
    runs : sequence of Run
        The runs.
    out : str or Path
        The file; its name ends in .png, .svg or .pdf.
    x, y : str, sequence of str
        One of `mll_flower.results.runs.X_AXES`; some of `mll_flower.results.runs.Y_AXES`.
    labels : sequence of str
        One per run; the folders' names when not given.
    title : str
        Title of the figure.
    log_y : bool
        Whether losses and accuracies are drawn on a logarithmic axis.

    Returns
    -------
    Path
        The file.
    """
    out = Path(out)
    names = labels_for(runs, labels)
    size = (7.2 if len(y) == 1 else 11, 4.4)
    with saved_figure(out, 1, len(y), title, size) as panels:
        for axes, key in zip(panels, y, strict=True):
            for run, name, colour in zip(runs, names, colours(len(runs)), strict=True):
                _curve(axes, *run.series(x, key), colour, name, dots=len(runs) == 1)
            _label_axes(axes, X_AXES[x][1], shared_y_label(runs, key))
            if x == "bytes":
                _show_units_of_bytes(axes)
            if log_y:
                axes.set_yscale("log", nonpositive="mask")
                _show_plain_numbers(axes)
        if 1 < len(runs) <= _LONGEST_LEGEND or labels:
            panels[0].legend()
    return out


def curves_figure(
    evaluations: Sequence[Mapping[str, Any]], x: str, y: Sequence[str], title: str
) -> Figure:
    """Return a figure of one run's curves, one panel per ``y``.

    Parameters
    ----------
    evaluations : sequence of Mapping
        The evaluations of the run.
    x : str
        One of `mll_flower.results.runs.X_AXES`.
    y : sequence of str
        Names of values of the evaluations.
    title : str
        Title of the figure.
    """
    known = set(evaluations[0]) if evaluations else {*Y_AXES, *(key for key, _ in X_AXES.values())}
    axes_of_x = {name: axis for name, axis in X_AXES.items() if axis[0] in known}
    values = [name for name in known if name not in {key for key, _ in X_AXES.values()}]
    for name, choices in ((x, list(axes_of_x)), *((name, sorted(values)) for name in y)):
        if name not in choices:
            raise ValueError(f"{name!r} is not known: use {', '.join(choices)}")
    key, label = X_AXES[x]
    size = (7.2 if len(y) == 1 else 5.5 * len(y), 4.2)
    with styled_figure(1, len(y), title, size) as (figure, panels):
        for axes, name, colour in zip(panels, y, colours(len(y)), strict=True):
            places, heights = (
                np.array([np.nan if e[k] is None else e[k] for e in evaluations], dtype=np.float64)
                for k in (key, name)
            )
            _curve(axes, places, heights, colour, "", dots=True)
            _label_axes(axes, label, Y_AXES.get(name, name))
            if x == "bytes":
                _show_units_of_bytes(axes)
    return figure


def _plot_learning(run: Run, path: Path) -> None:
    title = f"{run.config['model']} on {run.end['data']}: {_setting(run)}"
    train_colour, test_colour, metric_colour = PALETTE[:3]
    with saved_figure(path, 1, 2, title, size=(11, 4.2)) as (left, right):
        for key, colour, line in (("loss", train_colour, "-"), ("test_loss", test_colour, "--")):
            _curve(left, *run.series("slots", key), colour, Y_AXES[key], True, line)
        _label_axes(left, "slot", "loss of the averaged model")
        left.legend()
        _curve(right, *run.series("slots", "accuracy"), metric_colour, "", True)
        _label_axes(right, "slot", f"{run.metric} of the averaged model")


def _plot_disagreement(run: Run, path: Path) -> None:
    title = "Hub disagreement: distance of each hub's average from the averaged model"
    hubs = run.network.hubs
    with saved_figure(path, 1, 1, title, size=(9, 4.4)) as (axes,):
        with_absences = []
        for hub, colour in enumerate(colours(hubs)):
            rows = [row for row in run.hub_rows if row.hub == hub]
            slots = np.array([row.slot for row in rows], dtype=np.float64)
            distance = np.array([row.distance for row in rows], dtype=np.float64)
            _curve(axes, slots, distance, colour, f"hub {hub}", dots=len(rows) == 1)
            with_absences += [(row.slot, row.distance) for row in rows if row.absent]
        if with_absences:
            x, y = zip(*with_absences, strict=True)
            axes.scatter(x, y, marker="x", color=ALERT, zorder=4, label="absent workers")
        axes.set_ylim(bottom=0)
        _label_axes(axes, "slot", "distance")
        if hubs <= _LONGEST_LEGEND:
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1), ncols=1 + hubs // 13)


def _plot_steps(run: Run, path: Path) -> None:
    network, workers = run.network, run.end["workers"]
    palette = colours(network.hubs)
    steps = np.array([worker["steps"] for worker in workers])
    # One bar per worker, and a gap between two hubs.
    x = np.arange(len(workers)) + 0.8 * network.hub_of
    expectation = "tau per round" if run.config.get("wait-for-all") else "rate × slots"
    width = float(np.clip(3 + 0.16 * len(workers), 7, 16))
    title = "Gradient steps of each worker"
    with saved_figure(path, 1, 1, title, size=(width, 4.2)) as (axes,):
        axes.bar(x, steps, width=0.8, color=[palette[d] for d in network.hub_of])
        axes.hlines(
            run.expected_steps(),
            x - 0.45,
            x + 0.45,
            color=INK,
            linewidth=1.4,
            label=f"expected: {expectation}",
        )
        absent = [i for i, worker in enumerate(workers) if worker["absent"]]
        if absent:
            axes.scatter(
                x[absent],
                steps[absent] + 0.03 * max(steps.max(), 1),
                marker="x",
                color=ALERT,
                zorder=4,
                label="absent in some rounds",
            )
        if network.hubs <= _LONGEST_LEGEND:
            middle = [float(x[network.members(d)].mean()) for d in range(network.hubs)]
            axes.set_xticks(middle, [f"hub {d}" for d in range(network.hubs)])
            if network.hubs > 12:
                axes.tick_params(axis="x", rotation=60)
        else:
            axes.set_xticks([])
        axes.grid(visible=False, axis="x")
        axes.margins(x=0.01, y=0.16)
        _label_axes(axes, "workers, by hub", "steps taken")
        axes.legend(loc="upper right", ncols=2)


def _plot_graph(run: Run, path: Path) -> None:
    title = f"{Path(run.config['graph']).name}, {run.network.hubs} hubs: zeta = {run.zeta:.3f}"
    draw_hub_graph(run.network, path, H=run.end["network"]["H"], title=title)


_PLOTS: dict[str, Callable[[Run, Path], None]] = {
    "learning.png": _plot_learning,
    "disagreement.png": _plot_disagreement,
    "steps.png": _plot_steps,
    "graph.png": _plot_graph,
}


def _setting(run: Run) -> str:
    config = run.config
    graph = Path(config["graph"]).name
    return f"{config['preset']}, tau = {config['tau']}, q = {config['q']}, {graph}"


def _curve(
    axes: Axes,
    x: FloatArray,
    y: FloatArray,
    colour: str,
    label: str,
    dots: bool,
    line: str = "-",
) -> None:
    """Draw a line through the finite values, and mark where a value is not finite."""
    finite = np.isfinite(y)
    marker = "o" if (dots and len(x) <= 40) or finite.sum() == 1 else None
    axes.plot(
        x,
        np.where(finite, y, np.nan),
        color=colour,
        linestyle=line,
        marker=marker,
        markersize=3.5,
        label=label or None,
    )
    if not finite.all():
        # At the lower edge of the panel: a run that diverged must not look like one that stopped.
        labelled = "not finite" in axes.get_legend_handles_labels()[1]
        axes.plot(
            x[~finite],
            np.zeros((~finite).sum()),
            "x",
            color=ALERT,
            transform=axes.get_xaxis_transform(),
            clip_on=False,
            label=None if labelled else "not finite",
        )


def _label_axes(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _show_units_of_bytes(axes: Axes) -> None:
    from matplotlib.ticker import EngFormatter

    axes.xaxis.set_major_formatter(EngFormatter(unit="B"))


def _show_plain_numbers(axes: Axes) -> None:
    """Write 0.01 at a logarithmic axis, where matplotlib would write TeX, which is off here."""
    from matplotlib.ticker import FuncFormatter

    low, high = axes.get_ylim()
    # Between two powers of ten, 2 and 5 are labelled, unless there are many powers.
    digits = "125" if high < 300 * low else "1"

    def label(value: float, position: int | None) -> str:
        return f"{value:g}" if f"{value:e}"[0] in digits else ""

    axes.yaxis.set_major_formatter(FuncFormatter(label))
    axes.yaxis.set_minor_formatter(FuncFormatter(label))
