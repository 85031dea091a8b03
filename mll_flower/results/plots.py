"""Plots of runs. matplotlib is loaded only when one is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from logging import WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.supercore import log

from mll_flower.results.runs import X_AXES, Y_AXES, FloatArray, Run, labels_for, load_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")

_INK, _MUTED, _GRID, _WARN = "#1f2933", "#616e7c", "#e4e7eb", "#c81e1e"
# Told apart by people with any kind of colour vision, and by their lightness in grey.
_COLOURS = ("#2f6fb5", "#d9822b", "#2a9d8f", "#b5477d", "#7a6bc9", "#8a6d3b", "#4fa3d8", "#5f6b7a")
# Beyond so many lines a legend hides the picture.
_NAMED = 24


def colours(number: int) -> list[str]:
    """Return as many colours, as told apart as can be: the hubs' and the runs' in all pictures."""
    if number <= len(_COLOURS):
        return list(_COLOURS[:number])
    return [_hue(i / number, (0.56, 0.68)[i % 2]) for i in range(number)]


def plot_run(output: Path) -> list[Path]:
    """Draw a run's plots into its folder, under plots/.

    A run that has ended is not lost for the sake of a picture: what cannot be drawn is
    named in the log with the reason, and the others are drawn.

    Parameters
    ----------
    output : Path
        The run's folder, with its metrics.

    Returns
    -------
    list of Path
        The files: learning.png, disagreement.png, steps.png, graph.png.
    """
    drawn: list[Path] = []
    folder = output / "plots"
    try:
        run = load_run(output)
        folder.mkdir(exist_ok=True)
    except Exception as error:
        log(WARNING, "no plots of %s: %s: %s", output, type(error).__name__, error)
        return drawn
    for name, draw in _PICTURES.items():
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
    """Draw the same curves of several runs, one panel for each ``y``.

    Parameters
    ----------
    runs : sequence of Run
        The runs.
    out : str or Path
        A name that ends in .png, .svg or .pdf.
    x, y : str, sequence of str
        One of `mll_flower.runs.X_AXES`; some of `mll_flower.runs.Y_AXES`.
    labels : sequence of str
        One a run; the folders' names when not given.
    title : str
        Title of the picture.
    log_y : bool
        Whether losses and accuracies are drawn on a logarithmic axis.
    """
    out = Path(out)
    if out.suffix.lower() not in FORMATS:
        raise ValueError(f"{out}: a picture's name must end in one of {', '.join(FORMATS)}")
    names = labels_for(runs, labels)
    with picture(out, 1, len(y), title, size=(7.2 if len(y) == 1 else 11, 4.4)) as panels:
        for axes, key in zip(panels, y, strict=True):
            for run, name, colour in zip(runs, names, colours(len(runs)), strict=True):
                _curve(axes, *run.series(x, key), colour, name, len(runs) == 1)
            _label(axes, X_AXES[x][1], Y_AXES[key])
            if x == "bytes":
                _byte_axis(axes)
            if log_y:
                axes.set_yscale("log", nonpositive="mask")
        if 1 < len(runs) <= _NAMED or labels:
            panels[0].legend()
    return out


def _learning(run: Run, path: Path) -> None:
    title = f"{run.config['model']} on {run.end['data']}: {_setting(run)}"
    with picture(path, 1, 2, title, size=(11, 4.2)) as (left, right):
        for key, colour, line in (("loss", _COLOURS[0], "-"), ("test_loss", _COLOURS[1], "--")):
            _curve(left, *run.series("slots", key), colour, Y_AXES[key], True, line)
        _label(left, "slot", "loss of the averaged model")
        left.legend()
        _curve(right, *run.series("slots", "accuracy"), _COLOURS[2], "", True)
        _label(right, "slot", "accuracy of the averaged model")


def _disagreement(run: Run, path: Path) -> None:
    title = "Hub disagreement: distance of each hub's average from the averaged model"
    hubs = run.network.hubs
    with picture(path, 1, 1, title, size=(9, 4.4)) as (axes,):
        gone = []
        for hub, colour in enumerate(colours(hubs)):
            rows = [row for row in run.hub_rows if row.hub == hub]
            slots = np.array([row.slot for row in rows], dtype=np.float64)
            distance = np.array([row.distance for row in rows], dtype=np.float64)
            _curve(axes, slots, distance, colour, f"hub {hub}", len(rows) == 1)
            gone += [(row.slot, row.distance) for row in rows if row.absent]
        if gone:
            axes.scatter(
                *zip(*gone, strict=True), marker="x", color=_WARN, zorder=4, label="absent workers"
            )
        axes.set_ylim(bottom=0)
        _label(axes, "slot", "distance")
        if hubs <= _NAMED:
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1), ncols=1 + hubs // 13)


def _steps(run: Run, path: Path) -> None:
    network, workers = run.network, run.end["workers"]
    palette = colours(network.hubs)
    steps = np.array([worker["steps"] for worker in workers])
    place = np.arange(len(workers)) + 0.8 * network.hub_of
    rule = "tau a round" if run.config.get("wait-for-all") else "rate × slots"
    width = float(np.clip(3 + 0.16 * len(workers), 7, 16))
    with picture(path, 1, 1, "Gradient steps of each worker", size=(width, 4.2)) as (axes,):
        axes.bar(place, steps, width=0.8, color=[palette[d] for d in network.hub_of])
        axes.hlines(
            run.expected_steps(),
            place - 0.45,
            place + 0.45,
            color=_INK,
            linewidth=1.4,
            label=f"expected: {rule}",
        )
        gone = [i for i, worker in enumerate(workers) if worker["absent"]]
        if gone:
            axes.scatter(
                place[gone],
                steps[gone] + 0.03 * max(steps.max(), 1),
                marker="x",
                color=_WARN,
                zorder=4,
                label="was absent at times",
            )
        if network.hubs <= _NAMED:
            middle = [float(place[network.members(d)].mean()) for d in range(network.hubs)]
            axes.set_xticks(middle, [f"hub {d}" for d in range(network.hubs)])
            if network.hubs > 12:
                axes.tick_params(axis="x", rotation=60)
        else:
            axes.set_xticks([])
        axes.grid(visible=False, axis="x")
        axes.margins(x=0.01, y=0.16)
        _label(axes, "workers, by hub", "steps taken")
        axes.legend(loc="upper right", ncols=2)


def _graph(run: Run, path: Path) -> None:
    from mll_flower.results.hub_graph import draw_hub_graph

    title = f"{Path(run.config['graph']).name}, {run.network.hubs} hubs: zeta = {run.zeta:.3f}"
    draw_hub_graph(run.network, path, H=run.end["network"]["H"], title=title)


_PICTURES: dict[str, Callable[[Run, Path], None]] = {
    "learning.png": _learning,
    "disagreement.png": _disagreement,
    "steps.png": _steps,
    "graph.png": _graph,
}


def _setting(run: Run) -> str:
    config = run.config
    graph = Path(config["graph"]).name
    return f"{config['preset']}, tau = {config['tau']}, q = {config['q']}, {graph}"


def _hue(turn: float, lightness: float) -> str:
    """A colour of the OKLCH wheel: all are as light as told, so that none fades on dark or white.

    The matrices are those that define OKLab (Ottosson 2020).
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


