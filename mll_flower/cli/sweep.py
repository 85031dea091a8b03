"""``mll-flower sweep``: a grid of settings and seeds from a file, from its runs to its verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mll_flower.cli.batch import playing, styled_verdict, verdict_table
from mll_flower.cli.results import print_comparison
from mll_flower.extras import EXTRAS, require
from mll_flower.sweeps.cache import run_folder
from mll_flower.sweeps.estimate import duration_text, estimate, wall_time
from mll_flower.sweeps.runner import Job, play_all
from mll_flower.sweeps.state import StateWriter
from mll_flower.sweeps.sweep import (
    Outcome,
    check_data,
    missing_runs,
    outcome,
    runs_of,
    write_results,
)
from mll_flower.sweeps.sweep_file import Sweep, read_sweep

console = Console()


def sweep(
    file: Annotated[Path, typer.Argument(help="The sweep's file, in TOML.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the runs and the results.",
            show_default="runs/sweeps/ and the file's name",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time, one core each.")] = 2,
    data_dir: Annotated[
        str,
        typer.Option(
            envvar="MLL_FLOWER_DATA", help="Folder of the data sets, unless the file names it."
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be run, and how long it takes.")
    ] = False,
    finished: Annotated[
        bool, typer.Option("--finished", help="Run nothing: show the seeds that have ended.")
    ] = False,
) -> None:
    """Run a grid of settings with several seeds, compare them, and test claims about them.

    FILE is a TOML file with settings, a grid of values, seeds and claims;
    docs/sweeps.md explains it. Runs that exist already are not run again, and
    one that was stopped goes on from its checkpoint: the same command
    continues a sweep that was ended, by whatever signal.
    """
    described = read_sweep(file, data_dir)
    require("mll-flower sweep", *(name for name in EXTRAS["torch"] if name != "ray"))
    folder = (out or Path("runs", "sweeps", file.stem)).absolute()
    failed = False
    if not finished:
        failed = _play(described, file, folder, jobs, dry_run)
    if dry_run:
        return
    shown = outcome(described, folder)
    if shown is None:
        raise ValueError(f"{folder}: no seed has ended in all set-ups yet")
    _show(described, shown)
    written = ", ".join(path.name for path in write_results(described, shown, folder))
    console.print(f"Results: [bold]{escape(str(folder))}[/bold] ({written})", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _play(described: Sweep, file: Path, out: Path, jobs: int, dry_run: bool) -> bool:
    """Play what is missing; return whether a run failed."""
    check_data(described)
    todo = missing_runs(described, out)
    if todo:
        with console.status("Measuring how fast each model trains here"):
            todo = estimate(todo, jobs)
    begun = sum(job.begun > 0 for job in todo)
    console.print(
        f"{len(described.setups)} set-ups, seeds {', '.join(map(str, described.seeds))}: "
        f"{runs_of(described, out)} runs, {len(todo)} to play"
        + (f" ({begun} of them from checkpoints)" if begun else "")
        + f", about {duration_text(wall_time(todo, jobs))} on {jobs} free cores.",
        soft_wrap=True,
        highlight=False,
    )
    if dry_run:
        console.print(_plan(described, todo, out))
        return False
    out.mkdir(parents=True, exist_ok=True)
    runs = [(setup, described.seeds) for setup in described.setups]
    state = StateWriter(out, described.title, str(file.absolute()), runs, todo, jobs)
    with playing(console, todo, state) as on_progress:
        failures = play_all(todo, jobs, on_progress)
    state.end("failed" if failures else "finished")
    for failure, error in failures.items():
        console.print(f"{failure.name} failed: {error}", style="red", markup=False, soft_wrap=True)
    return bool(failures)


def _plan(described: Sweep, todo: list[Job], out: Path) -> Table:
    """Return a table of what is to be played."""
    left = {job.folder: job for job in todo}
    table = Table("set-up", "runs", "to play", "of one core")
    for setup in described.setups:
        folders = [run_folder(out, setup.config(seed)) for seed in described.seeds]
        mine = [left[folder] for folder in folders if folder in left]
        time = duration_text(sum(job.seconds_left for job in mine))
        table.add_row(escape(setup.label), str(len(folders)), str(len(mine)), time)
    return table


def _show(described: Sweep, shown: Outcome) -> None:
    print_comparison(console, shown.runs, [setup.label for setup in described.setups])
    if len(shown.seeds) < len(described.seeds):
        console.print(
            f"Only {len(shown.seeds)} of {len(described.seeds)} seeds have ended in all set-ups.",
            style="yellow",
        )
    if not shown.verdicts:
        return
    table = verdict_table()
    for v in shown.verdicts:
        table.add_row(
            escape(v.claim),
            f"{v.left_mean:.4g}",
            f"{v.right_mean:.4g}",
            styled_verdict(v.verdict, v.margin, v.error, v.seeds),
        )
    console.print(f"Claims, at slot {shown.slot:,}", style="italic", highlight=False)
    console.print(table)
