"""Follows a run in another process: its records, as it adds them to metrics.csv."""

from __future__ import annotations

import csv
from dataclasses import asdict
from pathlib import Path

from mll_flower.results import files
from mll_flower.results.recorder import Hook
from mll_flower.results.runs import HubRow, parse_row


class RowFollower:
    """Gives the rows that a run has added since the last look to hooks.

    Parameters
    ----------
    output : Path
        The run's folder.
    on_round, on_evaluation : callable
        Called with the record of each hub after each message, and of each evaluation.
    skip : int
        Rows at the start that are not new: those of the run that is resumed.
    """

    def __init__(self, output: Path, on_round: Hook, on_evaluation: Hook, skip: int = 0) -> None:
        self.path = output / files.ROWS
        self.on_round, self.on_evaluation = on_round, on_evaluation
        self.skip = skip
        self._read = 0
        self._columns: list[str] = []

    def look(self) -> None:
        """Call the hooks with every row that is new; half a line is left for the next look."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for values in csv.reader(whole.decode().splitlines()):
            if not self._columns:
                self._columns = values  # the header
                continue
            if self.skip:
                self.skip -= 1
                continue
            record = parse_row(dict(zip(self._columns, values, strict=True)))
            if isinstance(record, HubRow):
                self.on_round(asdict(record))
            else:
                self.on_evaluation(record)
