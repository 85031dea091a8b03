"""How far the hubs of a deployment believe workers and neighbours: keys of the network file.

Each hub follows its own copy of the file; nothing is limited unless a key says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mll_flower.models.norm_limit import check_norm_limit

TRUST_KEYS = {
    "max-examples", "max-update-norm", "max-metrics", "max-reply-bytes", "max-neighbour-norm",
    "inner-strategy",
}  # fmt: skip
"""Keys of the network file that this module reads."""

_OPTIONS: dict[str, tuple[str, ...]] = {
    "fedmedian": (),
    "fedtrimmedavg": ("beta",),
    "krum": ("num-malicious-nodes",),
    "multikrum": ("num-malicious-nodes", "num-nodes-to-select"),
    "bulyan": ("num-malicious-nodes",),
}
"""Strategies of ``flwr.serverapp.strategy`` by name, with their own options."""

# Replies that a strategy needs, given the number of malicious workers that it must bear.
_NEEDED: dict[str, Callable[[int], int]] = {
    "krum": lambda f: 2 * f + 3,
    "multikrum": lambda f: 2 * f + 3,
    "bulyan": lambda f: 4 * f + 3,
}

Options = dict[str, float]
Problem = Callable[[str, str, str], Exception]
"""Makes the error for a key, from what is wrong with it and the remedy."""


@dataclass(frozen=True)
class Trust:
    """The limits of a network file; None where it sets none.

    Parameters
    ----------
    max_examples, max_update_norm, max_metrics, max_reply_bytes
        As in `mll_flower.MultiLevelStrategy`.
    max_neighbour_norm
        As in `mll_flower.GossipingHubStrategy`.
    inner_strategy : str, optional
        Name of the strategy that aggregates inside a hub.
    inner_options : dict
        Its own options, by the names of its arguments.
    """

    max_examples: float | None = None
    max_update_norm: float | str | None = None
    max_metrics: int | None = None
    max_reply_bytes: int | None = None
    max_neighbour_norm: float | str | None = None
    inner_strategy: str | None = None
    inner_options: Options = field(default_factory=dict)

    @property
    def reply_limits(self) -> dict[str, Any]:
        """The limits for replies that are set, by the names of the strategies' arguments."""
        names = ("max_examples", "max_update_norm", "max_metrics", "max_reply_bytes")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def read_trust(top: Mapping[str, Any], workers: Mapping[str, int], problem: Problem) -> Trust:
    """Read and check the limits of a network file.

    Parameters
    ----------
    top : Mapping
        The file's keys.
    workers : Mapping[str, int]
        Number of workers of each hub.
    problem : callable
        Makes the error.
    """
    for key in ("max-update-norm", "max-neighbour-norm"):
        try:
            check_norm_limit(key, top.get(key))
        except ValueError as error:
            raise problem(key, f"{top[key]!r}", str(error).partition(": ")[2]) from None
    for key in ("max-metrics", "max-reply-bytes"):
        value = top.get(key)
        if value is not None and not _is_whole(value, 1):
            raise problem(key, f"{value!r}", "use a whole number of at least 1")
    examples = top.get("max-examples")
    if examples is not None and not (_is_number(examples) and 0 < examples < math.inf):
        raise problem("max-examples", f"{examples!r}", "use a positive number")
    name, options = _inner_strategy(top.get("inner-strategy"), workers, problem)
    return Trust(
        max_examples=examples,
        max_update_norm=top.get("max-update-norm"),
        max_metrics=top.get("max-metrics"),
        max_reply_bytes=top.get("max-reply-bytes"),
        max_neighbour_norm=top.get("max-neighbour-norm"),
        inner_strategy=name,
        inner_options=options,
    )


def _inner_strategy(
    value: Any, workers: Mapping[str, int], problem: Problem
) -> tuple[str | None, Options]:
    if value is None:
        return None, {}
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, dict) or "name" not in table:
        example = 'write "fedmedian", or { name = "krum", num-malicious-nodes = 1 }'
        raise problem("inner-strategy", f"{value!r}", example)
    given = {key.replace("_", "-"): entry for key, entry in table.items()}
    name = given.pop("name")
    if name not in list(_OPTIONS):
        raise problem("inner-strategy", f"{name!r}", f"use one of {', '.join(_OPTIONS)}")
    for key, entry in given.items():
        where = f"inner-strategy: {key}"
        if key not in _OPTIONS[name]:
            listed = ", ".join(_OPTIONS[name]) or "none"
            raise problem(where, "unknown option", f"those of {name} are: {listed}")
        if key == "beta" and not (_is_number(entry) and 0 <= entry < 0.5):
            raise problem(where, f"{entry!r}", "use a number from 0 to below 0.5")
        if key != "beta" and not _is_whole(entry, 0 if key == "num-malicious-nodes" else 1):
            raise problem(where, f"{entry!r}", "use a whole number")
    malicious = given.get("num-malicious-nodes", 0)
    needed = _NEEDED[name](malicious) if name in _NEEDED else 1
    for hub, count in workers.items():
        if count < needed:
            raise problem(
                "inner-strategy",
                f"{name} with {malicious} malicious workers needs {needed} workers, and hub {hub} "
                f"has {count}",
                "give the hub more workers, or use fedmedian",
            )
    return name, {key.replace("-", "_"): entry for key, entry in given.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
