"""``mll-flower reproduce``: the paper's figures, from runs to verdicts."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from experiments.figures import Figure
    from experiments.runner import Job

console = Console()

_STYLES = {"holds": "green", "does not hold": "red"}


def reproduce(
    figure: Annotated[str, typer.Argument()],
    model: Annotated[
        str | None, typer.Option(help="logistic, cnn or resnet18; default: all that it has.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="small: within an hour on two cores; paper: the full thing.")
    ] = "small",
    seeds: Annotated[int | None, typer.Option(help="How many, from 0 on.")] = None,
    data_dir: Annotated[
        str, typer.Option(envvar="MLL_FLOWER_DATA", help="Where the data sets are.")
    ] = "data",
    out: Annotated[Path, typer.Option(help="Where runs, CSVs and figures go.")] = Path(
        "runs/reproduce"
    ),
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time, a core each.")] = 2,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how long it takes.")] = False,
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="Write docs/reproduction.md from all results.")
    ] = False,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", hidden=True, help="KEY=VALUE of the run config.")
    ] = None,
) -> None:
    """Run a figure of the paper and judge its claims.

    FIGURE is tau-q, hubs, rates, time, non-iid, zeta, resnet-cifar,
    published, or all.

    Runs that are there are not run again. Leaves a CSV, a figure and a
    verdict table for each model under --out.
    """
    root = _experiments()
    from experiments.figures import figures
    from experiments.reproduce import plan
    from experiments.reproduce import reproduce as make
    from experiments.runner import in_words, wall_time

    chosen = figures(figure, model, scale, seeds, _pairs(overrides or []))
    out, data = out.absolute(), str(Path(data_dir).absolute())
    with console.status("Measuring how fast each model trains here"):
        todo = plan(chosen, out, data, jobs)
    runs = sum(len(f.setups) * f.seeds for f in chosen)
    seconds = wall_time(todo, jobs)
    console.print(
        f"{len(chosen)} figures, {runs} runs, {len(todo)} to play: about {in_words(seconds)} "
        f"on {jobs} processes, by the speed measured here."
    )
    if dry_run:
        _show_plan(chosen, todo, out, jobs)
        return
    with _bar(sum(job.seconds for job in todo), len(todo)) as look:
        outcome = make(chosen, todo, out, data, jobs, _command(), look)
    for summary in outcome.summaries:
        _show(summary)
    console.print(f"Results: [bold]{out}[/bold]", soft_wrap=True)
    if write_docs:
        from experiments.document import write

        console.print(f"Document: [bold]{write(out, root / 'docs')}[/bold]", soft_wrap=True)
    if outcome.failures:
        words = "; ".join(f"{name}: {why}" for name, why in sorted(outcome.failures.items()))
        raise ValueError(f"{len(outcome.failures)} runs failed: {words}")


def _show_plan(chosen: list[Figure], todo: list[Job], out: Path, jobs: int) -> None:
    """Show what each figure would take by itself."""
    from experiments.reproduce import jobs_of
    from experiments.runner import in_words, wall_time

    table = Table("figure", "model", "runs", "to play", "about")
    for figure in chosen:
        missing = jobs_of(figure, todo, out)
        runs = len(figure.setups) * figure.seeds
        time = in_words(wall_time(missing, jobs))
        table.add_row(figure.name, figure.model, str(runs), str(len(missing)), time)
    console.print(table)


def _experiments() -> Path:
    """Find the checkout that holds the experiments, and make them importable."""
    for folder in (Path(__file__).resolve().parents[2], Path.cwd()):
        if (folder / "experiments" / "models.toml").is_file():
            if str(folder) not in sys.path:
                sys.path.insert(0, str(folder))
            return folder
    raise ValueError(
        "the experiments are not here: they are a part of the checkout of mll-flower, not of the "
        "installed package; run in a checkout, or install it from one with pip install -e ."
    )


def _pairs(texts: list[str]) -> dict[str, Any]:
    wrong = [text for text in texts if "=" not in text]
    if wrong:
        raise ValueError(f"--set {wrong[0]!r}: give KEY=VALUE")
    return dict(text.split("=", 1) for text in texts)


def _command() -> str:
    """Return what the user typed, without the places that differ from machine to machine."""
    words = iter(sys.argv[1:])
    kept = ["mll-flower"]
    for word in words:
        if word in ("--data-dir", "--out"):
            next(words, None)
        elif not word.startswith(("--data-dir=", "--out=")):
            kept.append(word)
    return shlex.join(kept)


@contextmanager
def _bar(seconds: float, runs: int) -> Iterator[Callable[[float, int], None]]:
    """Show how far the runs are, in estimated seconds, and how long is left."""
    progress = Progress(
        TextColumn("runs"),
        BarColumn(),
        TextColumn("{task.fields[words]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not runs,
    )
    from experiments.runner import in_words

    started = time.monotonic()
    with progress:
        task = progress.add_task("runs", total=seconds, words=f"0 of {runs}")

        def look(done: float, finished: int) -> None:
            words = f"{finished} of {runs}"
            if done > 0:
                left = (time.monotonic() - started) * (seconds - done) / done
                words += f", {in_words(max(left, 0.0))} left"
            progress.update(task, completed=done, words=words)

        yield look


def _show(summary: dict[str, Any]) -> None:
    title = f"{summary['title']}: {summary['model']} on {summary['data']}, {summary['scale']}"
    setups = Table("set-up", "training loss", "test accuracy", title=title)
    for setup in summary["setups"]:
        setups.add_row(setup["label"], _pm(*setup["loss"]), _pm(*setup["accuracy"]))
    console.print(setups)
    if summary["verdicts"]:
        verdicts = Table("claim", "first", "second", "verdict", show_lines=True)
        for v in summary["verdicts"]:
            style = _STYLES.get(v["verdict"], "yellow")
            verdicts.add_row(
                v["claim"],
                _pm(v["left_mean"], v["left_sd"]),
                _pm(v["right_mean"], v["right_sd"]),
                f"[{style}]{v['verdict']}[/{style}]",
            )
        console.print(verdicts)
    for c in summary.get("comparisons", []):
        console.print(
            f"{c['label']}: final difference {100 * c['final']:+.2f} %, largest "
            f"{100 * c['largest']:+.2f} %"
        )


def _pm(mean: float, spread: float | None) -> str:
    plain = spread is None or spread != spread
    return f"{mean:.4f}" if plain else f"{mean:.4f} ± {spread:.4f}"
