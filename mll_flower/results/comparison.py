"""Which runs have the same setting, in what settings runs differ, and means over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from mll_flower.results.runs import Run

NO_SETTINGS = {
    "output",
    "resume",
    "code-dir",
    "data-dir",
    "checkpoint-every",
    "pool",
    "reply-timeout",
    "node-timeout",
    "tensorboard",
}
"""Keys of the run config that change no number of a run."""

# Columns of the comparison that are no measured values: equal for all seeds, or added up nowhere.
_SAME = ("preset", "tau", "q", "graph", "slot")


def group_by_setting(runs: Sequence[Run]) -> list[list[int]]:
    """Return the places of runs that differ only in their seed, group by group, in their order.

    A run that has not finished is alone, and so is a second run with the same seed.
    """
    groups: dict[Any, list[int]] = {}
    seeds: dict[Any, set[Any]] = {}
    for place, run in enumerate(runs):
        key: Any = tuple(
            (name, str(value))
            for name, value in sorted(run.config.items())
            if name not in NO_SETTINGS and name != "seed"
        )
        seed = run.config.get("seed")
        if not run.finished or seed is None or seed in seeds.setdefault(key, set()):
            key = place
        else:
            seeds[key].add(seed)
        groups.setdefault(key, []).append(place)
    return list(groups.values())


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Return the keys of the run config in which these runs differ, seeds included.

    Without those that the table of `mll-flower compare` shows anyway.
    """
    keys = dict.fromkeys(key for run in runs for key in run.config)
    left_out = NO_SETTINGS | set(_SAME)
    return [
        key
        for key in keys
        if key not in left_out and len({str(run.config.get(key)) for run in runs}) > 1
    ]


def merge_rows(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one row for runs that differ in their seed: (mean, half-width of its interval).

    The interval is the 95 % confidence interval of the mean by Student's t.
    """
    if len(rows) == 1:
        return dict(rows[0])
    merged = {key: rows[0][key] for key in _SAME}
    merged["run"] = f"{rows[0]['run']} and others: {len(rows)} seeds"
    measured = [key for key in rows[0] if key.startswith(("final_", "best_"))]
    for key in ("zeta", *measured):
        values = np.array([row[key] for row in rows], dtype=np.float64)
        mean, spread = float(values.mean()), float(np.ptp(values))
        if key == "zeta" and (spread < 1e-9 or math.isnan(mean)):
            merged[key] = rows[0][key]
        else:
            error = float(values.std(ddof=1)) / math.sqrt(len(values))
            half = float(stdtrit(len(values) - 1, 0.975)) * error
            merged[key] = (mean, half)
    return merged
