"""A deployment as a source of the live page: its hubs are asked for their status, again and again.

What a hub answers was written elsewhere: every value is checked before it is shown.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping
from html import escape
from typing import Any

import networkx as nx

from mll_flower.deployment.network_entries import NetworkFile
from mll_flower.deployment.status import ask_hubs, status_warnings
from mll_flower.results.figure_style import colours
from mll_flower.results.formatting import format_number
from mll_flower.results.html_report import sections
from mll_flower.results.html_report.data import positions
from mll_flower.watching.hub_history import HubHistory
from mll_flower.watching.network_frames import network_curves
from mll_flower.watching.source import Phase, Source, View


class DeploymentSource(Source):
    """Asks the hubs of a deployment.

    Parameters
    ----------
    network : NetworkFile
        The deployment.
    insecure : bool
        Without TLS.
    """

    kind = "deployment"
    pause = 1.0

    def __init__(self, network: NetworkFile, insecure: bool = False) -> None:
        self.network, self.insecure = network, insecure
        self.hubs: dict[str, HubHistory] = {}
        first = 0
        for entry in network.hubs:
            self.hubs[entry.id] = HubHistory(network.rounds, entry.workers, first)
            first += entry.workers
        self._index = {entry.id: d for d, entry in enumerate(network.hubs)}
        self._still = self._network_data()

    def look(self) -> View:
        """Ask all hubs, and return what is known of them."""
        after = {id: hub.asked_after for id, hub in self.hubs.items()}
        answers = ask_hubs(self.network, self.insecure, after=after)
        for id, answer in answers.items():
            self.hubs[id].take(answer, time.time())
        everyone = list(self.hubs.values())
        phase = self._phase()
        rounds = [hub.newest for hub in everyone]
        down, silent = self._down(), self._silent()
        now = {"down": down, "silent": silent}
        return View(
            title=self.network.name,
            subtitle=(
                f"{len(everyone)} hubs, {sum(e.workers for e in self.network.hubs)} workers, "
                f"{self.network.rounds} rounds, tau = {self.network.tau}, q = {self.network.q}, "
                f"slots of {self.network.slot:g} s"
            ),
            phase=phase,
            status=self._status(phase),
            done=min(rounds),
            total=self.network.rounds,
            parts={
                "notice": self._notices(answers),
                "tiles": self._tiles(),
                "hubs": self._table(),
                "absences": self._absences(),
            },
            still=self._still,
            moving={**network_curves(everyone), "now": now, "live": True},
            age=max(0.0, time.time() - max(hub.last_news for hub in everyone)),
        )

    def _network_data(self) -> dict[str, Any]:
        entries, index = self.network.hubs, self._index
        graph: nx.Graph[int] = nx.Graph()
        graph.add_nodes_from(range(len(entries)))
        graph.add_edges_from((index[a], index[b]) for a, b in self.network.edges)
        workers = [(d, number) for d, e in enumerate(entries) for number in range(e.workers)]
        total = sum(entry.workers for entry in entries)
        return {
            "names": [f"hub {entry.id}" for entry in entries],
            "short": [entry.id for entry in entries],
            "colours": {"hubs": colours(len(entries))},
            "positions": positions(graph),
            "edges": [[index[a], index[b], None, None] for a, b in self.network.edges],
            "shares": [entry.workers / total for entry in entries],
            "workers": [
                {
                    "worker": i,
                    "name": f"{number} of {entries[d].id}",
                    "hub": d,
                    "rate": 1.0,
                    "steps": None,
                }
                for i, (d, number) in enumerate(workers)
            ],
            "labels": None,
        }

    def _down(self) -> list[int]:
        return [
            self._index[id] for id, hub in self.hubs.items() if not hub.answers and not hub.over
        ]

    def _silent(self) -> list[list[int]]:
        """Return the edges that one of their ends did not use at its last mixing."""
        quiet = []
        for a, b in self.network.edges:
            outcomes = (self.hubs[a].neighbours.get(b), self.hubs[b].neighbours.get(a))
            if any(o not in (None, "mixed", "not met yet") for o in outcomes):
                quiet.append([self._index[a], self._index[b]])
        return quiet

    def _phase(self) -> Phase:
        hubs = self.hubs.values()
        if all(hub.over for hub in hubs):
            return "finished"
        if any(hub.phase == "failed" for hub in hubs):
            return "trouble"
        if not any(hub.answers or hub.newest for hub in hubs):
            return "waiting"
        return "trouble" if self._down() else "running"

    def _status(self, phase: Phase) -> str:
        rounds = [hub.newest for hub in self.hubs.values()]
        low, high = min(rounds), max(rounds)
        text = f"round {low}" if low == high else f"rounds {low} to {high}"
        text += f" of {self.network.rounds}"
        if phase == "finished":
            return f"Finished: {text}"
        if phase == "waiting":
            return "No hub answers yet: the deployment has not begun, or cannot be reached."
        down = [self.network.hubs[d].id for d in self._down()]
        if down:
            return f"{text}; no answer from {', '.join(down)}".capitalize()
        return f"Running: {text}"

    def _notices(self, answers: Mapping[str, Mapping[str, Any]]) -> str:
        texts = list(status_warnings(self.network, answers, self.insecure))
        for id, hub in self.hubs.items():
            if hub.phase == "failed":
                texts.append(f"Hub {id} has failed: {hub.reason or 'its log says why'}")
        return "".join(f'<p class="notice">{escape(text)}</p>' for text in texts)

    def _tiles(self) -> str:
        hubs = list(self.hubs.values())
        rates = [rate for hub in hubs if (rate := hub.rounds_per_minute()) is not None]
        losses = [hub.loss for hub in hubs if hub.loss is not None]
        arrived = sum(hub.arrived for hub in hubs)
        silent, over = len(self._silent()), sum(hub.over for hub in hubs)
        answering = f"{sum(hub.answers for hub in hubs)} of {len(hubs)} answer"
        metrics = [hub.metric for hub in hubs if hub.metric is not None]
        distances = [d for hub in hubs if (d := hub.last_distance) is not None]
        pairs = [
            ("hubs", f"{over} of {len(hubs)} finished" if over else answering),
            ("workers in the last round", f"{arrived} of {sum(hub.workers for hub in hubs)}"),
            ("links not used", f"{silent} of {len(self.network.edges)}"),
            ("rounds per minute", _mean(rates)),
            ("mean training loss", _mean(losses)),
            (f"mean {metrics[0][0] if metrics else 'metric'}", _mean([v for _, v in metrics])),
            ("largest disagreement", format_number(max(distances, default=None), 3)),
            ("absences", format_number(sum(len(r.absent) for h in hubs for r in h.rows.values()))),
        ]
        return sections.facts(pairs, "tiles")

    def _table(self) -> str:
        head = ("hub", "phase", "round", "mixing", "workers", "rounds per minute", "loss",
                "metric", "neighbours")  # fmt: skip
        rows = []
        for id, hub in self.hubs.items():
            phase = hub.phase if hub.answers else ("finished" if hub.over else "no answer")
            neighbours = ", ".join(
                peer if outcome == "mixed" else f"{peer}: {outcome}"
                for peer, outcome in hub.neighbours.items()
            )
            metric = "–" if hub.metric is None else f"{hub.metric[0]} {hub.metric[1]:.4g}"
            rows.append(
                (
                    id,
                    phase,
                    f"{hub.newest} of {self.network.rounds}",
                    format_number(hub.mixing),
                    f"{hub.arrived} of {hub.workers}",
                    format_number(hub.rounds_per_minute(), 3),
                    format_number(hub.loss),
                    metric,
                    neighbours if hub.answers or hub.over else hub.reason,
                )
            )
        return sections.table(head, rows, "The hubs, as they answered last")

    def _absences(self) -> str:
        counts: Counter[tuple[str, str, str]] = Counter()
        last: dict[tuple[str, str, str], tuple[int, str]] = {}
        for id, hub in self.hubs.items():
            for row in hub.rows.values():
                for absence in row.absent:
                    key = (id, hub.name_of(absence), absence.cause)
                    counts[key] += 1
                    last[key] = (row.round, absence.why)
        if not counts:
            return "<p>No worker was absent in any round that is known here.</p>"
        rows = [(*key, n, *last[key]) for key, n in counts.most_common(sections.ROWS)]
        head = ("hub", "worker", "cause", "times", "last round", "last reason")
        note = (
            f" (the {len(rows)} most frequent of {len(counts)})" if len(rows) < len(counts) else ""
        )
        return sections.table(head, rows, f"Absences by worker and cause{note}")


def _mean(values: list[float]) -> str:
    return format_number(math.fsum(values) / len(values), 3) if values else "–"
