"""What a hub leaves behind: a row a round, and how it is now.

``rounds.jsonl`` has one JSON object a line: events (``event``), and a row for each round from
which the run can be replayed:

- ``round``, ``mixing`` (its number, or null), ``learning_rate``;
- ``arrived``: node, worker, steps, rate, loss and weight of each, in the order in which
  they were summed; ``absent``: node, worker (where known), weight, cause and why;
- ``weight`` (of the hub), ``column`` (the H[j, d] that were used), ``silent`` (who was, and why);
- ``loss``: mean training loss of the workers' steps;
- ``seconds`` that the workers' round lasted, and how ``late`` after its deadline it ended;
- ``gossip_seconds``, ``gossip_sent``, ``gossip_received`` and ``model_bytes``, all since the start;
- ``test_loss`` and ``accuracy`` of the hub's own model, where it was evaluated.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mll_flower.gossip import Gossip
from mll_flower.grids.deadline import DeadlineGrid
from mll_flower.strategies.base import RoundReport
from mll_flower.strategies.gossiping import GossipingHubStrategy
from mll_flower.strategies.hub import Arrival

ROWS = "rounds.jsonl"
NOW = "now.json"

BEGUN = ("training", "finishing", "finished")
"""Phases of a hub that does not wait for others any more."""


class HubRecord:
    """Writes a hub's rows, and tells the neighbours and the operator how it is.

    Parameters
    ----------
    folder : Path
        Where the files go.
    run, hub : str
        The run and the hub.
    gossip : Gossip
        Through which others ask.
    """

    def __init__(self, folder: Path, run: str, hub: str, gossip: Gossip) -> None:
        self.folder, self.gossip = folder, gossip
        self.silent: dict[str, str] = {}
        self._now: dict[str, Any] = {"run": run, "hub": hub, "pid": os.getpid(), "round": 0}
        self._workers: dict[int, int] = {}
        self._models = 0

    def phase(self, phase: str, **more: Any) -> None:
        """Say what the hub is doing."""
        self._tell(phase=phase, **more)

    def event(self, event: str, **more: Any) -> None:
        """Write down that something happened between rounds."""
        self._append({"event": event, "time": round(time.time(), 3), **more})

    def row(
        self,
        report: RoundReport,
        strategy: GossipingHubStrategy,
        grid: DeadlineGrid,
        learning_rate: float,
    ) -> dict[str, Any]:
        """Put what a round brought into a row."""
        hub = strategy.hubs[0]
        result = report.hubs[0]
        arrived = [self._arrival(a, hub.weight_of(a.node)) for a in result.arrived]
        absent = [
            {
                "node": str(a.node),
                "worker": self._workers.get(a.node),
                "weight": hub.weight_of(a.node),
                "cause": str(a.cause),
                "why": a.why[-300:],
            }
            for a in result.absent
        ]
        size = sum(vector.nbytes for vector in hub.model.values())
        self._models += size * (2 * len(arrived) + len(absent))
        steps = sum(a["steps"] for a in arrived)
        loss = sum(a["steps"] * a["loss"] for a in arrived) / steps if steps else None
        counters = asdict(self.gossip.counters)
        return {
            "round": report.number,
            "mixing": report.number // strategy.q if report.mixed else None,
            "time": round(time.time(), 3),
            "learning_rate": learning_rate,
            "arrived": arrived,
            "absent": absent,
            "weight": hub.weight,
            "loss": loss,
            "silent": report.silent,
            "column": report.column,
            "seconds": round(grid.lasted, 3),
            "late": round(grid.late, 3),
            "gossip_seconds": round(counters["seconds"], 3),
            "gossip_sent": counters["bytes_sent"],
            "gossip_received": counters["bytes_received"],
            "gossip_rejected": {str(k): n for k, n in counters["rejected"].items()},
            "model_bytes": self._models,
        }

    def write(self, row: dict[str, Any]) -> None:
        """Append a row, and tell of it."""
        self._append(row)
        if row["mixing"] is not None:
            self.silent = row["silent"]
        told = {key: row[key] for key in ("round", "loss", "late")}
        if "accuracy" in row:
            told["accuracy"] = row["accuracy"]
        arrived, absent = len(row["arrived"]), len(row["absent"])
        self._tell(**told, workers=arrived, workers_absent=absent)

    def complete(self, row: dict[str, Any]) -> None:
        """Append the row of a checkpoint if the hub was stopped before it could."""
        path = self.folder / ROWS
        rows = path.read_text().splitlines() if path.is_file() else []
        if not any(_round(line) == row["round"] for line in rows[-5:]):
            self._append(row)
        self._models = row["model_bytes"]
        self._workers = {
            int(a["node"]): a["worker"]
            for a in (*row["arrived"], *row["absent"])
            if a["worker"] is not None
        }
        self._now["round"] = row["round"]

    def _arrival(self, arrival: Arrival, weight: float) -> dict[str, Any]:
        told = arrival.metrics
        worker = int(told["worker"])  # type: ignore[arg-type]
        self._workers[arrival.node] = worker
        return {
            "node": str(arrival.node),
            "worker": worker,
            "steps": int(told["steps"]),  # type: ignore[arg-type]
            "rate": told["rate"],
            "loss": told["loss"],
            "weight": weight,
        }

    def _append(self, row: dict[str, Any]) -> None:
        with (self.folder / ROWS).open("a") as file:
            file.write(json.dumps(row) + "\n")

    def _tell(self, **more: Any) -> None:
        self._now.update(more, time=round(time.time(), 3))
        self.gossip.set_status(self._now)
        part = self.folder / f"{NOW}.part"
        part.write_text(json.dumps(self._now))
        part.replace(self.folder / NOW)


def _round(line: str) -> int | None:
    """Return the round of a row; None for an event, or a line that was cut off."""
    try:
        number = json.loads(line).get("round")
        return number if "arrived" in line and isinstance(number, int) else None
    except ValueError:
        return None
