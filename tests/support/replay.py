"""Compute a deployment's models again from its hubs' records, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mll_flower.algorithm.coins import batch_rng
from mll_flower.models.layout import Flat
from mll_flower.models.subnetwork_average import AbsentRule, absent_factors
from mll_flower.models.sums import sum_models
from mll_flower.tasks.models import binary_labels
from mll_flower.training.engine import Engine

Row = Mapping[str, Any]


def real_gradient(engine: Engine, tau: int, batch_size: int) -> Callable[..., np.ndarray]:
    """Return the gradients of a deployed logistic model in float64, as the algorithms take them.

    The steps of a round are its first slots: ``gradient(worker, slot, model)``.
    """
    data = engine.task.data
    x = data.x_train.reshape(len(data.x_train), -1).astype(np.float64)
    label = np.asarray(binary_labels(data.y_train, data.classes), dtype=np.float64)

    def gradient(i: int, k: int, model: np.ndarray) -> np.ndarray:
        round, slot = (k - 1) // tau + 1, (k - 1) % tau
        shard = engine._shards[i]
        drawn = batch_rng(engine.seed, i, round).integers(len(shard), size=(tau, batch_size))
        rows = shard[drawn[slot]]
        error = (1 / (1 + np.exp(-(x[rows] @ model[:-1] + model[-1]))) - label[rows]) / batch_size
        return np.append(x[rows].T @ error, error.sum())

    return gradient


class Replay:
    """The models that the hubs must have had: ``y`` at the end, ``z`` and ``mixed`` by mixing.

    ``after`` has those after each round, by hub and round.

    Parameters
    ----------
    engine : Engine
        Trains every worker of the network.
    rows : Mapping[str, Sequence[Row]]
        Rows of each hub's record, in order. Of the events, those that a hub has joined count: it
        has then begun anew, from its neighbours' models.
    unfinished : bool
        Whether hubs were stopped at different rounds, so that the last rows of some of them need
        models of others that nobody has recorded.
    absent : {"keep", "renormalise"}
        What happens to the shares of absent workers.
    """

    def __init__(
        self,
        engine: Engine,
        rows: Mapping[str, Sequence[Row]],
        absent: AbsentRule = "keep",
        unfinished: bool = False,
    ) -> None:
        self.engine, self.absent = engine, absent
        self.y: dict[str, Flat] = {hub: engine.initial() for hub in rows}
        self.z: dict[tuple[str, int], Flat] = {}  # by hub and mixing number
        self.mixed: dict[tuple[str, int], Flat] = {}
        self.after: dict[tuple[str, int], Flat] = {}
        self._neighbours = {
            hub: {
                peer for row in theirs for peer in (*row.get("column", ()), *row.get("silent", ()))
            }
            for hub, theirs in rows.items()
        }
        self._weight = {
            (hub, row["mixing"]): row["weight"]
            for hub, theirs in rows.items()
            for row in theirs
            if "arrived" in row
        }
        left = {hub: list(theirs) for hub, theirs in rows.items()}
        while any(left.values()):
            progress = False
            for hub, theirs in left.items():
                while theirs and self._compute(hub, theirs[0]):
                    theirs.pop(0)
                    progress = True
            if unfinished and all(len(theirs) <= 1 for theirs in left.values()):
                break
            assert progress, {hub: theirs[:1] for hub, theirs in left.items()}

    def _compute(self, hub: str, row: Row) -> bool:
        """Compute one round; return False if a neighbour's model of it is not known yet."""
        if "arrived" not in row:
            return row["event"] != "joined" or self._join(hub, row["mixing"])
        number = row["mixing"]
        if number is None:
            self.y[hub] = self.after[hub, row["round"]] = self._average(hub, row)
            return True
        if (hub, number) not in self.z:
            self.z[hub, number] = self._average(hub, row)
        peers = sorted(row["column"])
        if not all((peer, number) in self.z for peer in peers):
            return False
        models = [self.z[peer, number] for peer in peers]
        self.y[hub] = sum_models(models, [row["column"][peer] for peer in peers])
        self.mixed[hub, number] = self.after[hub, row["round"]] = self.y[hub]
        return True

    def _join(self, hub: str, number: int) -> bool:
        """Begin with the mean of the neighbours' models at a mixing, if these are known yet."""
        peers = sorted(self._neighbours[hub] - {hub})
        if not all((peer, number) in self.z for peer in peers):
            return False
        weights = [self._weight[peer, number] for peer in peers]
        models = [self.z[peer, number] for peer in peers]
        if not any(weights):
            weights = [1.0] * len(peers)
        self.y[hub] = sum_models(models, [weight / sum(weights) for weight in weights])
        return True

    def _average(self, hub: str, row: Row) -> Flat:
        """Return z(d), from the steps that the workers have reported."""
        models = []
        for reply in row["arrived"]:
            model = {dtype: vector.copy() for dtype, vector in self.y[hub].items()}
            rate = row["learning_rate"]
            self.engine.train(model, reply["worker"], row["round"], reply["steps"], rate)
            models.append(model)
        if not models:
            return self.y[hub]
        arrived = [reply["weight"] for reply in row["arrived"]]
        absent = [reply["weight"] for reply in row["absent"]]
        has_arrived = [True] * len(arrived) + [False] * len(absent)
        factors, own = absent_factors(arrived + absent, has_arrived, self.absent)
        if own:
            models, factors = [*models, self.y[hub]], [*factors, own]
        return sum_models(models, factors)
