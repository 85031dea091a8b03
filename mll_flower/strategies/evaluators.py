"""Which nodes evaluate, without waiting for ever for nodes that have left."""

from __future__ import annotations

import time
from logging import INFO, WARNING
from typing import Literal

from flwr.serverapp import Grid
from flwr.supercore import log

EvaluatedModel = Literal["averaged", "hub"]
EVALUATED_MODELS: tuple[EvaluatedModel, ...] = ("averaged", "hub")
"""What nodes evaluate: the averaged model u, or each node the model of its own hub."""


class Evaluators:
    """The nodes that can be asked to evaluate.

    Flower's FedAvg waits for ever until a minimum of nodes is connected.

    Parameters
    ----------
    patience : float
        Seconds to wait for that minimum. If they pass in vain, later evaluations do not wait
        again until the minimum has been there.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._gave_up = False

    def connected(self, grid: Grid, minimum: int) -> list[int]:
        """Return the connected nodes: at least ``minimum``, or those that there are in time."""
        end = time.monotonic() + (0.0 if self._gave_up else self.patience)
        announced = False
        while True:
            nodes = list(grid.get_node_ids())
            if len(nodes) >= minimum:
                self._gave_up = False
                return nodes
            if time.monotonic() >= end:
                if not self._gave_up:
                    log(
                        WARNING,
                        "Evaluation goes on with %d nodes instead of %d: no more are connected",
                        len(nodes),
                        minimum,
                    )
                self._gave_up = True
                return nodes
            if not announced:
                log(INFO, "Evaluation waits for nodes: %d of %d", len(nodes), minimum)
                announced = True
            time.sleep(min(0.2, max(0.0, end - time.monotonic())))


def sample_size(nodes: int, fraction: float, minimum: int) -> int:
    """Return how many of a number of nodes to ask: a fraction, at least a minimum, at most all."""
    return min(nodes, max(int(nodes * fraction), minimum))
