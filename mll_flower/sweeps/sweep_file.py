"""A sweep's file: settings, a grid, set-ups with names, seeds, and claims, read and checked.

docs/sweeps.md explains it. All that is wrong is said before any run starts, with the place in the
file.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mll_flower.apps.launch import absolute_paths
from mll_flower.config import RunConfig
from mll_flower.sweeps.setups import KINDS, LAST, MEAN, METRICS, VALUES, Claim, Setup

_PARTS = ("title", "seeds", "settings", "grid", "setup", "claim")
_CLAIM = ("first", "second", "measure", "value", "is", "target", "bound", "text")
# Keys that are the sweep's own business.
_OWN = {
    "seed": "give seeds = NUMBER, or a list of them, at the top of the file",
    "output": "the folder is given to the command, as --out",
    "resume": "the same command goes on with a sweep",
}
_MEASURES = {"loss": "training loss", "accuracy": "test metric", "distance": "distance of hubs"}


@dataclass(frozen=True)
class Sweep:
    """What a sweep's file asks for.

    Parameters
    ----------
    title : str
        Title of its plots.
    setups : tuple of Setup
        Those of the grid, then those with names.
    seeds : tuple of int
        The seeds of every set-up.
    claims : tuple of Claim
        What is tested.
    """

    title: str
    setups: tuple[Setup, ...]
    seeds: tuple[int, ...]
    claims: tuple[Claim, ...]

    def configs(self) -> list[RunConfig]:
        """Return all runs, checked; an error names the set-up."""
        found = []
        for setup in self.setups:
            for seed in self.seeds:
                try:
                    found.append(setup.config(seed))
                except ValueError as error:
                    raise ValueError(f"set-up {setup.name!r}: {error}") from None
        return found


def read_sweep(path: Path, data_dir: str = "") -> Sweep:
    """Read a sweep's file and check it.

    Parameters
    ----------
    path : Path
        The file, in TOML. Paths in it start at the working folder, as in a run's config file.
    data_dir : str
        Folder of the data sets, unless the file gives it.

    Raises
    ------
    ValueError
        If anything in it is wrong; the message names the place and the value.
    """
    if not path.is_file():
        raise ValueError(f"sweep file {path} does not exist: check the path")
    try:
        values = tomllib.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"sweep file {path} cannot be read: {error}") from None
    try:
        return parse_sweep(values, path.stem, data_dir)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_sweep(values: Mapping[str, Any], name: str, data_dir: str = "") -> Sweep:
    """Return the sweep that the contents of a file describe; `name` is its title if it has none."""
    _check_keys("the file", values, _PARTS, "is not a part of a sweep")
    settings = _table("settings", values)
    _check_settings("[settings]", settings)
    setups = [
        *_of_grid(settings, _table("grid", values), data_dir),
        *_with_names(settings, _tables("setup", values), data_dir),
    ]
    if not setups:
        setups = [_setup("settings", "[settings]", [settings], data_dir)]
    names = [setup.name for setup in setups]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two set-ups are called {twice!r}: give each a name of its own")
    claims = tuple(_claim(entry, n, names) for n, entry in enumerate(_tables("claim", values), 1))
    title = values.get("title", name)
    if not isinstance(title, str):
        raise ValueError(f"title={title!r}: give a text")
    sweep = Sweep(title, tuple(setups), _seeds(values.get("seeds", 1)), claims)
    sweep.configs()
    return sweep


def _of_grid(settings: Mapping[str, Any], grid: Mapping[str, Any], data_dir: str) -> list[Setup]:
    """Return a set-up for each combination of the grid's values."""
    _check_settings("[grid]", dict.fromkeys(grid, ""))
    for key, choices in grid.items():
        if not isinstance(choices, list) or not choices:
            raise ValueError(f"[grid] {key}={choices!r}: give a list of values")
        for value in choices:
            _check_scalar("[grid]", key, value)
        if len({str(value) for value in choices}) < len(choices):
            raise ValueError(f"[grid] {key}={choices!r}: a value is there twice")
    if not grid:
        return []
    found = []
    for combination in itertools.product(*grid.values()):
        chosen = dict(zip(grid, combination, strict=True))
        name = ", ".join(f"{key}={_text(value)}" for key, value in chosen.items())
        found.append(_setup(name, f"[grid] {name}", [settings, chosen], data_dir))
    return found


def _with_names(
    settings: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], data_dir: str
) -> list[Setup]:
    found = []
    for number, entry in enumerate(entries, 1):
        name = entry.get("name")
        if not isinstance(name, str) or not name:
            raise ValueError(f'[[setup]] number {number} has no name: give name = "..."')
        own = {key: value for key, value in entry.items() if key != "name"}
        _check_settings(f"[[setup]] {name!r}", own)
        found.append(_setup(name, f"[[setup]] {name!r}", [settings, own], data_dir))
    return found


