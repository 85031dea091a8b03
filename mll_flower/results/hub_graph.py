"""Pictures of the hub graph. matplotlib is loaded only when one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mll_flower.algorithm.graphs import hub_graph
from mll_flower.algorithm.mixing import mixing_matrix
from mll_flower.algorithm.network import HubNetwork

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg", ".pdf")

_INK, _MUTED, _EDGE = "#1f2933", "#616e7c", "#9aa5b1"
# Beyond so many hubs names hide the picture.
_NAMED = 60


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
        Where to: a name that ends in .png, .svg or .pdf.
    H : array, optional
        The mixing matrix; the rule ``auto`` when not given.
    colours : sequence, optional
        matplotlib colours, one a hub, in place of the mean rates.
    title : str, optional
        Title of the picture.

    Returns
    -------
    Path
        The file.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{path}: a picture's name must end in one of {', '.join(FORMATS)}")
    if colours is not None and len(colours) != network.hubs:
        raise ValueError(f"{len(colours)} colours for {network.hubs} hubs: give one a hub")
    # A figure of its own, without pyplot: no display, no state that others share.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    matrix = mixing_matrix(network.graph, network.b, "auto") if H is None else np.asarray(H)
    _draw(axes, network, matrix, colours)
    summary = ", ".join(
        f"{count} {word}" + ("" if count == 1 else "s")
        for count, word in (
            (network.hubs, "hub"),
            (network.workers, "worker"),
            (network.graph.size(), "edge"),
        )
    )
    axes.set_title(title or summary, color=_INK, fontsize=13, pad=12)
    figure.savefig(path, dpi=150)
    return path


def _draw(
    axes: Axes, network: HubNetwork, matrix: NDArray[Any], colours: Sequence[Any] | None
) -> None:
    places = _layout(network.graph)
    few = network.hubs <= _NAMED
    half = max(float(np.ptp(places, axis=0).max()) / 2, 0.5) * 1.2
    areas = _areas(network.b, places, half)

    edges = list(network.graph.edges)
    flows = np.array([matrix[j, d] * network.b[d] for j, d in edges])
    widths = 0.5 + 4.5 * flows / flows.max() if flows.size and flows.max() > 0 else 1.0
    nx.draw_networkx_edges(
        network.graph,
        dict(enumerate(places)),
        ax=axes,
        width=widths,
        edge_color=_EDGE,
        alpha=0.8 if few else 0.5,
    )
    totals = np.bincount(network.hub_of, weights=network.p, minlength=network.hubs)
    workers = np.bincount(network.hub_of, minlength=network.hubs)
    mean_rates = totals / workers
    nodes = axes.scatter(
        places[:, 0],
        places[:, 1],
        s=areas,
        c=mean_rates if colours is None else list(colours),
        cmap="viridis" if colours is None else None,
        vmin=0.0 if colours is None else None,
        vmax=1.0 if colours is None else None,
        edgecolors="white",
        linewidths=1.5,
        zorder=3,
    )
    if few:
        colour_of = nodes.to_rgba(mean_rates) if colours is None else _rgba(colours)
        for hub, (x, y) in enumerate(places):
            size = float(np.clip(np.sqrt(areas[hub]) * 0.3, 4.5, 13))
            axes.annotate(
                f"{hub}\n×{workers[hub]}",
                (x, y),
                ha="center",
                va="center",
                fontsize=size,
                linespacing=1.05,
                color="white" if _luminance(colour_of[hub]) < 0.55 else _INK,
                zorder=4,
            )
    if colours is None:
        bar = axes.figure.colorbar(nodes, ax=axes, shrink=0.6, pad=0.02, aspect=28)
        bar.set_label("mean rate of the hub's workers", color=_MUTED)
        bar.outline.set_visible(False)
        bar.ax.tick_params(colors=_MUTED, length=0)
    legend = "area: share b    width: flow over the edge, b(d) H[j, d]"
    axes.text(
        0.5,
        -0.02,
        legend + ("    label: hub × workers" if few else ""),
        transform=axes.transAxes,
        ha="center",
        va="top",
        color=_MUTED,
        fontsize=9,
    )
    middle = (places.min(axis=0) + places.max(axis=0)) / 2
    axes.set_xlim(middle[0] - half * 1.15, middle[0] + half * 1.15)
    axes.set_ylim(middle[1] - half, middle[1] + half)
    axes.set_aspect("equal")
    axes.axis("off")


def _layout(graph: nx.Graph[int]) -> NDArray[np.float64]:
    """Places of the hubs; the same for the same graph."""
    hubs = len(graph)
    degrees = dict(graph.degree)
    if hubs > 2 and nx.is_tree(graph) and max(degrees.values()) == 2:
        # A path: a straight line would waste the page, so it goes along an arc.
        order = list(nx.dfs_preorder_nodes(graph, min(d for d in graph if degrees[d] == 1)))
        angles = np.linspace(np.pi * 1.1, -np.pi * 0.1, hubs)
        places = np.empty((hubs, 2))
        places[order] = np.column_stack([np.cos(angles), np.sin(angles)])
        return places
    columns = _grid_columns(graph)
    if columns:
        hub = np.arange(hubs)
        return np.column_stack([hub % columns, -(hub // columns)]).astype(np.float64)
    if hubs <= 150:
        found = nx.kamada_kawai_layout(graph)
    else:
        found = nx.spring_layout(graph, seed=0, iterations=60, k=1.6 / np.sqrt(hubs))
    return np.array([found[d] for d in range(hubs)], dtype=np.float64)


def _grid_columns(graph: nx.Graph[int]) -> int | None:
    """Columns of the named graph ``grid``, if it is this graph and has more than one row."""
    hubs = len(graph)
    same = set(hub_graph("grid", hubs).edges) == set(graph.edges)
    columns = max(abs(i - j) for i, j in graph.edges) if graph.size() else 1
    return columns if same and 1 < columns < hubs else None


def _areas(b: NDArray[np.float64], places: NDArray[np.float64], half: float) -> NDArray[np.float64]:
    """Areas of the hubs in square points, such that neighbours seldom touch."""
    mean = 2200.0
    if b.size > 1:
        apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
        np.fill_diagonal(apart, np.inf)
        # The picture is about 360 points high; a few close pairs must not shrink all hubs.
        near = float(np.quantile(apart.min(axis=1), 0.2)) * 360 / (2 * half)
        mean = float(np.clip((0.62 * near) ** 2, 12, mean))
    return np.clip(mean * b * b.size, mean / 8, mean * 4)


def _rgba(colours: Sequence[Any]) -> NDArray[np.float64]:
    from matplotlib.colors import to_rgba_array

    return np.asarray(to_rgba_array(list(colours)))


def _luminance(rgba: NDArray[np.float64]) -> float:
    return float(rgba[:3] @ [0.2126, 0.7152, 0.0722])
