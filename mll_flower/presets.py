"""Presets: known algorithms as choices of values for keys of the run config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    "mll-sgd": {},
    "distributed-sgd": {"hubs": 1, "tau": 1, "q": 1, "rates": "1", "wait_for_all": False},
    "local-sgd": {"graph": "complete", "mixing": "complete", "q": 1, "wait_for_all": True},
    "hl-sgd": {"wait_for_all": True},
    "cooperative-sgd": {"workers_per_hub": "1", "q": 1, "weights": "equal", "rates": "1"},
    "fedavg": {"hubs": 1, "q": 1, "weights": "examples", "wait_for_all": True},
    "fedavg-deadline": {"hubs": 1, "q": 1, "weights": "examples", "wait_for_all": False},
}
"""Known algorithms as special cases. Each is a choice of values, not code of its own.

FedAvg waits for all workers, as Flower's does: rounds end when each worker has taken tau steps, and
the run ends with the last round that fits into its slots. ``fedavg-deadline`` ends a round after
tau slots, whoever has taken how many steps.
"""

# What these presets do with a key cannot be said as one value.
_IN_WORDS = {
    "hubs": "one hub with all workers",
    "workers_per_hub": "one worker per hub",
}

# Not dropped by a preset of one hub or of one worker per hub: their product is the number of
# workers, which the preset arranges in its own way.
_COUNTS = {"hubs", "workers_per_hub"}


def preset_sets(name: str) -> str:
    """Say in words what a preset sets; '' for one that sets nothing."""
    return ", ".join(
        _IN_WORDS.get(key) or f"{key.replace('_', '-')}={_text(value)}"
        for key, value in PRESETS[name].items()
    )


def presets_help() -> str:
    """Return the help of the key ``preset``."""
    known = [f"{name} ({preset_sets(name) or 'all keys as given'})" for name in PRESETS]
    return f"Algorithm, and what it sets: {'; '.join(known)}."


def check_not_overridden(given: Mapping[str, Any], applied: Mapping[str, Any]) -> None:
    """Refuse values that a preset overrides: they would be dropped without a word.

    Parameters
    ----------
    given : Mapping
        The values that the user has given, under the names of the run config, without defaults.
    applied : Mapping
        All values of the run, with the preset applied.

    Raises
    ------
    ValueError
        If a given value is not the run's; the message names it and the preset.
    """
    kept = {key.replace("_", "-") for key in _COUNTS}
    for key in sorted(set(given) & set(applied) - kept):
        # A value may be given as text or as a number; the run has it in its own type.
        if given[key] == applied[key]:
            continue
        others = [n for n in PRESETS if PRESETS[n].get(key.replace("-", "_")) == given[key]]
        near = [n for n in others if n.startswith(str(applied["preset"]))]
        remedy = f", or use preset={near[0]!r}" if near else ""
        raise ValueError(
            f"{key}={_text(given[key])} and preset={applied['preset']!r}, which sets "
            f"{key}={_text(applied[key])}: leave one of them out{remedy}"
        )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
