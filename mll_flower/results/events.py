"""What happens in a run besides the rows of metrics.csv, in a file while the run goes on.

The file (`files.EVENTS`) has one JSON object per line: an absence with its cause, or an evaluation
of the hubs' own models. At the end the same is in metrics.json; until then, whoever reads or
watches the run finds it here. A run in which neither happens has no such file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from mll_flower.results import files

ABSENT, HUBS = "absent", "hubs"
"""The two kinds of events: the value of ``event``."""


class EventWriter:
    """Appends events to the file of a run.

    Parameters
    ----------
    output : Path
        The run's folder; a file of events in it is replaced.
    """

    def __init__(self, output: Path) -> None:
        self.path = output / files.EVENTS
        self.path.unlink(missing_ok=True)
        self._file: IO[str] | None = None

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Add an event; `flush` brings it to the disk."""
        if self._file is None:
            self._file = self.path.open("w")
        self._file.write(json.dumps({"event": kind, **values}) + "\n")

    def flush(self) -> None:
        """Make what was written readable for others."""
        if self._file is not None and not self._file.closed:
            self._file.flush()

    def close(self) -> None:
        """End the file."""
        if self._file is not None:
            self._file.close()


def parse_events(lines: Iterable[str | bytes]) -> list[dict[str, Any]]:
    """Read lines of a file of events; those that are no event are left out."""
    found = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("event") in (ABSENT, HUBS):
            found.append(event)
    return found


def add_events(result: dict[str, Any], events: Iterable[dict[str, Any]]) -> None:
    """Give the result of a run that has not ended the absences and evaluations of its events."""
    events = list(events)
    if not events:
        return
    plain = [{key: event[key] for key in event if key != "event"} for event in events]
    kinds = [event["event"] for event in events]
    absences = [e for e, kind in zip(plain, kinds, strict=True) if kind == ABSENT]
    counts = dict.fromkeys(range(len(result["workers"])), 0)
    for absence in absences:
        counts[absence["worker"]] = counts.get(absence["worker"], 0) + 1
    result["absences"] = absences
    result["workers"] = [{**w, "absent": counts[i]} for i, w in enumerate(result["workers"])]
    result["hub_evaluations"] = [e for e, k in zip(plain, kinds, strict=True) if k == HUBS]


def rounded(values: Iterable[float]) -> list[float | None]:
    """Return numbers with six digits, None for those that are not finite: JSON has none of them."""
    return [float(f"{v:.6g}") if math.isfinite(v) else None for v in values]
