"""``mll-flower plot``, ``compare`` and ``report``: show the results of runs.

They read the output folders of runs; `mll_flower.results` makes the figures and reports.
"""

from __future__ import annotations

import csv
import math
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mll_flower.results.comparison import differing_settings, group_by_setting, merge_rows
from mll_flower.results.runs import Run, labels_for, load_run, load_runs

XAxis = Literal["slots", "rounds", "steps", "bytes", "seconds"]
YAxis = Literal["accuracy", "loss", "test_loss"]

Runs = Annotated[list[Path], typer.Argument(help="Output folders of runs.", show_default=False)]
X = Annotated[XAxis, typer.Option("--x", help="The x axis of the curves.")]
Title = Annotated[str, typer.Option(help="Title of the figure.")]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--labels",
        help="Names of the runs, in their order: separated by commas, or one per --labels.",
        show_default="the folders' names",
    ),
]


def plot(
    runs: Runs,
    x: X = "slots",
    y: Annotated[
        YAxis,
        typer.Option("--y", help="The y axis of the curves; accuracy: the metric of the runs."),
    ] = "accuracy",
    out: Annotated[
        Path, typer.Option(help="File to draw to: .png, .svg or .pdf.", dir_okay=False)
    ] = Path("plot.png"),
    labels: Labels = None,
    title: Title = "",
    log_y: Annotated[bool, typer.Option("--log-y", help="Logarithmic y axis.")] = False,
) -> None:
    """Draw a curve of one or more runs.

    RUNS are output folders of runs, such as runs/*.
    """
    from mll_flower.results.plots import plot_curves

    found = load_runs(runs)
    path = plot_curves(found, out, x, (y,), _split_labels(labels, len(found)), title, log_y)
    _print_written(Console(), path)


def compare(
    runs: Runs,
    target: Annotated[
        float | None,
        typer.Option(
            help="Also show when each run reached this accuracy (or metric): slots, bytes, seconds."
        ),
    ] = None,
    labels: Labels = None,
    x: X = "slots",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Draw loss and accuracy (or metric) to this .png, .svg or .pdf.", dir_okay=False
        ),
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write the table to this CSV file.", dir_okay=False)
    ] = None,
    title: Title = "",
) -> None:
    """Compare runs in a table, and draw their curves.

    RUNS are output folders of runs, such as runs/*; what is no run is
    skipped. Runs that differ only in their seed are one row: the mean, and
    the half-width of its 95 % confidence interval (Student's t).
    """
    found, skipped = _load_those_that_are_runs(runs)
    metric = _shared_metric(found)
    if target is not None and metric == "accuracy" and not 0 < target <= 1:
        raise ValueError(f"--target {target}: give an accuracy above 0 and at most 1")
    given = _split_labels(labels, len(found))
    names = labels_for(found, given)
    rows = [_comparison(run, name, metric, target) for run, name in zip(found, names, strict=True)]
    # With labels the reader has named each run, so that each has its row.
    groups = [[i] for i in range(len(found))] if given else group_by_setting(found)
    console = Console()
    merged = [merge_rows([rows[i] for i in group]) for group in groups]
    _print_rows(console, found, merged, metric)
    if target is not None:
        article = "an" if metric[:1] in "aeiou" else "a"
        console.print(f"To reach {article} {metric} of {target:g}", style="italic")
        console.print(_table(rows, _TARGET_HEADS))
    _print_settings(console, [found[group[0]] for group in groups], merged)
    for note in _notes(found, names, skipped):
        console.print(note, style="yellow", markup=False)
    if csv_file is not None:
        with csv_file.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        _print_written(console, csv_file)
    if out is not None:
        from mll_flower.results.plots import plot_curves

        path = plot_curves(found, out, x, ("loss", "accuracy"), names, title)
        _print_written(console, path)


def print_comparison(console: Console, groups: list[list[Run]], labels: list[str]) -> None:
    """Print the tables of ``compare``, with one row per group of runs that differ in their seed.

    Parameters
    ----------
    console : Console
        Where to print.
    groups : list of list of Run
        The groups.
    labels : list of str
        Their names.
    """
    found = [run for runs in groups for run in runs]
    metric = _shared_metric(found)
    merged = []
    for runs, label in zip(groups, labels, strict=True):
        row = merge_rows([_comparison(run, label, metric, None) for run in runs])
        zeta = row["zeta"][0] if isinstance(row["zeta"], tuple) else row["zeta"]
        merged.append({**row, "run": label, "zeta": zeta})
    heads = {"run": "set-up", "zeta": "zeta", "final_loss": "loss", f"final_{metric}": metric}
    console.print(_table(merged, {**heads, f"best_{metric}": "best", "slot": "slots"}))
    _print_settings(console, [runs[0] for runs in groups], merged, ("preset", "tau", "q", "graph"))
    names = [
        f"{label}, seed {run.config['seed']}"
        for runs, label in zip(groups, labels, strict=True)
        for run in runs
    ]
    for note in _notes(found, names, []):
        console.print(note, style="yellow", markup=False)


def _shared_metric(runs: list[Run]) -> str:
    metrics = {run.metric for run in runs}
    return metrics.pop() if len(metrics) == 1 else "metric"


