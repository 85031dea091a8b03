"""What is compared: set-ups, which are run with several seeds, and claims about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mll_flower.config import RunConfig

KINDS = ("lower", "higher", "nearer", "similar", "within-noise", "above")
METRICS = ("loss", "accuracy", "distance")
VALUES = LAST, MEAN = ("last", "mean")


@dataclass(frozen=True)
class Setup:
    """Settings that are run with several seeds: one curve of a plot, one row of a table.

    Parameters
    ----------
    name, label : str
        Its name in files and claims, and its label in tables and plots.
    values : Mapping
        Values of the run config, without the seed.
    """

    name: str
    label: str
    values: Mapping[str, Any]

    def config(self, seed: int) -> RunConfig:
        """Return the run config for a seed, checked, with its preset applied."""
        return _checked(json.dumps({**self.values, "seed": seed}, sort_keys=True))


# A check may take a second, where H is the solution of an optimisation problem, and a set-up is
# asked for its runs several times.
@lru_cache(maxsize=10_000)
def _checked(values: str) -> RunConfig:
    return RunConfig.from_run_config(json.loads(values))


@dataclass(frozen=True)
class Claim:
    """A sentence that runs can support or contradict.

    Parameters
    ----------
    text : str
        The claim as a sentence.
    kind : str
        One of `KINDS`; `mll_flower.sweeps.verdicts` defines what each compares.
    left, right : tuple of str
        Names of set-ups.
    metric : str
        One of `METRICS`.
    target : str
        For ``nearer``: the set-up whose curve the others are compared with.
    threshold : float
        For ``above``: the number to exceed.
    value : str
        One of `VALUES`: whether the last values are compared, or the means over the whole run.
    """

    text: str
    kind: str
    left: tuple[str, ...]
    right: tuple[str, ...] = ()
    metric: str = "loss"
    target: str = ""
    threshold: float = 0.0
    value: str = LAST

    @property
    def names(self) -> tuple[str, ...]:
        """The set-ups that it is about."""
        return (*self.left, *self.right, *((self.target,) if self.target else ()))
