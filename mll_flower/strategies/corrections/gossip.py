"""`GossipCorrector`: the corrections of one hub that gossips with its neighbours.

Y(d) must add up to zero over the network, weighted by the hubs' shares: otherwise all hubs together
would be pushed away from the optimum, for ever. No hub sees the network, so that this must hold
link by link. What a mixing adds to Y(d) because of neighbour j is H[j, d] (z(d) - z(j)), and times
the hub's weight W(d) it is what j subtracts, because W(d) H[j, d] = W(j) H[d, j]. The hub keeps
these *flows*, one per link, and Y(d) is their sum over W(d):

- A link is used at both ends or at neither, and so is its flow.
- A weight that changes changes no flow, so that the sum stays zero.
- A hub that comes back without what it knew, or with what it knew earlier, has used the link less
  often than its neighbour says. Snapshots bring these counts. If they differ, both ends forget.
- The flow of a link that has been silent for `PATIENCE` mixings is forgotten: its hub may never
  come back. If it does, the counts differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import INFO
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.supercore import log
from numpy.typing import NDArray

from mll_flower.gossip import Snapshot
from mll_flower.models.corrections import half, mixed_in_half, rounded
from mll_flower.models.layout import Flat, Layout, Vector
from mll_flower.models.sums import sum_models
from mll_flower.strategies.corrections.corrector import Corrector, State

if TYPE_CHECKING:
    from mll_flower.strategies.hub import Hub

PATIENCE = 20
"""Mixings in a row that a neighbour may miss before its link's flow is forgotten."""


@dataclass
class Link:
    """What flowed over the link to one neighbour.

    Parameters
    ----------
    flow : Flat
        W(d) times the link's part of Y(d).
    uses : int
        Mixings that it is the sum of.
    silent : int
        Mixings since the last of them.
    """

    flow: Flat
    uses: int = 0
    silent: int = 0


class GossipCorrector(Corrector):
    """The corrections of one hub that gossips. See `Corrector` for the parameters."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.links: dict[str, Link] = {}

    def prepare(self, round: int, hubs: Sequence[Hub]) -> None:
        """See `Corrector.prepare`."""
        super().prepare(round, hubs)
        self._add_up(hubs[0].reported_weight)

    def published(self, layout: Layout, model: Flat) -> dict[str, Vector]:
        """Return the arrays that the hub offers to its neighbours."""
        arrays = layout.arrays(model)
        if self.settings.precision == "full":
            return arrays
        return {
            name: half({"": array})[""] if array.dtype.kind == "f" else array
            for name, array in arrays.items()
        }

    @property
    def uses(self) -> dict[str, int]:
        """How often each link was used."""
        return {neighbour: link.uses for neighbour, link in self.links.items()}

    def mix_with(
        self,
        hub: Hub,
        own: str,
        arrived: Mapping[str, Snapshot],
        silent: Sequence[str],
        column: Mapping[str, float],
    ) -> Flat:
        """Return the hub's model after a mixing with the neighbours that arrived.

        Parameters
        ----------
        hub : Hub
            The hub, with its average z(d).
        own : str
            Its id.
        arrived, silent
            The neighbours whose links are used, and those whose links are not.
        column : Mapping[str, float]
            H[j, d] by hub id, for the hub itself and those that arrived.
        """
        z = hub.model
        sent = {other: hub.layout.flatten(snapshot.arrays) for other, snapshot in arrived.items()}
        sent[own] = rounded(z) if self.settings.precision == "half" else z
        # In the order of hub ids: the same snapshots then give the same bits.
        hubs = sorted(column)
        mixed = sum_models([sent[j] for j in hubs], [column[j] for j in hubs])
        if self.settings.precision == "half":
            mixed = mixed_in_half(z, sent[own], mixed)
        if self.settings.hub != "none":
            for neighbour in silent:
                self._miss(neighbour)
            for neighbour, snapshot in arrived.items():
                weight = hub.reported_weight * column[neighbour]
                self._flow(own, neighbour, snapshot, sent[own], sent[neighbour], weight)
            self._add_up(hub.reported_weight)
        return self.outer_step([mixed])[0]

    def _flow(
        self, own: str, neighbour: str, snapshot: Snapshot, z: Flat, other: Flat, weight: float
    ) -> None:
        """Add what a mixing moved over a link."""
        entries = self.states[0].entries
        link = self.links.setdefault(neighbour, Link(entries.zeros()))
        theirs = snapshot.links.get(own, 0)
        if theirs != link.uses:
            log(
                INFO,
                "hub-correction: hub %s has used the link %d times, this hub %d times: both "
                "begin anew",
                neighbour,
                theirs,
                link.uses,
            )
            self.links[neighbour] = link = Link(entries.zeros())
        factor = weight / (self.step_size(0) * self.tau * self.q)
        for dtype, vector in entries.difference(z, other).items():
            link.flow[dtype] += vector * factor
        link.uses += 1
        link.silent = 0

    def _miss(self, neighbour: str) -> None:
        """Note that a link was not used."""
        link = self.links.get(neighbour)
        if link is not None:
            link.silent += 1
            if link.silent >= PATIENCE:
                del self.links[neighbour]

    def _add_up(self, weight: float) -> None:
        """Compute Y(d) from the flows."""
        if self.settings.hub == "none":
            return
        for dtype, drift in self.states[0].drift.items():
            drift[...] = 0
            if not weight:  # nothing has flowed to a hub that weighs nothing
                continue
            for neighbour in sorted(self.links):
                drift += self.links[neighbour].flow[dtype] * (1 / weight)

    def reset(self) -> None:
        """See `Corrector.reset`."""
        super().reset()
        self.links = {}

    def state(self) -> State:
        """See `Corrector.state`."""
        saved = super().state()
        for neighbour, link in self.links.items():
            saved[f"uses/{neighbour}"] = np.array([link.uses, link.silent])
            for dtype, vector in link.flow.items():
                saved[f"flow/{neighbour}/{dtype}"] = vector
        return saved

    def _read(self, saved: Mapping[str, NDArray[np.generic]]) -> None:
        super()._read(saved)
        for name, counts in saved.items():
            kind, neighbour, *_ = [*name.split("/"), ""]
            if kind == "uses":
                flow = {
                    dtype: np.array(saved[f"flow/{neighbour}/{dtype}"])
                    for dtype in self.states[0].entries.sizes
                }
                uses, silent = counts.tolist()
                self.links[neighbour] = Link(flow, int(uses), int(silent))
