"""Write config values as Flower's commands read them: ``key=value key=value``, values in TOML.

Flower cuts such a text with a regular expression before it reads the values as TOML: a string
ends at the next quote, escaped or not. So a double quote is written as the escape ``\\u0022``,
which TOML reads back as a quote and the regular expression does not see as one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tomli_w

_KEY = re.compile(r"[A-Za-z0-9_-]+")


def config_pairs(values: Mapping[str, Any]) -> str:
    """Return values as one argument for ``--run-config``, ``--node-config`` and the like.

    Parameters
    ----------
    values : Mapping
        Booleans, numbers and strings by name.

    Raises
    ------
    ValueError
        A name or a value that cannot be written so.
    """
    return " ".join(f"{_checked(key)}={_toml(key, value)}" for key, value in values.items())


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r}: use letters, digits, hyphens and underscores in config names")
    return key


def _toml(key: str, value: Any) -> str:
    if not isinstance(value, bool | int | float | str):
        raise ValueError(f"{key}={value!r}: use a number, a string, true or false")
    text = tomli_w.dumps({"value": value}).removeprefix("value = ").removesuffix("\n")
    return '"' + text[1:-1].replace(r"\"", r"\u0022") + '"' if isinstance(value, str) else text
