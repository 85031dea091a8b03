"""The simulated clock: when each hub ends each round, in seconds.

A run without a clock counts slots. With one, its curves are over seconds, which are counted from
figures that anyone can measure: how long each worker takes for a step, and how fast the links are.
With s the seconds of a slot, c(i) the seconds that worker i takes per step, and t(i) those that
its link needs for the model down and up again:

* A round that does not wait lasts tau s + max t(i) over the hub's workers: everyone trains for tau
  slots. Worker i's rate is p(i) = min(1, s / c(i)).
* A round that waits lasts max (t(i) + tau c(i)).
* At a mixing, two neighbours exchange their models as soon as both have ended the round, and a hub
  goes on when it has the models of all its neighbours.

docs/planning.md explains the model. A trace gives c(i) for every round.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import networkx as nx
import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Clock:
    """What takes how long in a network of hubs and workers.

    Parameters
    ----------
    names : tuple of str
        The hubs' regions.
    hub_of : ndarray of int
        The hub of each worker.
    slot : float
        Seconds of a slot.
    step_seconds : ndarray
        c(i), [rounds, workers]: seconds per step. One row serves all rounds; the rows of a trace
        are repeated when they end.
    latency, per_byte : ndarray
        Of each worker's way to its hub and back: seconds, and seconds per byte of the model.
    link_latency, link_per_byte : ndarray
        Of the link between two hubs, [hubs, hubs]; infinite where there is none.
    hub_per_byte : ndarray
        Seconds per byte of all that a hub sends at a mixing; 0 if nothing limits it.
    traced : bool
        Whether the seconds per step are those of a trace.
    model_bytes : int, optional
        Bytes of a model; those of the model that is trained if None.
    """

    names: tuple[str, ...]
    hub_of: NDArray[np.int64]
    slot: float
    step_seconds: FloatArray
    latency: FloatArray
    per_byte: FloatArray
    link_latency: FloatArray
    link_per_byte: FloatArray
    hub_per_byte: FloatArray
    traced: bool = False
    model_bytes: int | None = None

    @property
    def hubs(self) -> int:
        """The number of hubs."""
        return len(self.names)

    @property
    def worker_counts(self) -> list[int]:
        """The number of workers of each hub."""
        return [int(n) for n in np.bincount(self.hub_of, minlength=self.hubs)]

    def rates(self) -> FloatArray:
        """Return p(i) = min(1, s / c(i)), the mean over the rounds of a trace."""
        return np.asarray(np.minimum(1.0, self.slot / self.step_seconds).mean(axis=0))

    def steps(self, worker: int, number: int, tau: int) -> int:
        """Return the steps that a worker completes in the tau slots of a round."""
        # The small number makes up for rounding: ten slots of 0.1 s are enough for a step of 1 s.
        return min(tau, math.floor(tau * self.slot / self._seconds(worker, number) + 1e-9))

    def slots_until(self, worker: int, number: int, steps: int) -> int:
        """Return the slots that a worker needs for these steps of a round."""
        needed = math.ceil(steps * self._seconds(worker, number) / self.slot - 1e-9)
        return max(steps, needed)

    def transfer(self, model_bytes: int) -> FloatArray:
        """Return t(i), the seconds that a model needs to each worker and back."""
        return np.asarray(self.latency + self.per_byte * model_bytes)

    def exchange(self, model_bytes: int) -> FloatArray:
        """Return the seconds that two hubs need to exchange their models, [hubs, hubs]."""
        return np.asarray(self.link_latency + self.link_per_byte * model_bytes)

    def links(self) -> nx.Graph[int]:
        """Return the graph of all links that exist."""
        graph: nx.Graph[int] = nx.Graph()
        graph.add_nodes_from(range(self.hubs))
        exist = np.isfinite(self.link_latency)
        graph.add_edges_from((int(i), int(j)) for i, j in np.argwhere(exist) if i < j)
        return graph

    def ends(
        self, graph: nx.Graph[int], tau: int, q: int, waits: bool, model_bytes: int
    ) -> Iterator[FloatArray]:
        """Yield, round after round, the second at which each hub ends it, mixing included.

        Parameters
        ----------
        graph : networkx.Graph
            The hub graph.
        tau, q : int
            Slots of a round, or steps if it waits; rounds between two mixings.
        waits : bool
            Whether a round lasts until each worker has taken tau steps.
        model_bytes : int
            Bytes of a model.
        """
        transfer, exchange = self.transfer(model_bytes), self.exchange(model_bytes)
        pairs = np.array(list(graph.edges), dtype=np.int64).reshape(-1, 2)
        # Both directions of each edge: hub `to` waits for hub `by`.
        by, to = np.concatenate([pairs, pairs[:, ::-1]]).T
        busy = self.hub_per_byte * model_bytes * np.bincount(to, minlength=self.hubs)
        now, number = np.zeros(self.hubs), 0
        while True:
            number += 1
            row = self.step_seconds[(number - 1) % len(self.step_seconds)]
            each = transfer + (tau * row if waits else tau * self.slot)
            lasts = np.zeros(self.hubs)
            np.maximum.at(lasts, self.hub_of, each)
            now = now + lasts
            if number % q == 0 and to.size:
                both = np.maximum(now[by], now[to])
                ready, done = now.copy(), now.copy()
                np.maximum.at(ready, to, both)
                np.maximum.at(done, to, both + exchange[by, to])
                now = np.maximum(done, ready + busy)
            yield now

    def central(self, model_bytes: int) -> Clock:
        """Return the clock of one server for all workers, in the region where that is fastest.

        A worker of another region reaches it by way of its own link and the links between the
        regions; all workers of a region share these.
        """
        if self.hubs == 1:
            return self
        choices = [self._central_at(server, model_bytes) for server in range(self.hubs)]
        return min(choices, key=lambda clock: float(clock.transfer(model_bytes).max()))

    def _central_at(self, server: int, model_bytes: int) -> Clock:
        links, exchange = self.links(), self.exchange(model_bytes)
        for i, j in links.edges:
            links[i][j]["seconds"] = exchange[i, j]
        ways = nx.single_source_dijkstra_path(links, server, weight="seconds")
        latency, per_byte = self.latency.copy(), self.per_byte.copy()
        for region, way in ways.items():
            members = self.hub_of == region
            hops = list(itertools.pairwise(way))
            # Down and up again, for as many models as the region has workers.
            latency[members] += 2 * sum(self.link_latency[i, j] for i, j in hops)
            shared = sum(self.link_per_byte[i, j] for i, j in hops)
            per_byte[members] += 2 * members.sum() * shared
        # Its own workers are in its load already; the others' models come on top.
        here = self.hub_of == server
        load = np.where(here, np.count_nonzero(~here), self.hub_of.size)
        per_byte += 2 * load * self.hub_per_byte[server]
        none = np.full((1, 1), np.inf)
        return replace(
            self,
            names=(self.names[server],),
            hub_of=np.zeros_like(self.hub_of),
            latency=latency,
            per_byte=per_byte,
            link_latency=none,
            link_per_byte=none,
            hub_per_byte=self.hub_per_byte[[server]],
        )

    def _seconds(self, worker: int, number: int) -> float:
        return float(self.step_seconds[(number - 1) % len(self.step_seconds), worker])


def fits(clock: Clock, worker_counts: Sequence[int]) -> bool:
    """Return whether a run with these workers per hub can be timed by a clock.

    A run of one hub can, if it has all workers of the clock: see `Clock.central`.
    """
    return list(worker_counts) in (clock.worker_counts, [len(clock.hub_of)])
