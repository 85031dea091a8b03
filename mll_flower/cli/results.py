"""``mll-flower plot``, ``compare`` and ``report``: what a person looks at after a run."""

from __future__ import annotations

import csv
import math
import webbrowser
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mll_flower.results.runs import Run, labels_for, load_run, load_runs

XAxis = Literal["slots", "rounds", "steps", "bytes", "seconds"]
YAxis = Literal["accuracy", "loss", "test_loss"]

Runs = Annotated[list[Path], typer.Argument(help="Folders of runs.", show_default=False)]
X = Annotated[XAxis, typer.Option("--x", help="What the curves are drawn over.")]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--labels",
        help="Names for the runs, in their order: with commas between them, or the option once "
        "for each run.",
        show_default="the folders' names",
    ),
]


def plot(
    runs: Runs,
    x: X = "slots",
    y: Annotated[YAxis, typer.Option("--y", help="What is drawn.")] = "accuracy",
    out: Annotated[
        Path, typer.Option(help="A name that ends in .png, .svg or .pdf.", dir_okay=False)
    ] = Path("plot.png"),
    labels: Labels = None,
    title: Annotated[str, typer.Option(help="Title of the picture.")] = "",
    log_y: Annotated[bool, typer.Option("--log-y", help="Logarithmic y axis.")] = False,
) -> None:
    """Draw a curve of one or more runs.

    RUNS are folders of runs, such as runs/*.
    """
    from mll_flower.results.plots import plot_curves

    found = load_runs(runs)
    path = plot_curves(found, out, x, (y,), _labels(labels, len(found)), title, log_y)
    Console().print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)


def compare(
    runs: Runs,
    target: Annotated[
        float | None,
        typer.Option(help="Accuracy: tell the slots, bytes and seconds that each run took to it."),
    ] = None,
    labels: Labels = None,
    x: X = "slots",
    out: Annotated[
        Path | None,
        typer.Option(help="Draw losses and accuracies to a .png, .svg or .pdf.", dir_okay=False),
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write the table as CSV.", dir_okay=False)
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the picture.")] = "",
) -> None:
    """Compare runs in a table.

    RUNS are folders of runs, such as runs/*.
    """
    if target is not None and not 0 < target <= 1:
        raise ValueError(f"--target {target}: an accuracy lies above 0 and is at most 1")
    found = load_runs(runs)
    names = labels_for(found, _labels(labels, len(found)))
    rows = [_row(run, name, target) for run, name in zip(found, names, strict=True)]
    console = Console()
    console.print(_table(rows, _HEADS))
    if target is not None:
        console.print(_table(rows, _TARGET_HEADS, f"To an accuracy of {target:g}"))
    data = sorted({str(run.config["dataset"]) for run in found})
    if len(data) > 1:
        console.print(
            f"These runs learn different data ({', '.join(data)}): their losses and accuracies "
            "are not of the same thing.",
            style="yellow",
            markup=False,
        )
    unfinished = [name for run, name in zip(found, names, strict=True) if not run.finished]
    if unfinished:
        console.print(f"Not finished: {', '.join(unfinished)}.", style="yellow", markup=False)
    if csv_file is not None:
        with csv_file.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        console.print(f"wrote {csv_file}", markup=False, highlight=False, soft_wrap=True)
    if out is not None:
        from mll_flower.results.plots import plot_curves

        path = plot_curves(found, out, x, ("loss", "accuracy"), names, title)
        console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(
            help="A name that ends in .html.",
            dir_okay=False,
            show_default="report.html in the run's folder",
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Write a run's report: one HTML page that stands alone.

    RUN is the folder of a run.
    """
    from mll_flower.results.html_report import write_report

    path = write_report(load_run(run), out)
    console = Console()
    console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
    if open_page and not webbrowser.open(path.absolute().as_uri()):
        console.print("no browser was found: open the file by hand", style="yellow")


def _labels(given: list[str] | None, runs: int) -> list[str]:
    """One text for several runs has commas between the names; else each text is a name."""
    if given and len(given) == 1 and runs > 1:
        return [part.strip() for part in given[0].split(",")]
    return given or []


def _row(run: Run, name: str, target: float | None) -> dict[str, Any]:
    """A run's line of the table, with bare numbers."""
    row: dict[str, Any] = {
        "run": name,
        **{key: run.config[key] for key in ("preset", "tau", "q", "graph")},
        "zeta": round(run.zeta, 6),
        "final_loss": run.final("loss"),
        "best_loss": run.best("loss"),
        "final_accuracy": run.final("accuracy"),
        "best_accuracy": run.best("accuracy"),
    }
    if target is not None:
        there = run.reached(target) or {}
        for key, name in (("slot", "slots"), ("bytes", "bytes"), ("seconds", "seconds")):
            row[f"{name}_to_target"] = there.get(key, "")
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
    "final_accuracy": "accuracy",
    "best_accuracy": "best",
}
_TARGET_HEADS = {
    "run": "run",
    "slots_to_target": "slots",
    "bytes_to_target": "bytes",
    "seconds_to_target": "seconds",
}


def _table(rows: list[dict[str, Any]], heads: dict[str, str], title: str = "") -> Table:
    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for key, head in heads.items():
        # Numbers stay whole; where room is short, names fold.
        text = key in ("run", "preset", "graph")
        table.add_column(
            head, justify="left" if text else "right", overflow="fold", no_wrap=not text
        )
    for row in rows:
        table.add_row(*(_cell(key, row[key]) for key in heads))
    return table


def _cell(key: str, value: Any) -> str:
    if value == "":
        return "never"
    if isinstance(value, str):
        return escape(value)
    if key == "bytes_to_target":
        return f"{value / 1e6:.4g} MB"
    if key == "zeta" and math.isnan(value):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
