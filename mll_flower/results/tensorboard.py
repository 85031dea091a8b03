"""Metrics for TensorBoard, from the records of a simulation or from the rows of a deployed hub.

It needs the package tensorboard (the extra ``tensorboard``), which is imported when a writer is
made; torch is not needed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# What an evaluation's record has besides measured values.
_AXES = {"slot", "round", "steps", "bytes", "seconds", "evaluation_seconds"}


class TensorBoardWriter:
    """Writes scalars into an event file; its methods are the hooks of `mll_flower.simulate`.

    ``simulate(on_evaluation=writer.evaluation, on_round=writer.round)``

    Parameters
    ----------
    folder : str or Path
        Where the event file goes; ``tensorboard --logdir`` takes it, or any folder above it.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise ImportError(
                "TensorBoardWriter needs the package tensorboard: pip install "
                "'mll-flower[tensorboard]'"
            ) from None
        self.folder = Path(folder)
        self._file = EventFileWriter(str(folder))

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Write an evaluation of the averaged model, over slots."""
        values = {name: value for name, value in record.items() if name not in _AXES}
        self.write(record["slot"], "averaged model", values)

    def round(self, record: Mapping[str, Any]) -> None:
        """Write one hub's record of a round, over slots."""
        values = {name: record[name] for name in ("loss", "distance", "steps", "absent")}
        self.write(record["slot"], f"hub {record['hub']}", values)

    def hub_row(self, row: Mapping[str, Any]) -> None:
        """Write a row of a deployed hub's rounds.jsonl, over rounds."""
        names = ("loss", "test_loss", row.get("metric", "accuracy"), "seconds", "late")
        values: dict[str, Any] = {name: row.get(name) for name in (*names, "gossip_seconds")}
        # An app of the user's own may not tell its workers' steps.
        values["steps"] = sum(reply["steps"] or 0 for reply in row["arrived"])
        values |= {name: len(row[name]) for name in ("arrived", "absent", "silent")}
        self.write(row["round"], "hub", values)
        self._file.flush()  # a round takes seconds, and whoever watches should see it

    def write(self, step: int, group: str, values: Mapping[str, float | None]) -> None:
        """Write scalars under ``group/name``; those that are None are left out."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [
            Summary.Value(tag=f"{group}/{name}", simple_value=float(value))
            for name, value in values.items()
            if value is not None
        ]
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=scalars))
        self._file.add_event(event)

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
