"""The progress bar of a run, in a terminal or in a notebook, fed with the run's records.

In a terminal it is rich's. Rich draws in a notebook only where ipywidgets is installed, so there
the bar is a piece of HTML that is replaced, which every Jupyter shows and keeps.
"""

from __future__ import annotations

import sys
import time
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from mll_flower.results.formatting import format_duration
from mll_flower.results.progress import newest_evaluation
from mll_flower.results.runs import metric_name

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

# Least seconds between two versions of the HTML: a notebook keeps every one of them in flight.
_EVERY = 0.25


class ProgressBar(Protocol):
    """What a bar can do."""

    def show(self, slot: int, slots: int, note: str) -> None:
        """Show how far the run has got."""

    def close(self, note: str) -> None:
        """Show a last note and stop."""


class RunProgress:
    """Keeps a bar up to date; its methods are the hooks of a run.

    Parameters
    ----------
    bar : ProgressBar
        The bar.
    slots : int
        Slots of the whole run.
    """

    def __init__(self, bar: ProgressBar, slots: int) -> None:
        self.bar, self.slots = bar, slots
        self.values: dict[str, Any] = {"slot": 0}

    def round(self, record: dict[str, Any]) -> None:
        """Take the record of a hub's round."""
        self.values["slot"] = max(self.values["slot"], record["slot"])
        self._show()

    def evaluation(self, record: dict[str, Any]) -> None:
        """Take the record of an evaluation."""
        self.values.update(record, evaluated=record["slot"], metric=metric_name(record))
        self._show()

    def close(self) -> None:
        """Show the last evaluation, and stop."""
        self.bar.close(newest_evaluation(self.values))

    def _show(self) -> None:
        self.bar.show(self.values["slot"], self.slots, newest_evaluation(self.values))


class TerminalBar:
    """A bar of rich."""

    def __init__(self) -> None:
        from rich.console import Console

        self.bars = terminal_bars(Console(stderr=True))
        self.task = self.bars.add_task("slots", total=None, note="starting")
        self.bars.start()

    def show(self, slot: int, slots: int, note: str) -> None:
        """Show how far the run has got."""
        self.bars.update(self.task, completed=slot, total=slots, note=note)

    def close(self, note: str) -> None:
        """Show a last note and stop."""
        self.bars.update(self.task, note=note)
        self.bars.stop()


class NotebookBar:
    """A bar of HTML in the output of a notebook's cell."""

    def __init__(self) -> None:
        # Not by a plain import: IPython has no types, and is no dependency.
        ipython = import_module("IPython.display")
        self._html = ipython.HTML
        self._started = self._shown = time.monotonic()
        self._slots = (0, 0)
        self._handle = ipython.display(self._html(self._page("starting")), display_id=True)

    def show(self, slot: int, slots: int, note: str) -> None:
        """Show how far the run has got."""
        self._slots = (slot, slots)
        if time.monotonic() - self._shown > _EVERY:
            self._replace(note)

    def close(self, note: str) -> None:
        """Show a last note and stop."""
        self._replace(note)

    def _replace(self, note: str) -> None:
        self._handle.update(self._html(self._page(note)))
        self._shown = time.monotonic()

    def _page(self, note: str) -> str:
        slot, slots = self._slots
        seconds = format_duration(time.monotonic() - self._started)
        return (
            f'<progress value="{slot}" max="{slots or 1}" style="width: 16em"></progress> '
            f"slot {slot} of {slots or '…'} &nbsp; {escape(note)} &nbsp; {seconds}"
        )


def terminal_bars(console: Console) -> Progress:
    """Return rich's display of bars, with the columns of a run; each task has a ``note``."""
    from rich import progress

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[note]}"),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=console,
        refresh_per_second=4,
    )


def progress_bar() -> ProgressBar:
    """Return the bar for where this process shows its output."""
    return NotebookBar() if in_notebook() else TerminalBar()


def in_notebook() -> bool:
    """Whether this is a notebook's kernel, whose output can be replaced."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")
