"""A hub's metrics for Prometheus, read from the files that the hub writes.

``mll-flower hub --metrics-port PORT`` serves them on loopback. They are read from the hub's rows
(`ROUNDS_FILE`) and from what it says it is doing (`NOW_FILE`), at each request: the run itself
does nothing for them, and they outlive a run that is started again.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from mll_flower.deployment.hub_state import ROUNDS_FILE, Phase, read_now
from mll_flower.processes.log_rotation import parts

LOOPBACK = "127.0.0.1"


class RoundsReader:
    """Reads the rows and events of a hub that were written since the last time.

    A line that is not complete yet is left for the next time; one that cannot be read is
    skipped. A file that has become shorter was replaced, and is read from its beginning. Of a file
    that has begun anew, the older parts are read first.

    Parameters
    ----------
    path : Path
        The file of rounds; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._positions: dict[int, int] = {}  # by inode, which a part keeps

    def new_entries(self) -> list[dict[str, Any]]:
        """Return the entries that were added since the last call, in their order."""
        entries: list[dict[str, Any]] = []
        for part in parts(self.path):
            try:
                with part.open("rb") as file:
                    inode, size = (stat := os.fstat(file.fileno())).st_ino, stat.st_size
                    position = self._positions.get(inode, 0)
                    if size < position:
                        position = 0
                    file.seek(position)
                    text = file.read()
            except OSError:
                continue
            whole = text[: text.rfind(b"\n") + 1]
            self._positions[inode] = position + len(whole)
            entries += [e for line in whole.splitlines() if (e := _read_line(line)) is not None]
        return entries


def _read_line(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


class HubCollector(Collector):
    """What Prometheus asks for: the metrics of one hub.

    Parameters
    ----------
    folder : Path
        The hub's state folder.
    hub : str
        Id of the hub, a label of every metric.
    """

    def __init__(self, folder: Path, hub: str) -> None:
        self._folder, self._hub = folder, hub
        self._reader = RoundsReader(folder / ROUNDS_FILE)
        self._last: dict[str, Any] = {}
        self._rounds = self._mixings = self._arrivals = 0
        self._seconds = 0.0
        self._absences: Counter[str] = Counter()
        self._silent: Counter[str] = Counter()

    def collect(self) -> Iterator[Metric]:
        """Read what is new, and yield all metrics."""
        for entry in self._reader.new_entries():
            if "arrived" in entry:
                self._count(entry)
        yield from self._counters()
        yield from self._gauges(read_now(self._folder))

    def _count(self, row: dict[str, Any]) -> None:
        self._last = row
        self._rounds += 1
        self._mixings += row.get("mixing") is not None
        self._arrivals += len(row["arrived"])
        self._seconds += float(row.get("seconds", 0.0))
        self._absences.update(str(absent.get("cause")) for absent in row.get("absent", []))
        self._silent.update(list(row.get("silent", {})))

    def _counters(self) -> Iterator[Metric]:
        for name, help, count in (
            ("mll_mixings", "Mixings with the neighbours.", self._mixings),
            ("mll_worker_arrivals", "Replies of workers that were averaged.", self._arrivals),
        ):
            metric = CounterMetricFamily(name, help, labels=["hub"])
            metric.add_metric([self._hub], count)
            yield metric
        rounds = SummaryMetricFamily("mll_round_seconds", "Seconds per round.", labels=["hub"])
        rounds.add_metric([self._hub], count_value=self._rounds, sum_value=self._seconds)
        yield rounds
        for name, help, label, counted in (
            ("mll_worker_absences", "Workers absent from a round.", "cause", self._absences),
            ("mll_silent_neighbours", "Mixings without a neighbour.", "neighbour", self._silent),
            (
                "mll_gossip_rejected",
                "Models and calls of other hubs that were turned away, since the start.",
                "cause",
                self._last.get("gossip_rejected", {}),
            ),
            (
                "mll_gossip_bytes",
                "Bytes of gossip since the start.",
                "direction",
                {
                    "sent": self._last.get("gossip_sent", 0),
                    "received": self._last.get("gossip_received", 0),
                },
            ),
        ):
            family = CounterMetricFamily(name, help, labels=["hub", label])
            for value, count in counted.items():
                family.add_metric([self._hub, str(value)], count)
            yield family
        size = CounterMetricFamily(
            "mll_model_bytes", "Bytes of models sent to and received from workers.", labels=["hub"]
        )
        size.add_metric([self._hub], self._last.get("model_bytes", 0))
        yield size

    def _gauges(self, now: dict[str, Any]) -> Iterator[Metric]:
        for name, help, value in (
            ("mll_round", "Number of the last round.", now.get("round")),
            (
                "mll_round_late_seconds",
                "Seconds from the last round's deadline to its end; negative if it ended early.",
                self._last.get("late"),
            ),
            ("mll_training_loss", "Mean training loss of the last round.", self._last.get("loss")),
            ("mll_test_accuracy", "Accuracy when last evaluated.", now.get("accuracy")),
            ("mll_workers", "Workers that arrived in the last round.", now.get("workers")),
            ("mll_hub_weight", "Sum of the workers' weights.", self._last.get("weight")),
            ("mll_updated_seconds", "When the hub last wrote, in Unix time.", now.get("time")),
        ):
            if isinstance(value, (int, float)):
                gauge = GaugeMetricFamily(name, help, labels=["hub"])
                gauge.add_metric([self._hub], value)
                yield gauge
        phase = GaugeMetricFamily("mll_phase", "1 for what the hub does.", labels=["hub", "phase"])
        for name in Phase:
            phase.add_metric([self._hub, name], float(now.get("phase") == name))
        yield phase


@contextmanager
def serve_metrics(folder: Path, hub: str, port: int) -> Iterator[int]:
    """Serve a hub's metrics on loopback while the context lasts; yield the port.

    Parameters
    ----------
    folder : Path
        The hub's state folder.
    hub : str
        Id of the hub.
    port : int
        The port; 0 lets the system choose.
    """
    registry = CollectorRegistry()
    registry.register(HubCollector(folder, hub))
    try:
        server, thread = start_http_server(port, addr=LOOPBACK, registry=registry)
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"metrics-port={port} cannot be used ({error}): choose another port"
        ) from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
