"""Pieces of HTML that the script fills: the graph, the curves, the bars, the maps of labels.

The report's page and the live page are put together from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

GRAPH = """<section class="full" aria-labelledby="h-graph">
<h2 id="h-graph">The hubs over time</h2>
<p class="hint">{hint}</p>
<div id="graph"></div>
<p id="moment" aria-live="off"></p>
<div class="controls">
<button id="play" type="button">Play</button>
<input id="time" type="range" min="0" max="0" value="0" step="1" aria-label="recorded round">
</div>
<div class="scale"><span>0</span><span id="scale"></span><span id="scale-top"></span></div>
{note}
</section>
"""
"""The graph, with a {hint} above it and a {note} below."""

DISTANCE_HINT = (
    "Colour of a hub: distance of its average from the averaged model, before mixing. "
    "Dots: its workers, fainter for a lower rate, red when absent (a red ring around the hub where "
    "dots have no room). "
    "Width of an edge: its weight in H."
)

WORKERS = """<section class="full" aria-labelledby="h-workers">
<h2 id="h-workers">Workers: rates and steps</h2>
<ul class="legend" id="workers-legend" aria-live="polite"></ul>
<div id="workers" data-chart="bars" tabindex="0" role="group" \
aria-label="Steps of each worker; the arrow keys go from one to the next"></div>
</section>
"""

_CHART = """<section class="{kind}" aria-labelledby="h-{id}">
<h2 id="h-{id}">{title}</h2>
<ul class="legend" id="{id}-legend" aria-live="polite"></ul>
<div id="{id}" data-chart="{chart}" tabindex="0" role="group" \
aria-label="{title}; the arrow keys go from value to value"></div>
</section>
"""

LABELS = "".join(
    _CHART.format(id=f"labels-{key}", title=title, kind="", chart="labels")
    for key, title in (("hubs", "Labels of each hub"), ("workers", "Labels of each worker"))
)
"""Who holds which labels, by hub and by worker."""

AXES = {"slot": "slots", "round": "rounds", "bytes": "bytes sent", "seconds": "seconds"}
"""What curves can be drawn over, and its name."""


def curves(id: str, title: str, wide: bool = False) -> str:
    """Return the place of a chart with curves."""
    kind = "full" if wide else ""
    return _CHART.format(id=id, title=escape(title), kind=kind, chart="curves")


def axis_choice(axes: Sequence[str] = tuple(AXES)) -> str:
    """Return the choice of the x axis."""
    options = "".join(f'<option value="{axis}">{AXES[axis]}</option>' for axis in axes)
    return (
        '<div class="full controls"><label for="axis">Draw curves over</label>'
        f'<select id="axis">{options}</select></div>'
    )
