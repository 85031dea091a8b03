"""The page of the report: its HTML frame, filled with the sections, the data and the script."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

from mll_flower.results import files
from mll_flower.results.html_report import sections
from mll_flower.results.html_report.chart_script import CHART_SCRIPT
from mll_flower.results.html_report.data import payload
from mll_flower.results.html_report.graph_script import GRAPH_SCRIPT
from mll_flower.results.html_report.style_sheet import STYLE_SHEET
from mll_flower.results.runs import Run, load_run

# The page needs nothing from elsewhere, and its policy has the browser refuse to load anything.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p class="sub">{subtitle}</p>
{notice}{headline}
</header>
<main>
<section class="full" aria-labelledby="h-graph">
<h2 id="h-graph">The hubs over time</h2>
<p class="hint">Colour of a hub: distance of its average from the averaged model, before mixing. \
Dots: its workers, fainter for a lower rate, red when absent. Width of an edge: its weight in H.\
</p>
<div id="graph"></div>
<p id="moment" aria-live="off"></p>
<div class="controls">
<button id="play" type="button">Play</button>
<input id="time" type="range" min="0" max="0" value="0" step="1" aria-label="recorded round">
</div>
<div class="scale"><span>0</span><span id="scale"></span><span id="scale-top"></span></div>
{thinned}
</section>
<div class="full controls"><label for="axis">Draw curves over</label>
<select id="axis"><option value="slot">slots</option><option value="round">rounds</option>\
<option value="bytes">bytes sent</option><option value="seconds">seconds</option></select></div>
{charts}
<section class="full" aria-labelledby="h-workers">
<h2 id="h-workers">Workers: rates and steps</h2>
<ul class="legend" id="workers-legend" aria-live="polite"></ul>
<div id="workers" tabindex="0" role="group" \
aria-label="Steps of each worker; the arrow keys go from one to the next"></div>
</section>
<section class="full" aria-labelledby="h-absences"><h2 id="h-absences">Absences</h2>\
{absences}</section>
<section class="full" aria-labelledby="h-theory"><h2 id="h-theory">\
What the theory says about this network</h2>{theory}</section>
<section class="full" aria-labelledby="h-tables"><h2 id="h-tables">Tables</h2>
<details><summary>Evaluations</summary>{evaluations}</details>
<details><summary>Workers</summary>{workers}</details></section>
<section class="full" aria-labelledby="h-config"><h2 id="h-config">Data and config</h2>
<p><strong>Data:</strong> {data_label}</p>{config}</section>
</main>
<footer>MLL-Flower: Multi-Level Local SGD (Castiglia, Das, Patterson, ICLR 2021). \
This page loads nothing from elsewhere.</footer>
<noscript><p class="sub">The curves and the graph need JavaScript; the tables do not.</p></noscript>
<script type="application/json" id="data">{payload}</script>
<script>{script}</script>
</body>
</html>
"""

_CHART = """<section class="{kind}" aria-labelledby="h-{id}">
<h2 id="h-{id}">{title}</h2>
<ul class="legend" id="{id}-legend" aria-live="polite"></ul>
<div id="{id}" tabindex="0" role="group" \
aria-label="{title}; the arrow keys go from value to value"></div>
</section>
"""


def render_report(run: Run) -> str:
    """Return the report of a run as HTML.

    Parameters
    ----------
    run : Run
        From `mll_flower.results.runs.load_run`. The report of one that has not finished says so.
    """
    config, network = run.config, run.network
    data = payload(run)
    shown, recorded = len(data["frames"]["slot"]) - 1, data["frames"]["recorded"]
    thinning_note = f'<p class="hint">Shows {shown} of {recorded} recorded rounds.</p>'
    charts = (
        ("loss", "Loss of the averaged model", ""),
        ("accuracy", f"{run.metric[:1].upper()}{run.metric[1:]} of the averaged model", ""),
        ("disagreement", "Hub disagreement", "full"),
    )
    subtitle = (
        f"{config['preset']}: {config['model']} on {run.end['data']}; {network.hubs} hubs "
        f"({config['graph']}), {network.workers} workers, tau = {config['tau']}, q = {config['q']}"
    )
    return _PAGE.format(
        style=STYLE_SHEET,
        script=CHART_SCRIPT + GRAPH_SCRIPT,
        # Escaped, as "</script>" in a name would end the element that holds the data.
        payload=json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        title=escape(run.name),
        subtitle=escape(subtitle),
        data_label=escape(str(run.end["data"])),
        thinned=thinning_note if shown < recorded else "",
        charts="".join(_CHART.format(id=i, title=t, kind=k) for i, t, k in charts),
        notice=sections.notice(run),
        headline=sections.headline(run),
        workers=sections.workers(run),
        absences=sections.absences(run),
        theory=sections.theory(run),
        evaluations=sections.evaluations(run),
        config=sections.config(run),
    )


def write_report(run: Run | str | Path, out: str | Path | None = None) -> Path:
    """Write a run's report.

    Parameters
    ----------
    run : Run, str or Path
        The run, or its folder.
    out : str or Path, optional
        The file, whose name ends in .html; report.html in the run's folder when not given.

    Returns
    -------
    Path
        The file.
    """
    run = run if isinstance(run, Run) else load_run(run)
    path = Path(out) if out is not None else run.path / files.REPORT
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{path}: a report's name must end in .html")
    path.write_text(render_report(run), encoding="utf-8")
    return path
