"""What a hub records of its run: a row per round, events, and what it is doing now.

The file of rounds (`ROUNDS_FILE`) has one JSON object per line: events (``event``), and a row for
each round, from which the run can be replayed:

- ``round``, ``mixing`` (the number of the mixing at its end, or null if there was none);
- ``arrived``: node, worker, steps, rate (steps per slot), loss and weight of each reply, in the
  order in which the models were summed; null for what a worker's metrics do not tell;
- ``absent``: node, worker (where known), weight, cause (one of
  `mll_flower.grids.absences.Absence`) and its explanation (``why``) of each absence;
- ``disagreement``: how far the mixing moved the hub's model (Euclidean), if there was one;
- ``weight`` of the hub, ``column`` (the H[j, d] that were used), ``silent`` (the neighbours that
  took no part in the mixing, and why);
- ``loss``: mean training loss of the workers' steps (by weight if they report no steps);
- ``seconds`` that the round lasted, and by how many it ended ``late``, after its ``deadline``;
- ``gossip_seconds``, ``gossip_sent``, ``gossip_received`` and ``model_bytes`` (models
  sent to and received from workers), all since the start;
- ``test_loss`` and ``accuracy`` of the hub's own model, where it was evaluated (with another
  metric, that one under its own name, which is also the value of ``metric``), and further metrics
  of its evaluation under ``evaluation``;
- what the app's ``on_round`` returns (that of this project: the ``learning_rate``).
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from mll_flower.deployment.hub_state import ROUNDS_FILE, Phase, write_now
from mll_flower.gossip import Gossip
from mll_flower.gossip.recent_rounds import KEPT
from mll_flower.grids.deadline import DeadlineGrid
from mll_flower.processes.log_rotation import rotate_by_name
from mll_flower.results.files import TENSORBOARD
from mll_flower.results.tensorboard import TensorBoardWriter
from mll_flower.strategies.gossiping import GossipingHubStrategy
from mll_flower.strategies.reports import Arrival, RoundReport

ROUNDS_BYTES, ROUNDS_KEPT = 32 << 20, 7
"""Bytes of a file of rounds, which then begins anew, and how many older parts are kept."""

# Names under which Flower projects report their training loss.
_LOSSES = ("loss", "train_loss", "train-loss")
# No number of a worker is as large as this: sums and products of two stay finite.
_BEYOND = 1e150


class HubRecord:
    """Writes a hub's rows, and publishes what the hub is doing.

    Parameters
    ----------
    folder : Path
        Where the files go.
    run, hub : str
        The run and the hub.
    gossip : Gossip
        Through which neighbours and the operator ask for the hub's status.
    tensorboard : bool
        Whether rows are also written for TensorBoard.
    """

    def __init__(
        self, folder: Path, run: str, hub: str, gossip: Gossip, tensorboard: bool = False
    ) -> None:
        self.folder, self.gossip = folder, gossip
        self.silent: dict[str, str] = {}
        self._now: dict[str, Any] = {"run": run, "hub": hub, "pid": os.getpid(), "round": 0}
        self._worker_of: dict[int, int] = {}
        self._model_bytes = 0
        self._tensorboard = TensorBoardWriter(folder / TENSORBOARD) if tensorboard else None

    def phase(self, phase: Phase, **more: Any) -> None:
        """Publish what the hub is doing."""
        self.publish(phase=phase, **more)

    def event(self, event: str, **more: Any) -> None:
        """Record that something happened between rounds."""
        self._append({"event": event, "time": round(time.time(), 3), **more})

    def row(
        self,
        report: RoundReport,
        strategy: GossipingHubStrategy,
        grid: DeadlineGrid,
    ) -> dict[str, Any]:
        """Return the row of a round.

        Parameters
        ----------
        report : RoundReport
            What happened in the round.
        strategy : GossipingHubStrategy
            Whose hub has the weights.
        grid : DeadlineGrid
            Knows how long the round lasted.
        """
        hub = strategy.hubs[0]
        result = report.hubs[0]
        arrived = [self._arrival(a, hub.weight_of(a.node)) for a in result.arrived]
        absent = [
            {
                "node": str(a.node),
                "worker": self._worker_of.get(a.node),
                "weight": hub.weight_of(a.node),
                "cause": str(a.cause),
                "why": a.why[-300:],
            }
            for a in result.absent
        ]
        size = sum(vector.nbytes for vector in hub.model.values())
        self._model_bytes += size * (2 * len(arrived) + len(absent))
        counters = asdict(self.gossip.counters)
        return {
            "round": report.number,
            "mixing": report.number // strategy.q if report.mixed else None,
            "time": round(time.time(), 3),
            "arrived": arrived,
            "absent": absent,
            "weight": hub.reported_weight,
            "loss": _mean_loss(arrived),
            "silent": report.silent,
            "column": report.column,
            "seconds": round(grid.lasted, 3),
            "late": round(grid.late, 3),
            "deadline": round(grid.seconds, 3),
            "gossip_seconds": round(counters["seconds"], 3),
            "gossip_sent": counters["bytes_sent"],
            "gossip_received": counters["bytes_received"],
            "gossip_rejected": {str(k): n for k, n in counters["rejected"].items()},
            "model_bytes": self._model_bytes,
        }

    def write(self, row: dict[str, Any]) -> None:
        """Append a row, and publish what it says about the hub."""
        # Only before a row, so that the newest part always holds the last one.
        rotate_by_name(self.folder / ROUNDS_FILE, ROUNDS_BYTES, ROUNDS_KEPT)
        self._append(row)
        self.gossip.remember_round(told_of(row))
        if self._tensorboard is not None:
            self._tensorboard.hub_row(row)
        if row["mixing"] is not None:
            self.silent = row["silent"]
        published = {key: row[key] for key in ("round", "loss", "late", "deadline")}
        if row.get("disagreement") is not None:
            published["disagreement"] = row["disagreement"]
        metric = row.get("metric", "accuracy")
        if metric in row:
            published |= {key: row[key] for key in ("metric", metric) if key in row}
        arrived, absent = len(row["arrived"]), len(row["absent"])
        causes = Counter(reply["cause"] for reply in row["absent"])
        self.publish(**published, workers=arrived, workers_absent=absent, causes=dict(causes))

    def mend(self) -> bytes:
        """Cut off a last line that the hub was stopped in; return what the file then holds."""
        path = self.folder / ROUNDS_FILE
        text = path.read_bytes() if path.is_file() else b""
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:
            os.truncate(path, len(whole))
        return whole

    def complete(self, row: dict[str, Any]) -> None:
        """Go on after the row of a checkpoint; append it if the hub was stopped before it could."""
        lines = self.mend().splitlines()
        if not any(_round_of(line) == row["round"] for line in lines[-5:]):
            self._append(row)
        for line in lines[-KEPT:]:
            if (_round_of(line) or row["round"]) < row["round"]:
                self.gossip.remember_round(told_of(json.loads(line)))
        self.gossip.remember_round(told_of(row))
        self._model_bytes = row["model_bytes"]
        self._worker_of = {
            int(a["node"]): a["worker"]
            for a in (*row["arrived"], *row["absent"])
            if a["worker"] is not None
        }
        self._now["round"] = row["round"]

    def _arrival(self, arrival: Arrival, weight: float) -> dict[str, Any]:
        metrics = arrival.metrics
        worker, steps = _whole(metrics.get("worker")), _whole(metrics.get("steps"))
        if worker is not None:
            self._worker_of[arrival.node] = worker
        losses = (_number(metrics.get(name)) for name in _LOSSES)
        return {
            "node": str(arrival.node),
            "worker": worker,
            "steps": steps,
            "rate": _number(metrics.get("rate")),
            "loss": next((loss for loss in losses if loss is not None), None),
            "weight": weight,
        }

    def _append(self, row: dict[str, Any]) -> None:
        with (self.folder / ROUNDS_FILE).open("a") as file:
            file.write(json.dumps(row) + "\n")

    def publish(self, **more: Any) -> None:
        """Add to what neighbours, the operator and the commands on this machine see of the hub."""
        self._now.update(more, time=round(time.time(), 3))
        self.gossip.set_status(self._now)
        write_now(self.folder, self._now)


def told_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an operator is told of a round, from its row."""
    metric = row.get("metric", "accuracy")
    keys = ("round", "time", "mixing", "loss", "metric", metric, "test_loss", "disagreement")
    absent = [
        {"node": a["node"], "worker": a.get("worker"), "cause": a.get("cause"), "why": why[-160:]}
        for a in row.get("absent", [])[:20]
        for why in [str(a.get("why", ""))]
    ]
    return {**{key: row[key] for key in keys if key in row}, "absent": absent}


