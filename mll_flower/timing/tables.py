"""Read the tables of a TOML file; every mistake is an error with its key, value and remedy."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the content of a TOML file.

    Parameters
    ----------
    path : Path
        The file.
    what : str
        What the file is, for the error.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); give the path of {what}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not TOML: {error}; correct that line") from None


class Table:
    """One table of a file.

    Parameters
    ----------
    path : Path
        The file.
    where : str
        Name of the table, for errors; empty for the top of the file.
    values : Mapping
        Its content.
    known : sequence of str
        The keys that it may have; others are errors.
    """

    def __init__(self, path: Path, where: str, values: Any, known: Sequence[str]) -> None:
        self.path, self.where = path, where
        if not isinstance(values, Mapping):
            raise ValueError(f"{path}: {where}: {values!r} is no table; write [{where}]")
        self.values: dict[str, Any] = {}
        for key, value in values.items():
            name = key.replace("_", "-")
            if name not in known:
                listed = ", ".join(sorted(known))
                raise self.error(key, "unknown key", f"the known ones are {listed}")
            if name in self.values:
                raise self.error(key, "given twice", "keep one of the two spellings")
            self.values[name] = value

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def error(self, key: str, problem: str, remedy: str) -> ValueError:
        """Return the error for a key."""
        place = ": ".join(part for part in (self.where, key) if part)
        return ValueError(f"{self.path}: {place}: {problem}; {remedy}")

    def number(self, key: str, default: float | None = None, zero: bool = False) -> float:
        """Return a positive number, or 0 too if ``zero``; without a default it must be given."""
        value = self.values.get(key, default)
        if value is None:
            raise self.error(key, "missing", f"add {key} = a number")
        return self.checked(key, value, zero)

    def checked(self, key: str, value: Any, zero: bool = False) -> float:
        """Return a value of a key as a positive number."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            bound = "of at least 0" if zero else "above 0"
            raise self.error(key, f"{value!r}", f"give a number {bound}")
        return float(value)

    def count(self, key: str, default: int | None = None) -> int:
        """Return a whole number of at least 1."""
        value = self.values.get(key, default)
        if value is None:
            raise self.error(key, "missing", f"add {key} = 1 or more")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(key, f"{value!r}", "give a whole number of at least 1")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text that is not empty."""
        value = self.values.get(key, default)
        if value is None:
            raise self.error(key, "missing", f'add {key} = "..."')
        if not isinstance(value, str) or not value:
            raise self.error(key, f"{value!r}", "write a text between quotes")
        return value

    def list_of(self, key: str, default: Sequence[Any]) -> list[Any]:
        """Return a list that is not empty."""
        value = self.values.get(key, list(default))
        if not isinstance(value, list) or not value:
            raise self.error(key, f"{value!r}", f"give a list, such as {list(default)!r}")
        return value

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """Return one positive number per worker, from a list or from one number for all."""
        value = self.values.get(key)
        if not isinstance(value, list):
            return (self.number(key),) * count
        if len(value) != count:
            raise self.error(
                key, f"has {len(value)} entries", f"give one number, or one per worker ({count})"
            )
        return tuple(self.checked(key, entry) for entry in value)
