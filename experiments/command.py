"""``python -m experiments FIGURE``: a figure of the paper, from its runs to its verdicts."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from experiments import document
from experiments.figures import MODELS, Figure, figures
from experiments.kept_runs import keep, restore
from experiments.reproduce import jobs_of, plan, reproduce
from mll_flower.cli import Commands
from mll_flower.cli.batch import playing, styled_verdict, verdict_table
from mll_flower.sweeps.estimate import duration_text, wall_time
from mll_flower.sweeps.runner import Job
from mll_flower.sweeps.state import StateWriter

console = Console()

# `Commands` shows bad input as one red line. It is a group of commands, but this one has none, so
# that its callback runs. Options of a group cannot follow its argument unless that is allowed.
app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    invoke_without_command=True,
    subcommand_metavar="",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": True},
)

_DOCS = Path(__file__).resolve().parent.parent / "docs"

# Arguments that the recorded command leaves out: with the others it plays the same runs.
_PLAYS_NOTHING = ("--data-dir=", "--out=", "--finished", "--keep", "--use-kept", "--write-docs")


@app.callback()
def main(
    figure: Annotated[str, typer.Argument()],
    model: Annotated[
        str | None, typer.Option(help=f"{', '.join(MODELS)}; default: all of the figure's.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="small: within an hour on two cores; paper: the paper's sizes.")
    ] = "small",
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds, from 0 on; default: the scale's.")
    ] = None,
    data_dir: Annotated[
        str, typer.Option(envvar="MLL_FLOWER_DATA", help="Folder of the data sets.")
    ] = "data",
    out: Annotated[Path, typer.Option(help="Folder for runs, CSVs and figures.")] = Path(
        "runs/reproduce"
    ),
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time, one core each.")] = 2,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only estimate the time.")] = False,
    finished: Annotated[
        bool,
        typer.Option("--finished", help="Play nothing: use the seeds that have ended everywhere."),
    ] = False,
    use_kept: Annotated[
        bool,
        typer.Option("--use-kept", help="Take runs that experiments/results/runs keeps as played."),
    ] = False,
    keep_runs: Annotated[
        bool, typer.Option("--keep", help="Keep the runs that end in experiments/results/runs.")
    ] = False,
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="Write docs/reproduction.md from all results.")
    ] = False,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", hidden=True, help="KEY=VALUE of the run config.")
    ] = None,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error comes from.")
    ] = False,
) -> None:
    """Run a figure of the paper and test its claims.

    FIGURE is tau-q, hubs, rates, time, non-iid, zeta, rates-non-iid,
    corrections, niid-bench, resnet-cifar, published, or all.

    Runs that exist already are not run again, and one that was stopped goes
    on from its checkpoint: a batch that was ended, by whatever signal, is
    continued by the same command. Runs are played seed by seed. Leaves a CSV,
    a figure and verdicts for each model under --out.
    """
    chosen = figures(figure, model, scale, seeds, _pairs(overrides or []))
    out, data = out.absolute(), str(Path(data_dir).absolute())
    todo: list[Job] = []
    if use_kept:
        console.print(f"{restore(chosen, out)} kept runs were added to those in the folder.")
    if not finished:
        with console.status("Measuring how fast each model trains here"):
            todo = plan(chosen, out, data, jobs)
        runs = sum(len(f.setups) * f.seeds for f in chosen)
        console.print(
            f"{len(chosen)} figures, {runs} runs, {len(todo)} to play: about "
            f"{duration_text(wall_time(todo, jobs))} on {jobs} free cores, by the speed measured "
            "here."
        )
        begun = sum(job.begun > 0 for job in todo)
        if begun:
            console.print(f"{begun} of them go on from their checkpoints.")
    if dry_run:
        _show_plan(chosen, todo, out, jobs)
        return
    if finished:
        outcome = reproduce(chosen, [], out, jobs, _typed_command())
    else:
        out.mkdir(parents=True, exist_ok=True)
        setups = [(setup, range(f.seeds)) for f in chosen for setup in f.setups]
        state = StateWriter(out, f"figure {figure}", _typed_command(), setups, todo, jobs)
        with playing(console, todo, state) as on_progress:
            outcome = reproduce(chosen, todo, out, jobs, _typed_command(), on_progress)
        state.end("failed" if outcome.failures else "finished")
    for summary in outcome.summaries:
        _show(summary)
    for name in outcome.without:
        console.print(f"{name}: no seed has ended in all set-ups.", style="yellow")
    console.print(f"Results: [bold]{out}[/bold]", soft_wrap=True)
    if keep_runs:
        console.print(f"{keep(chosen, out)} more runs are kept.")
    if write_docs:
        console.print(f"Document: [bold]{document.write(out, _DOCS)}[/bold]", soft_wrap=True)
    if outcome.failures:
        reasons = "; ".join(f"{name}: {why}" for name, why in sorted(outcome.failures.items()))
        raise ValueError(f"{len(outcome.failures)} runs failed: {reasons}")


def _show_plan(chosen: list[Figure], todo: list[Job], out: Path, jobs: int) -> None:
    """Show what each figure would take by itself."""
    table = Table("figure", "model", "runs", "to play", "about")
    for figure in chosen:
        missing = jobs_of(figure, todo, out)
        runs = len(figure.setups) * figure.seeds
        time = duration_text(wall_time(missing, jobs))
        table.add_row(figure.name, figure.model, str(runs), str(len(missing)), time)
    console.print(table)


def _pairs(texts: list[str]) -> dict[str, Any]:
    wrong = [text for text in texts if "=" not in text]
    if wrong:
        raise ValueError(f"--set {wrong[0]!r}: give KEY=VALUE")
    return dict(text.split("=", 1) for text in texts)


def _typed_command() -> str:
    """Return what plays the runs: what the user typed, less folders and what plays nothing."""
    arguments = iter(sys.argv[1:])
    kept = ["python", "-m", "experiments"]
    for argument in arguments:
        if argument in ("--data-dir", "--out"):
            next(arguments, None)
        elif not argument.startswith(_PLAYS_NOTHING):
            kept.append(argument)
    return shlex.join(kept)


def _show(summary: dict[str, Any]) -> None:
    title = f"{summary['title']}: {summary['model']} on {summary['data']}, {summary['scale']}"
    if len(summary["seeds"]) < summary["planned"]:
        title += f", {len(summary['seeds'])} of {summary['planned']} seeds"
    setups = Table("set-up", "training loss", "test accuracy", title=title)
    for setup in summary["setups"]:
        setups.add_row(setup["label"], _mean_sd(*setup["loss"]), _mean_sd(*setup["accuracy"]))
    console.print(setups)
    if summary["verdicts"]:
        verdicts = verdict_table()
        for v in summary["verdicts"]:
            verdicts.add_row(
                v["claim"],
                _mean_sd(v["left_mean"], v["left_sd"]),
                _mean_sd(v["right_mean"], v["right_sd"]),
                styled_verdict(v["verdict"], v["margin"], v["error"], v["seeds"]),
            )
        console.print(verdicts)
    for c in summary.get("comparisons", []):
        console.print(
            f"{c['label']}: final difference {100 * c['final']:+.2f} %, largest "
            f"{100 * c['largest']:+.2f} %"
        )


def _mean_sd(mean: float, spread: float | None) -> str:
    unknown = spread is None or math.isnan(spread)
    return f"{mean:.4f}" if unknown else f"{mean:.4f} ± {spread:.4f}"
