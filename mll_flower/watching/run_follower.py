"""Follows the folder of a simulated run: reads what is new in its files, again and again.

A run that is resumed or replaced in its folder writes its files anew; the follower notices and
begins again.
"""

from __future__ import annotations

import csv
import json
import os
import time
from pathlib import Path
from typing import Any

from mll_flower.results import files
from mll_flower.results.events import parse_events
from mll_flower.results.runs import HubRow, Run, parse_row, unfinished_result

_REMEMBERED = 256  # bytes before the place up to which a file was read


class Tail:
    """The lines that a file gets, read as they come; half a line is left for the next look.

    Parameters
    ----------
    path : Path
        The file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self._read, self._before, self._inode = 0, b"", -1

    def new_lines(self) -> tuple[bool, list[bytes]]:
        """Return whether the file has begun anew since the last look, and its new lines."""
        try:
            with self.path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                anew = self._read > 0 and not self._continues(file, inode)
                if anew:
                    self._forget()
                file.seek(self._read)
                text = file.read()
        except OSError:
            anew = self._read > 0
            self._forget()
            return anew, []
        whole = text[: text.rfind(b"\n") + 1]
        self._inode = inode
        self._read += len(whole)
        self._before = (self._before + whole)[-_REMEMBERED:]
        return anew, whole.splitlines()

    def _continues(self, file: Any, inode: int) -> bool:
        """Return whether what was read is still there: else the file was written anew."""
        if inode != self._inode:
            return False
        file.seek(self._read - len(self._before))
        return bool(file.read(len(self._before)) == self._before)


class RunFollower:
    """A run's folder, read as the run goes on.

    Parameters
    ----------
    folder : Path
        The run's output; it need not exist yet.
    hub_rows : bool
        Whether the rows of the hubs are kept; curves of the averaged model do not need them.
    """

    def __init__(self, folder: Path, hub_rows: bool = True) -> None:
        self.folder = folder
        self.config: dict[str, Any] = {}
        self.result: dict[str, Any] | None = None
        self.finished = False
        self.evaluations: list[dict[str, Any]] = []
        self.hub_rows: list[HubRow] = []
        self.metric = "accuracy"
        self.rounds = self.slot = 0
        self._keep = hub_rows
        self._rows, self._event_lines = Tail(folder / files.ROWS), Tail(folder / files.EVENTS)
        self._columns: list[str] = []
        self._events: list[dict[str, Any]] = []
        self._stamps: dict[str, tuple[int, int, int]] = {}
        self._news = time.time()

    @property
    def begun(self) -> bool:
        """Whether the run has written what it starts from."""
        return self.result is not None and bool(self.config)

    @property
    def stopped(self) -> bool:
        """Whether the run was interrupted, and could say so."""
        workers = (self.result or {}).get("workers") or [{}]
        return not self.finished and workers[0].get("steps") is not None

    @property
    def age(self) -> float:
        """Seconds since the run last wrote anything."""
        return max(0.0, time.time() - self._news)

    def look(self) -> bool:
        """Read what is new; return whether there was anything."""
        changed = [self._read_start(), self._read_rows(), self._read_events()]
        return any(changed)

    def run(self) -> Run:
        """Return the run as far as it has got."""
        result = self.result
        evaluations = self.evaluations
        if result is not None and self.finished:
            evaluations = result["evaluations"]
        elif result is not None:
            result = unfinished_result(result, evaluations, self.hub_rows, self._events)
        rows = list(self.hub_rows)
        return Run(
            self.folder, self.config, list(evaluations), rows, result, self.finished, self.metric
        )

    def _changed(self, name: str) -> bool:
        """Return whether a file that is replaced as a whole has changed since the last look."""
        try:
            found = (self.folder / name).stat()
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            self._news = max(self._news if self._stamps else 0.0, found.st_mtime)
        except OSError:
            stamp = (0, 0, 0)
        if self._stamps.get(name, (0, 0, 0)) == stamp:
            return False
        self._stamps[name] = stamp
        return True

    def _read_start(self) -> bool:
        # In this order: a run that finishes meanwhile removes the second after it writes the first.
        names = (files.CONFIG, files.UNFINISHED, files.METRICS)
        changed = [self._changed(name) for name in names]
        if not any(changed):
            return False
        unfinished = _read_object(self.folder / files.UNFINISHED)
        result = _read_object(self.folder / files.METRICS)
        self.config = _read_object(self.folder / files.CONFIG) or {}
        self.finished = result is not None
        self.result = result if result is not None else unfinished
        return True

    def _read_rows(self) -> bool:
        anew, lines = self._rows.new_lines()
        if anew:
            self.evaluations, self.hub_rows, self._columns = [], [], []
            self.rounds = self.slot = 0
        self._changed(files.ROWS)  # for the time of the last news
        for values in csv.reader(line.decode(errors="replace") for line in lines):
            if not self._columns:
                self._columns = values
                unknown = [name for name in values if name not in files.COLUMNS]
                self.metric = unknown[0] if unknown else "accuracy"
                continue
            try:
                record = parse_row(dict(zip(self._columns, values, strict=True)))
            except (ValueError, KeyError):
                continue  # not a row of metrics
            if isinstance(record, HubRow):
                self.rounds, self.slot = record.round, max(self.slot, record.slot)
                if self._keep:
                    self.hub_rows.append(record)
            else:
                self.evaluations.append(record)
        return anew or bool(lines)

    def _read_events(self) -> bool:
        anew, lines = self._event_lines.new_lines()
        if anew:
            self._events = []
        self._events += parse_events(lines)
        return anew or bool(lines)


def _read_object(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return found if isinstance(found, dict) else None