def _setup(name: str, place: str, levels: Sequence[Mapping[str, Any]], data_dir: str) -> Setup:
    """Return a set-up from settings, the later of which replace the earlier.

    A preset replaces what less specific places give; what is given in its own place or in a more
    specific one must not contradict it.
    """
    values: dict[str, Any] = {}
    for level in levels:
        values.update(level)
    where = max((n for n, level in enumerate(levels) if "preset" in level), default=0)
    given: dict[str, Any] = {"preset": values["preset"]} if "preset" in values else {}
    for level in levels[where:]:
        given.update(level)
    try:
        RunConfig.check_given(given)
        if data_dir:
            values.setdefault("data-dir", data_dir)
        return Setup(name, name, absolute_paths(values))
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _claim(entry: Mapping[str, Any], number: int, names: Sequence[str]) -> Claim:
    place = f"[[claim]] number {number}"
    _check_keys(place, entry, _CLAIM, "is not a key of a claim")
    metric = _choice(place, entry, "measure", tuple(_MEASURES), "loss")
    value = _choice(place, entry, "value", VALUES, LAST)
    kind = _choice(place, entry, "is", KINDS, "higher" if metric == "accuracy" else "lower")
    assert set(_MEASURES) == set(METRICS)
    left = _names(place, entry, "first", names)
    right = () if kind == "above" else _names(place, entry, "second", names)
    target = _names(place, entry, "target", names)[0] if kind == "nearer" else ""
    if len(left) < 2 if kind == "similar" else len(left) != 1:
        wanted = "a list of set-ups that are similar" if kind == "similar" else "one set-up"
        raise ValueError(f"{place}: first={entry['first']!r}: give {wanted}")
    bound = entry.get("bound", 0.0)
    if kind == "above" and ("bound" not in entry or isinstance(bound, bool | str | list)):
        raise ValueError(f"{place}: is='above' needs bound = NUMBER")
    unused = {"above": ("second", "target"), "nearer": ("bound",)}.get(kind, ("target", "bound"))
    for key in unused:
        if key in entry:
            raise ValueError(f"{place}: {key}={entry[key]!r} says nothing with is={kind!r}")
    measure = f"mean {_MEASURES[metric]} over the run" if value == MEAN else _MEASURES[metric]
    text = entry.get("text") or _sentence(kind, measure, left, right, target, bound)
    return Claim(str(text), kind, left, right, metric, target, float(bound), value)


def _sentence(
    kind: str, measure: str, left: Sequence[str], right: Sequence[str], target: str, bound: float
) -> str:
    if kind == "above":
        return f"{left[0]}: the {measure} is above {bound:g}."
    if kind == "similar":
        others = "; ".join(left)
        return f"{others}: their {measure} differs by less than its distance from {right[0]}."
    if kind == "within-noise":
        return f"{left[0]}: the {measure} differs from that of {right[0]} by less than seeds do."
    if kind == "nearer":
        return f"{left[0]}: the {measure} is nearer to that of {target} than with {right[0]}."
    return f"{left[0]}: the {measure} is {kind} than with {right[0]}."


def _names(place: str, entry: Mapping[str, Any], key: str, known: Sequence[str]) -> tuple[str, ...]:
    if key not in entry:
        raise ValueError(f"{place}: {key} is missing: name a set-up")
    given = entry[key] if isinstance(entry[key], list) else [entry[key]]
    for name in given:
        if name not in known:
            raise ValueError(
                f"{place}: {key}={name!r} is no set-up; these are "
                + ", ".join(repr(name) for name in known)
            )
    return tuple(given)


def _choice(
    place: str, entry: Mapping[str, Any], key: str, choices: Sequence[str], default: str
) -> str:
    value = entry.get(key, default)
    if value not in choices:
        raise ValueError(f"{place}: {key}={value!r} is not known: use {', '.join(choices)}")
    return str(value)


def _seeds(value: Any) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return tuple(range(value))
    numbers = value if isinstance(value, list) else []
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers)
    if not numbers or not whole or len(set(numbers)) < len(numbers):
        raise ValueError(f"seeds={value!r}: give a number of seeds, or a list of different seeds")
    return tuple(numbers)


def _table(key: str, values: Mapping[str, Any]) -> dict[str, Any]:
    table = values.get(key, {})
    if not isinstance(table, dict):
        raise ValueError(f"{key}={table!r}: it must be a table, [{key}]")
    return table


def _tables(key: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    tables = values.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError(f"{key}={tables!r}: it must be a list of tables, [[{key}]]")
    return tables


def _check_settings(place: str, given: Mapping[str, Any]) -> None:
    for key, remedy in _OWN.items():
        if key in given:
            raise ValueError(f"{place}: {key} cannot be set in a sweep: {remedy}")
    known = [field.name.replace("_", "-") for field in fields(RunConfig)]
    known = [key for key in known if key not in _OWN]
    _check_keys(place, given, known, "is not a key of the run config")
    for key, value in given.items():
        _check_scalar(place, key, value)


def _check_keys(place: str, given: Mapping[str, Any], known: Sequence[str], wrong: str) -> None:
    for key in given:
        if key not in known:
            raise ValueError(f"{place}: {key!r} {wrong}; known are {', '.join(known)}")


def _check_scalar(place: str, key: str, value: Any) -> None:
    if not isinstance(value, bool | int | float | str):
        raise ValueError(
            f"{place} {key}={value!r}: give one value; values to compare are a list in [grid]"
        )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
