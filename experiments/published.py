"""The numbers that the paper's authors published with their code, and how far ours are from them.

Their code evaluates after the first averaging of a run and then every 32 iterations, so that
evaluation k of a run with period tau follows tau + 32 (k - 1) iterations. An iteration is one
local epoch in batches of 300, which is two gradient steps when MNIST is split equally.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.figures import Figure
from mll_flower.sweeps.curves import Curves

FloatArray = NDArray[np.float64]

# Their first evaluation lies in the steepest part of the curve, before our first one.
_FIRST = 2


@cache
def reference() -> dict[str, Any]:
    """Return the published numbers, with their source and notes."""
    path = Path(__file__).with_name("published.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def find(model: str, names: Sequence[str]) -> tuple[str, dict[str, list[float]]] | None:
    """Return the first of these results that was published for a model, with its name."""
    results = reference()["results"].get(model, {})
    return next(((name, results[name]) for name in names if name in results), None)


def iteration(name: str, evaluation: int) -> int:
    """Return the number of iterations before an evaluation of the authors' code."""
    tau = re.search(r"tau=(\d+)", name)
    assert tau is not None, f"the published result {name!r} does not state its tau"
    return int(tau[1]) + 32 * (evaluation - 1)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Our training loss beside a published one, after the same number of steps per worker.

    Parameters
    ----------
    label, name : str
        Our set-up and the published result.
    evaluations : list of int
        The authors' evaluations that are compared.
    slots, published, ours : ndarray
        Steps per worker, the published loss and our loss there.
    curve_slots, curve_loss : ndarray
        Our whole curve.
    """

    label: str
    name: str
    evaluations: list[int]
    slots: FloatArray
    published: FloatArray
    ours: FloatArray
    curve_slots: FloatArray
    curve_loss: FloatArray

    @property
    def relative(self) -> FloatArray:
        """Our loss divided by the published one, minus one."""
        return np.asarray(self.ours / self.published - 1)


def compare(figure: Figure, found: Curves) -> list[Comparison]:
    """Compare every set-up whose steps can be matched with those of a published result."""
    comparisons = []
    for setup in figure.setups:
        match = find(figure.model, setup.published) if setup.steps_per_iteration else None
        if match is None or not found[setup.name]:
            continue
        name, theirs = match
        slots, loss = found[setup.name][0].series("loss")
        at = [setup.steps_per_iteration * iteration(name, int(k)) for k in theirs["evaluations"]]
        kept = [
            i
            for i, (k, slot) in enumerate(zip(theirs["evaluations"], at, strict=True))
            if k >= _FIRST and slot <= slots[-1]
        ]
        where = np.array([at[i] for i in kept], dtype=np.float64)
        # Between evaluations, losses fall about linearly in the logarithm of the steps.
        ours = np.interp(np.log(where), np.log(slots[1:]), loss[1:])
        comparisons.append(
            Comparison(
                setup.label,
                name,
                [int(theirs["evaluations"][i]) for i in kept],
                where,
                np.array([theirs["loss"][i] for i in kept]),
                ours,
                slots[1:],
                loss[1:],
            )
        )
    return comparisons
