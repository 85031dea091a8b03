"""Checks of the arguments of the strategies: an error names the value and what to give instead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def check_whole(name: str, value: Any, least: int) -> None:
    """Raise unless a value is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}={value!r}: give a whole number, not {_kind(value)}")
    if value < least:
        raise ValueError(f"{name}={value}: must be at least {least}")


def check_seconds(name: str, value: Any, zero: bool = False) -> None:
    """Raise unless a value is a positive number of seconds, or zero where that is possible."""
    _check_number(name, value, "a number of seconds")
    if not (value > 0 or (zero and value == 0)):
        raise ValueError(f"{name}={value}: must be a positive number of seconds")


def check_positive(name: str, value: Any) -> None:
    """Raise unless a value is a positive, finite number."""
    _check_number(name, value, "a positive number")
    if not 0 < value < math.inf:
        raise ValueError(f"{name}={value}: give a positive number")


def check_fraction(name: str, value: Any) -> None:
    """Raise unless a value is a number from 0 to 1."""
    _check_number(name, value, "a number from 0 to 1")
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value}: give a number from 0 to 1")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise unless a value is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name}={value!r}: choose one of {', '.join(choices)}")


def check_fedavg_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise unless arguments have values that Flower's ``FedAvg`` can use; it checks nothing."""
    for name, value in arguments.items():
        if name.startswith("fraction_"):
            check_fraction(name, value)
        elif name.startswith("min_"):
            check_whole(name, value, 0)
        elif name == "weighted_by_key":
            check_kind(name, value, (str, type(None)), "the name of a metric, or None")
        elif name.endswith("_key"):
            check_kind(name, value, str, "the name of a record")
        elif name.endswith("_aggr_fn"):
            check_function(name, value, "a function of a list of RecordDicts and a key")


def check_kind(name: str, value: Any, kinds: type | tuple[type, ...], wanted: str) -> None:
    """Raise unless a value is an instance of one of these classes."""
    if not isinstance(value, kinds):
        raise TypeError(f"{name}={_shown(value)}: give {wanted}, not {_kind(value)}")


def check_function(name: str, value: Any, wanted: str) -> None:
    """Raise unless a value is None or something that can be called, such as a function."""
    if value is not None and (not callable(value) or isinstance(value, type)):
        raise TypeError(f"{name}={_shown(value)}: give {wanted}, not {_kind(value)}")


def _check_number(name: str, value: Any, wanted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}={value!r}: give {wanted}, not {_kind(value)}")


def _kind(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__} itself"
    return {"str": "a text", "NoneType": "None"}.get(
        type(value).__name__, f"an object of type {type(value).__name__}"
    )


def _shown(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)
