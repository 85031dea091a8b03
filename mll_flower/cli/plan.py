"""``mll-flower plan``: which tau, q and graph, and what is gained over waiting?

`mll_flower.planning` does the work; this module shows its progress and its answer.
"""

from __future__ import annotations

import math
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from mll_flower.extras import EXTRAS, require
from mll_flower.results.formatting import format_bytes, format_duration

if TYPE_CHECKING:
    from mll_flower.planning.planner import Answer
    from mll_flower.planning.verdict import Interval

console = Console(highlight=False)


def plan(
    file: Annotated[
        Path | None, typer.Argument(help="The plan's TOML file.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of the answer; default: plans/ and the name."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the plan that the folder holds.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs per finalist, in place of the file's.")
    ] = None,
    processes: Annotated[
        int, typer.Option(min=0, help="Runs at the same time; 0: one per core.")
    ] = 0,
    example: Annotated[
        bool,
        typer.Option("--example", help="Write a plan to begin with: to FILE, or to the screen."),
    ] = False,
) -> None:
    """Find the setting that reaches a goal soonest, on a simulated clock.

    FILE is a TOML file that says which regions and workers there are, how long
    their steps take, how fast their links are, what is trained, and what the
    goal is: a target (accuracy, loss) or a budget (hours, gigabytes).
    `mll-flower plan --example` writes one. Graphs, tau, q and waiting or not are tried on a
    clock made from these figures: what theory rules out is dropped, short runs
    halve the rest, and the finalists are compared over several seeds. The
    answer is a table, a picture, the setting that is recommended, what the
    runner-up costs, what is gained over waiting, and a network file for a
    deployment. It says when the data do not decide.
    """
    from mll_flower.planning.example_plan import EXAMPLE

    if example:
        _write_example(file, EXAMPLE)
        return
    if file is None:
        raise ValueError("which plan? give its file; mll-flower plan --example writes one")
    from mll_flower.planning.plan_file import load_plan
    from mll_flower.planning.planner import claimed_folder, make_plan
    from mll_flower.processes.end_requests import EndRequested, end_requests
    from mll_flower.results.progress_bar import terminal_bars

    wanted = load_plan(file)
    require("mll-flower plan", *(name for name in EXTRAS["torch"] if name != "ray"))
    if seeds is not None:
        wanted = replace(wanted, search=replace(wanted.search, seeds=seeds))
    folder: Path | None = None
    try:
        with (
            end_requests(),
            claimed_folder(output, wanted, overwrite) as folder,
            terminal_bars(console) as bars,
        ):
            task = bars.add_task("starting", total=None, note="")

            def say(stage: str, done: int, total: int) -> None:
                bars.update(task, description=stage, completed=done, total=total, note="runs")

            cores = len(os.sched_getaffinity(0))
            answer = make_plan(wanted, folder, processes or cores, say)
    except EndRequested as request:
        console.print(_after_interruption(file, folder), markup=False, soft_wrap=True)
        raise typer.Exit(request.exit_code) from None
    except RuntimeError as failure:
        console.print(f"Error: {failure}", style="bold red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    _print_answer(answer)


def _after_interruption(file: Path, folder: Path | None) -> str:
    if folder is None:
        return "Interrupted: there is no answer."
    command = ["mll-flower", "plan", str(file), "--output", str(folder)]
    return f"Interrupted: there is no answer yet. To go on:\n{shlex.join(command)}"


def _write_example(file: Path | None, text: str) -> None:
    if file is None:
        typer.echo(text, nl=False)
        return
    if file.exists():
        raise FileExistsError(f"{file} exists; nothing was written: choose another name")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    console.print(f"{file}: next, mll-flower plan {file}", soft_wrap=True, markup=False)


def _print_answer(answer: Answer) -> None:
    verdict, found = answer.verdict, answer.found
    has_target = any(row.reached for row in verdict.rows)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("setting")
    heads = ("zeta", "to the target" if has_target else "time", "bytes", answer.metric, "reached")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for row in verdict.rows:
        more = ">" if has_target and not row.all_reached else ""
        table.add_row(
            row.candidate.name,
            f"{row.candidate.zeta:.3f}",
            more + _with_interval(row.seconds),
            f"{format_bytes(row.bytes.mean)}",
            f"{row.metric.mean:.4f}{_half(row.metric.half, '.4f')}",
            f"{row.reached} of {row.seeds}",
        )
    console.print(table)
    names = answer.names
    links = ", ".join(f"{names[i]} - {names[j]}" for i, j in verdict.rows[0].candidate.edges)
    for sentence in verdict.sentences + ([f"Links that it uses: {links}."] if links else []):
        console.print(sentence, markup=False, soft_wrap=True)
    for note in found.notes:
        console.print(f"Note: {note}.", markup=False, soft_wrap=True, style="yellow")
    theory = sum(why.startswith("theory") for why in found.why_not.values())
    pilots = len(found.why_not) - theory
    console.print(
        f"Of {len(found.candidates)} settings, theory dropped {theory} and pilots {pilots}; "
        f"{found.played} runs, {found.cpu:.0f} s of processor time.",
        style="dim",
    )
    console.print(f"Answer: [bold]{answer.output}[/bold]", soft_wrap=True)
    console.print("  plan.png, table.csv, plan.json, network.toml (a deployment)")
    console.print(f"  mll-flower run --config {answer.output / 'recommended.toml'}", soft_wrap=True)


def _with_interval(interval: Interval) -> str:
    if math.isnan(interval.half):
        return format_duration(interval.mean)
    if interval.mean < 60:
        return f"{interval.mean:.3g} ± {interval.half:.2g} s"
    unit, name = (60, "min") if interval.mean < 7200 else (3600, "h")
    return f"{interval.mean / unit:.1f} ± {interval.half / unit:.1f} {name}"


def _half(half: float, digits: str) -> str:
    return "" if math.isnan(half) else f" ± {half:{digits}}"
