"""The page of the report: its HTML frame, filled with the sections, the data and the script."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

from mll_flower.results import files
from mll_flower.results.html_report import blocks, sections
from mll_flower.results.html_report.chart_script import CHART_SCRIPT
from mll_flower.results.html_report.data import payload
from mll_flower.results.html_report.graph_script import GRAPH_SCRIPT, SHOW_EMBEDDED
from mll_flower.results.html_report.labels_script import LABELS_SCRIPT
from mll_flower.results.html_report.style_sheet import STYLE_SHEET
from mll_flower.results.runs import Run, load_run

# Charts that take the whole width: a curve per hub needs room.
_WIDE = ("disagreement", "hub-accuracy")

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
{graph}
{axis}
{charts}
{workers_chart}
{labels_charts}
<section class="full" aria-labelledby="h-absences"><h2 id="h-absences">Absences</h2>\
{absences}</section>
<section class="full" aria-labelledby="h-theory"><h2 id="h-theory">\
What the theory says about this network</h2>{theory}</section>
<section class="full" aria-labelledby="h-tables"><h2 id="h-tables">Tables</h2>
<details><summary>Evaluations</summary>{evaluations}</details>
<details><summary>Workers</summary>{workers}</details>
{labels}</section>
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
    charts = [blocks.curves(c["id"], c["title"], c["id"] in _WIDE) for c in data["charts"]]
    subtitle = (
        f"{config['preset']}: {config['model']} on {run.end['data']}; {network.hubs} hubs "
        f"({config['graph']}), {network.workers} workers, tau = {config['tau']}, q = {config['q']}"
    )
    return _PAGE.format(
        style=STYLE_SHEET,
        script=CHART_SCRIPT + LABELS_SCRIPT + GRAPH_SCRIPT + SHOW_EMBEDDED,
        # Escaped, as "</script>" in a name would end the element that holds the data.
        payload=json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        title=escape(run.name),
        subtitle=escape(subtitle),
        data_label=escape(str(run.end["data"])),
        graph=blocks.GRAPH.format(
            hint=blocks.DISTANCE_HINT, note=thinning_note if shown < recorded else ""
        ),
        axis=blocks.axis_choice(),
        charts="".join(charts),
        workers_chart=blocks.WORKERS,
        labels_charts=blocks.LABELS if data["labels"] else "",
        notice=sections.notice(run),
        headline=sections.headline(run),
        workers=sections.workers(run),
        labels=sections.labels(run),
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
