"""A drawing of the hub graph, as PNG, SVG or PDF.

``mll-flower network --draw`` and the plots of a run use it. matplotlib is imported only when a
graph is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mll_flower.algorithm.mixing import mixing_matrix
from mll_flower.algorithm.network import HubNetwork
from mll_flower.results.figure_style import EDGE, INK, MUTED, saved_figure
from mll_flower.results.formatting import format_count
from mll_flower.results.hub_layout import hub_layout

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# With more hubs than this, their labels would hide the graph.
_MOST_LABELS = 60


def draw_hub_graph(
    network: HubNetwork,
    path: str | Path,
    H: ArrayLike | None = None,
    colours: Sequence[Any] | None = None,
    title: str | None = None,
) -> Path:
    """Draw the hub graph to a file.

    A hub's area is its share b, its colour the mean rate of its workers, its label their
    number; an edge is as wide as the flow b(d) H[j, d] over it.

    Parameters
    ----------
    network : HubNetwork
        The network.
    path : str or Path
        The file; its name ends in .png, .svg or .pdf.
    H : array, optional
        The mixing matrix; that of the rule ``auto`` when not given.
    colours : sequence, optional
        matplotlib colours, one per hub, in place of the mean rates.
    title : str, optional
        Title of the figure; the number of hubs, workers and edges when not given.

    Returns
    -------
    Path
        The file.
    """
    path = Path(path)
    if colours is not None and len(colours) != network.hubs:
        raise ValueError(f"{len(colours)} colours for {network.hubs} hubs: give one per hub")
    matrix = mixing_matrix(network.graph, network.b, "auto") if H is None else np.asarray(H)
    counts = {"hub": network.hubs, "worker": network.workers, "edge": network.graph.size()}
    summary = ", ".join(format_count(number, noun) for noun, number in counts.items())
    with saved_figure(path, 1, 1, title or summary, size=(8, 6)) as (axes,):
        _draw(axes, network, matrix, colours)
    return path


def _draw(
    axes: Axes, network: HubNetwork, matrix: NDArray[Any], colours: Sequence[Any] | None
) -> None:
    positions = hub_layout(network.graph)
    labelled = network.hubs <= _MOST_LABELS
    half = max(float(np.ptp(positions, axis=0).max()) / 2, 0.5) * 1.2
    areas = _areas(network.b, positions, half)

    edges = list(network.graph.edges)
    flows = np.array([matrix[j, d] * network.b[d] for j, d in edges])
    widths = 0.5 + 4.5 * flows / flows.max() if flows.size and flows.max() > 0 else 1.0
    nx.draw_networkx_edges(
        network.graph,
        dict(enumerate(positions)),
        ax=axes,
        width=widths,
        edge_color=EDGE,
        alpha=0.8 if labelled else 0.5,
    )
    workers = np.bincount(network.hub_of, minlength=network.hubs)
    mean_rates = np.bincount(network.hub_of, network.p, minlength=network.hubs) / workers
    nodes = axes.scatter(
        positions[:, 0],
        positions[:, 1],
        s=areas,
        c=mean_rates if colours is None else list(colours),
        cmap="viridis" if colours is None else None,
        vmin=0.0 if colours is None else None,
        vmax=1.0 if colours is None else None,
        edgecolors="white",
        linewidths=1.5,
        zorder=3,
    )
    if labelled:
        fills = nodes.to_rgba(mean_rates) if colours is None else _rgba(colours)
        for hub, (x, y) in enumerate(positions):
            axes.annotate(
                f"{hub}\n×{workers[hub]}",
                (x, y),
                ha="center",
                va="center",
                fontsize=float(np.clip(np.sqrt(areas[hub]) * 0.3, 4.5, 13)),
                linespacing=1.05,
                color="white" if _luminance(fills[hub]) < 0.55 else INK,
                zorder=4,
            )
    if colours is None:
        bar = axes.figure.colorbar(nodes, ax=axes, shrink=0.6, pad=0.02, aspect=28)
        bar.set_label("mean rate of the hub's workers")
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0)
    key = "area: share b    width: flow over the edge, b(d) H[j, d]"
    axes.text(
        0.5,
        -0.02,
        key + ("    label: hub × workers" if labelled else ""),
        transform=axes.transAxes,
        ha="center",
        va="top",
        color=MUTED,
        fontsize=9,
    )
    middle = (positions.min(axis=0) + positions.max(axis=0)) / 2
    axes.set_xlim(middle[0] - half * 1.15, middle[0] + half * 1.15)
    axes.set_ylim(middle[1] - half, middle[1] + half)
    axes.set_aspect("equal")
    axes.axis("off")


def _areas(
    b: NDArray[np.float64], positions: NDArray[np.float64], half: float
) -> NDArray[np.float64]:
    """Return the areas of the hubs in square points, such that neighbours seldom touch."""
    mean = 2200.0
    if b.size > 1:
        distances = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
        np.fill_diagonal(distances, np.inf)
        # The panel is about 360 points high. A few close pairs must not shrink all hubs, hence
        # the quantile in place of the minimum.
        nearest = float(np.quantile(distances.min(axis=1), 0.2)) * 360 / (2 * half)
        mean = float(np.clip((0.62 * nearest) ** 2, 12, mean))
    return np.clip(mean * b * b.size, mean / 8, mean * 4)


def _rgba(colours: Sequence[Any]) -> NDArray[np.float64]:
    from matplotlib.colors import to_rgba_array

    return np.asarray(to_rgba_array(list(colours)))


def _luminance(rgba: NDArray[np.float64]) -> float:
    return float(rgba[:3] @ [0.2126, 0.7152, 0.0722])
