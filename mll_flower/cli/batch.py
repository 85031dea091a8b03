"""What commands that play many runs have in common: their progress bar, and how they end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mll_flower.processes.end_requests import EndRequested, end_requests
from mll_flower.sweeps import runner
from mll_flower.sweeps.estimate import duration_text
from mll_flower.sweeps.runner import Job
from mll_flower.sweeps.state import StateWriter, seconds_left
from mll_flower.sweeps.verdicts import FAILS, HOLDS, OPEN, outlook

_STYLES = {HOLDS: "green", FAILS: "red", OPEN: "yellow"}

OnProgress = Callable[[runner.Progress], None]


@contextmanager
def playing(console: Console, jobs: Sequence[Job], state: StateWriter) -> Iterator[OnProgress]:
    """Show a progress bar and keep the state's file while runs are played.

    A request to end (Ctrl-C, SIGTERM, SIGHUP) ends the command, and says how to go on.

    Parameters
    ----------
    console : Console
        Where the bar is shown.
    jobs : sequence of Job
        The runs that are played.
    state : StateWriter
        Told how far they are.

    Yields
    ------
    callable
        What `mll_flower.sweeps.runner.play_all` calls.
    """
    runs, total = len(jobs), sum(job.seconds_left for job in jobs)
    progress = Progress(
        TextColumn("runs"),
        BarColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not runs,
    )
    started = time.monotonic()
    task = progress.add_task("runs", total=total, state=f"0 of {runs}")
    ended = 0

    def on_progress(now: runner.Progress) -> None:
        nonlocal ended
        ended = now.ended
        text = f"{ended} of {runs}"
        if now.failures:
            text += f", {len(now.failures)} failed"
        if now.seconds > 0:
            left = seconds_left(total, now.seconds, time.monotonic() - started, 1)
            text += f", {duration_text(left)} left"
        progress.update(task, completed=now.seconds, state=text)
        state.update(now)

    try:
        with end_requests(), progress:
            on_progress(runner.Progress())
            yield on_progress
    except EndRequested as request:
        state.end("interrupted")
        console.print(
            f"Interrupted: {ended} of {runs} runs were played. The same command goes on, with runs "
            "that were in progress from their last checkpoints.",
            soft_wrap=True,
            highlight=False,
        )
        raise typer.Exit(request.exit_code) from None


def styled_verdict(verdict: str, margin: float | None, error: float | None, seeds: int) -> str:
    """Return a verdict for the terminal, in its colour, with its outlook if it is open."""
    text = f"{verdict}: {outlook(margin, error, seeds)}" if verdict == OPEN else verdict
    return f"[{_STYLES[verdict]}]{text}[/{_STYLES[verdict]}]"


def verdict_table() -> Table:
    """Return an empty table of verdicts."""
    return Table("claim", "first", "second", "verdict", show_lines=True)