def _print_rows(console: Console, runs: list[Run], rows: list[dict[str, Any]], metric: str) -> None:
    heads = {**_HEADS, f"final_{metric}": metric, f"best_{metric}": "best"}
    if len({run.summary["slot"] for run in runs}) > 1:
        heads["slot"] = "slots"
    console.print(_table(rows, heads))


def _print_settings(
    console: Console, runs: list[Run], rows: list[dict[str, Any]], also: Sequence[str] = ()
) -> None:
    """Print the settings in which rows differ; each row is given with one of its runs.

    Those that ``compare`` shows for all rows are shown if they are named in ``also`` and differ.
    """
    settings = [key for key in also if len({str(run.config[key]) for run in runs}) > 1]
    settings += differing_settings(runs)
    if settings:
        shown = [
            {"run": row["run"]} | {key: str(run.config.get(key, "")) or "–" for key in settings}
            for run, row in zip(runs, rows, strict=True)
        ]
        console.print("Settings that differ", style="italic")
        console.print(_table(shown, {"run": "run", **{key: key for key in settings}}))


def _load_those_that_are_runs(paths: list[Path]) -> tuple[list[Run], list[str]]:
    """Return the runs, and the names of what is none; ValueError if nothing is a run."""
    found, skipped, errors = [], [], []
    for path in paths:
        try:
            found.append(load_run(path))
        except ValueError as error:
            skipped.append(str(path))
            errors.append(error)
    if not found:
        raise errors[0]
    return found, skipped


def _notes(runs: list[Run], names: list[str], skipped: list[str]) -> list[str]:
    """Return what the reader of the table must know about these runs."""
    notes = []
    data = sorted({str(run.config["dataset"]) for run in runs})
    if len(data) > 1:
        notes.append(
            f"These runs use different data ({', '.join(data)}): their losses and accuracies "
            "cannot be compared."
        )
    if len({run.summary["slot"] for run in runs}) > 1:
        notes.append(
            "These runs end at different slots: their last values are those of different times."
        )
    for kind, chosen in (
        ("Not finished", [not run.finished for run in runs]),
        ("Diverged", [run.diverged for run in runs]),
    ):
        if any(chosen):
            which = [name for name, it_is in zip(names, chosen, strict=True) if it_is]
            notes.append(f"{kind}: {', '.join(which)}.")
    if skipped:
        notes.append(f"Skipped, as they are no runs that can be read: {', '.join(skipped)}.")
    return notes


def report(
    run: Annotated[Path, typer.Argument(help="Output folder of a run.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write: .html.",
            dir_okay=False,
            show_default="report.html in the run's folder",
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Write a run's report: one HTML page that loads nothing from elsewhere.

    RUN is the output folder of a run.
    """
    from mll_flower.results.html_report import write_report

    path = write_report(load_run(run), out)
    console = Console()
    _print_written(console, path)
    if open_page and not webbrowser.open(path.absolute().as_uri()):
        console.print("no browser was found: open the file by hand", style="yellow")


def _print_written(console: Console, path: Path) -> None:
    console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)


def _split_labels(given: list[str] | None, runs: int) -> list[str]:
    """Split a single text that is given for several runs at its commas; else each is a label."""
    if given and len(given) == 1 and runs > 1:
        return [part.strip() for part in given[0].split(",")]
    return given or []


def _comparison(run: Run, name: str, metric: str, target: float | None) -> dict[str, Any]:
    """Return a run's row of the table, with plain numbers, as the CSV file has them."""
    row: dict[str, Any] = {
        "run": name,
        **{key: run.config[key] for key in ("preset", "tau", "q", "graph")},
        "zeta": round(run.zeta, 6),
        "final_loss": run.final("loss"),
        "best_loss": run.best("loss"),
        f"final_{metric}": run.final("accuracy"),
        f"best_{metric}": run.best("accuracy"),
        "slot": run.summary["slot"] or 0,
    }
    if target is not None:
        reached = run.reached(target) or {}
        for key, unit in (("slot", "slots"), ("bytes", "bytes"), ("seconds", "seconds")):
            row[f"{unit}_to_target"] = reached.get(key, "")
    return row


_HEADS = {
    "run": "run",
    "preset": "preset",
    "tau": "tau",
    "q": "q",
    "graph": "graph",
    "zeta": "zeta",
    "final_loss": "loss",
    "best_loss": "best",
}
_TARGET_HEADS = {
    "run": "run",
    "slots_to_target": "slots",
    "bytes_to_target": "bytes",
    "seconds_to_target": "seconds",
}


def _table(rows: list[dict[str, Any]], heads: dict[str, str]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for key, head in heads.items():
        # On a narrow terminal names are wrapped, numbers never.
        is_name = all(isinstance(row[key], str) for row in rows) and not key.endswith("_to_target")
        table.add_column(
            head, justify="left" if is_name else "right", overflow="fold", no_wrap=not is_name
        )
    for row in rows:
        table.add_row(*(_cell_text(key, row[key]) for key in heads))
    return table


def _cell_text(key: str, value: Any) -> str:
    if isinstance(value, tuple):
        mean, half_width = value
        return f"{mean:.4g} ± {half_width:.2g}"
    if value == "":
        return "never"
    if isinstance(value, str):
        return escape(value)
    if key == "bytes_to_target":
        return f"{value / 1e6:.4g} MB"
    if key == "zeta" and math.isnan(value):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