@contextmanager
def picture(
    path: Path,
    rows: int,
    columns: int,
    title: str,
    size: tuple[float, float],
    font: float = 10.5,
    dpi: int = 150,
) -> Iterator[list[Axes]]:
    """Give the panels of a figure in the common style, and write it at the end."""
    from matplotlib import rc_context

    # A figure of its own, without pyplot: no display, no state that others share.
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "font.size": font,
        "text.color": _INK,
        "text.parse_math": False,
        "axes.edgecolor": _GRID,
        "axes.labelcolor": _MUTED,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": _GRID,
        "xtick.color": _MUTED,
        "ytick.color": _MUTED,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
    }
    with rc_context(style):
        figure: Figure = Figure(figsize=size, layout="constrained", facecolor="white")
        yield list(figure.subplots(rows, columns, squeeze=False).flat)
        if title:
            figure.suptitle(title, fontsize=font + 2)
        # Without the software's version in it: the same numbers give the same file.
        plain = {"Software": None} if path.suffix == ".png" else {}
        figure.savefig(path, dpi=dpi, metadata=plain)


def _curve(
    axes: Axes,
    x: FloatArray,
    y: FloatArray,
    colour: str,
    label: str,
    marked: bool,
    line: str = "-",
) -> None:
    """Draw a line through the finite values, and say where there are none."""
    finite = np.isfinite(y)
    dots = "o" if (marked and len(x) <= 40) or finite.sum() == 1 else None
    axes.plot(
        x,
        np.where(finite, y, np.nan),
        color=colour,
        linestyle=line,
        marker=dots,
        markersize=3.5,
        label=label or None,
    )
    if not finite.all():
        # At the lower edge, whatever the values: a run that diverged is not to look like one
        # that stopped.
        axes.plot(
            x[~finite],
            np.zeros((~finite).sum()),
            "x",
            color=_WARN,
            transform=axes.get_xaxis_transform(),
            clip_on=False,
            label="not finite" if "not finite" not in axes.get_legend_handles_labels()[1] else None,
        )


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _byte_axis(axes: Axes) -> None:
    from matplotlib.ticker import EngFormatter

    axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
