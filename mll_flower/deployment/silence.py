"""How long a hub's run has written nothing about itself, and how long it may.

A hub's app replaces its file `NOW_FILE` at every round and at every change of phase. A run that is
stuck keeps its process and its last words, and only their age tells.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from mll_flower.deployment.hub_state import Phase
from mll_flower.deployment.network_entries import NetworkFile

MARGIN = 60.0
"""Seconds that a phase may last beyond its deadlines: for loading, evaluation, slow disks."""

_LONGEST_STEP = 5.0  # seconds between two looks, at most; more means that we were frozen, too


class Silence:
    """Measures how long a hub has written nothing new, however the machine's clock is set."""

    def __init__(self) -> None:
        self._words: Mapping[str, Any] = {}
        self._seconds = 0.0
        self._looked_at = time.monotonic()

    def after(self, words: Mapping[str, Any]) -> float:
        """Return for how many seconds the hub has said nothing but these words; look often."""
        now = time.monotonic()
        # A hub that was frozen as a whole gets its time to go on, as we do.
        self._seconds += min(now - self._looked_at, _LONGEST_STEP)
        self._looked_at = now
        if words != self._words:
            self._words, self._seconds = dict(words), 0.0
        return self._seconds


def longest_silence(network: NetworkFile, phase: Phase, node_timeout: float) -> float:
    """Return the seconds that a hub in this phase may be silent, if nothing is wrong.

    Parameters
    ----------
    network : NetworkFile
        The deployment.
    phase : Phase
        What the hub is doing.
    node_timeout : float
        Seconds for which it waits for its workers, and then for its neighbours.
    """
    if phase is Phase.TRAINING:
        # A hub without workers waits for one as long as a round, before the round.
        return 2 * network.round_deadline + network.gossip_deadline + MARGIN
    if phase is Phase.FINISHING:
        return network.gossip_deadline + MARGIN
    catching_up = network.q * network.round_deadline + network.gossip_deadline
    return node_timeout + catching_up + MARGIN
