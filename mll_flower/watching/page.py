"""The live page: the parts of the HTML report, which a script fills again at all news."""

from __future__ import annotations

from html import escape

from mll_flower.results.html_report import blocks
from mll_flower.results.html_report.chart_script import CHART_SCRIPT
from mll_flower.results.html_report.graph_script import GRAPH_SCRIPT
from mll_flower.results.html_report.labels_script import LABELS_SCRIPT
from mll_flower.results.html_report.style_sheet import STYLE_SHEET
from mll_flower.watching.live_script import LIVE_SCRIPT
from mll_flower.watching.source import Kind

_STYLE = """
#bar { display: flex; flex-wrap: wrap; align-items: center; gap: 6px 12px; margin: 0 0 16px;
  padding: 10px 12px; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; box-shadow: var(--shadow); }
#light { width: 12px; height: 12px; border-radius: 50%; background: var(--edge); flex: none; }
[data-phase=running] #light { background: #2a9d8f; }
[data-phase=finished] #light { background: var(--accent); }
[data-phase=stopped] #light, [data-phase=waiting] #light { background: #d9a13b; }
[data-phase=trouble] #light, [data-link=lost] #light { background: var(--alert); }
@media (prefers-reduced-motion: no-preference) {
  [data-phase=running] #light { animation: pulse 2s infinite; } }
@keyframes pulse { 50% { opacity: .35; } }
#status { font-weight: 600; overflow-wrap: anywhere; flex: 1 1 260px; min-width: 0; }
#age { color: var(--muted); font-size: .87rem; }
#age.old { color: var(--alert); font-weight: 600; }
#bar progress { flex: 1 0 100%; width: 100%; height: 8px; accent-color: var(--accent); }
.part > table:last-child { margin-bottom: 0; }
"""

_PAGE = """<!doctype html>
<html lang="en" data-phase="waiting" data-link="connecting">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1 id="title">{title}</h1>
<p class="sub" id="subtitle"></p>
<div id="bar"><span id="light"></span><span id="status" role="status">Connecting.</span>\
<span id="age"></span><progress id="progress" max="1" value="0" aria-label="progress" hidden>\
</progress></div>
<div id="trouble" role="alert"></div>
<div data-part="notice"></div>
<div data-part="tiles"></div>
</header>
<main>
{content}
</main>
<footer>MLL-Flower, live: this page loads nothing from elsewhere.</footer>
<noscript><p class="sub">This page needs JavaScript.</p></noscript>
<script nonce="{nonce}">{script}</script>
</body>
</html>
"""

_DEPLOYMENT_HINT = (
    "Colour of a hub: how far its last mixing moved its model, which is how far it was from its "
    "neighbours. Dots: its workers, red when absent. Dashed: a hub that does not answer, a link "
    "that was not used at the last mixing."
)


def _part(name: str, title: str) -> str:
    return (
        f'<section class="full" data-section="{name}" hidden aria-labelledby="h-{name}">'
        f'<h2 id="h-{name}">{title}</h2><div class="part" data-part="{name}"></div></section>'
    )


def _graph(hint: str) -> str:
    section = blocks.GRAPH.format(hint=hint, note="")
    return section.replace("<section ", '<section data-section="graph" hidden ')


def _content(kind: Kind) -> str:
    loss, metric = blocks.curves("loss", "Loss"), blocks.curves("accuracy", "Accuracy")
    if kind == "sweep":
        axes = blocks.axis_choice()
        return "".join([axes, loss, metric, _part("runs", "Runs")])
    disagreement = blocks.curves("disagreement", "Hub disagreement", wide=True)
    if kind == "deployment":
        return "".join(
            [
                _graph(_DEPLOYMENT_HINT),
                _part("hubs", "Hubs"),
                blocks.axis_choice(("round", "seconds")),
                *(loss, metric, disagreement),
                _part("absences", "Absences"),
            ]
        )
    return "".join(
        [
            _graph(blocks.DISTANCE_HINT),
            blocks.axis_choice(),
            *(loss, metric, disagreement),
            blocks.curves("hub-accuracy", "Each hub's own model", wide=True),
            _part("absences", "Absences"),
            *(blocks.LABELS, blocks.WORKERS),
            _part("config", "Config"),
        ]
    )


def render_page(kind: Kind, title: str, nonce: str) -> str:
    """Return the page of a source.

    Parameters
    ----------
    kind : str
        What is watched.
    title : str
        Its name.
    nonce : str
        What the page's policy lets run: the script that carries it, and no other.
    """
    # Nothing is drawn before there are data: the places of charts wait out of sight.
    content = _content(kind).replace('<section class=""', '<section class="" hidden')
    content = content.replace('<section class="full" aria', '<section class="full" hidden aria')
    script = CHART_SCRIPT + LABELS_SCRIPT + GRAPH_SCRIPT + LIVE_SCRIPT
    return _PAGE.format(
        title=escape(title),
        style=STYLE_SHEET + _STYLE,
        content=content,
        script=script,
        nonce=nonce,
    )