def _round_of(line: bytes) -> int | None:
    """Return the round of a row; None for an event, or for a line that cannot be read."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    is_row = isinstance(entry, dict) and "arrived" in entry
    return _whole(entry.get("round")) if is_row else None


def add_evaluation(row: dict[str, Any], metrics: Mapping[str, Any], seconds: float) -> None:
    """Add to a row what an evaluation of the hub's model gave, and how long it took."""
    others = plain(metrics)
    metric = row.get("metric", "accuracy")
    for key, name in (("loss", "test_loss"), (metric, metric)):
        if isinstance(others.get(key), int | float):
            row[name] = others.pop(key)
    if others:
        row["evaluation"] = others
    row["evaluation_seconds"] = seconds


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON can hold them: a number that is not finite becomes null."""
    return {str(key): _plain(value) for key, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return plain(value)
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):  # also NumPy's
        return float(value) if math.isfinite(value) else None
    return str(value)


def _number(value: object) -> float | None:
    """Return a worker's metric if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < _BEYOND else None  # also if it is a NaN


def _whole(value: object) -> int | None:
    """Return a worker's metric as a whole number, else None; no count is beyond 2^53."""
    number = _number(value)
    return None if number is None or abs(number) > 2**53 else int(number)


def _mean_loss(arrived: list[dict[str, Any]]) -> float | None:
    """Return the mean loss of those workers that report one: by steps if all do, else by weight."""
    known = [reply for reply in arrived if reply["loss"] is not None]
    by = (
        "weight"
        if any(reply["steps"] is None or reply["steps"] < 0 for reply in known)
        else "steps"
    )
    total = sum(reply[by] for reply in known)
    mean = sum(reply[by] * reply["loss"] for reply in known) / total if total else None
    return _number(mean)
