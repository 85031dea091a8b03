"""Figures read from TOML files: the set-ups that are run, and the claims about them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from mll_flower.config import RunConfig
from mll_flower.sweeps.setups import LAST, Claim, Setup

HERE = Path(__file__).parent
FIGURES = (
    "tau-q", "hubs", "rates", "time", "non-iid", "zeta", "rates-non-iid", "corrections",
    "niid-bench", "resnet-cifar", "published",
)  # fmt: skip
"""The figures, in the order of the document."""
PAPERS = ("tau-q", "hubs", "rates", "time")
"""Those of the paper; the others go beyond it, or stand beside other people's numbers."""
LONG = ("niid-bench", "resnet-cifar", "published")
"""Figures with one scale only, too long for ``all`` at the small scale."""
MODELS = ("logistic", "softmax", "cnn", "resnet18", "lenet")
ASKED_FOR = ("resnet18",)
"""Models that ``all`` leaves out of the figures of several models: two cores would need months."""
SCALES = ("small", "paper")


@dataclass(frozen=True)
class FigureSetup(Setup):
    """One curve of a figure.

    Parameters
    ----------
    published : tuple of str
        Names of results in published.json that correspond to it, the best match first.
    steps_per_iteration : int
        A worker's steps in one iteration of the authors' code; 0 if these cannot be compared.
    """

    published: tuple[str, ...] = ()
    steps_per_iteration: int = 0


@dataclass(frozen=True)
class Panel:
    """A part of a figure with too many curves for one plot.

    Parameters
    ----------
    title : str
        Its title, which labels of set-ups do not repeat in it.
    setups : tuple of str
        Names of the set-ups that it shows.
    metric : str
        What it shows of them.
    """

    title: str
    setups: tuple[str, ...]
    metric: str


@dataclass(frozen=True)
class Figure:
    """A figure for one model at one scale.

    Parameters
    ----------
    name, title, source : str
        Its name, its title, and a sentence on its place in the paper.
    model, scale : str
        One of `MODELS`, one of `SCALES`.
    setups, claims : tuple
        Its curves, and the claims about them.
    seeds : int
        Number of seeds of every set-up: 0, 1, ...
    panels : tuple of Panel
        How its curves are shown; empty for one plot per metric, with all of them.
    """

    name: str
    title: str
    source: str
    model: str
    scale: str
    setups: tuple[FigureSetup, ...]
    claims: tuple[Claim, ...]
    seeds: int
    panels: tuple[Panel, ...] = ()

    @property
    def value(self) -> str:
        """What its claims compare: last values, or means."""
        return self.claims[0].value if self.claims else LAST

    @property
    def key(self) -> str:
        """Stem of the names of its files."""
        return f"{self.name}-{self.model}-{self.scale}"

    def configs(self) -> list[RunConfig]:
        """Return the config of every run: each set-up with each seed."""
        return [setup.config(seed) for setup in self.setups for seed in range(self.seeds)]


@cache
def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def model_title(model: str) -> str:
    """Return a model's name for tables and plots."""
    return str(_read(HERE / "models.toml")[model]["title"])


def models_of(name: str) -> tuple[str, ...]:
    """Return the models that a figure is made for."""
    return tuple(_figure_file(name)["models"])


def figures(
    name: str,
    model: str | None = None,
    scale: str = "small",
    seeds: int | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> list[Figure]:
    """Return a figure for one model, or for all of its models.

    Parameters
    ----------
    name : str
        One of `FIGURES`, or ``all`` for every figure of the scale.
    model : str, optional
        One of `MODELS`; default: all of the figure's, with ``all`` those that are not `ASKED_FOR`.
    scale : str
        ``small`` or ``paper``.
    seeds : int, optional
        Number of seeds; default: that of the scale.
    overrides : Mapping, optional
        Values of the run config that replace those of the figure.
    """
    if scale not in SCALES:
        raise ValueError(f"scale={scale!r} is not known: use {', '.join(SCALES)}")
    if model is not None and model not in MODELS:
        raise ValueError(f"model={model!r} is not known: use {', '.join(MODELS)}")
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds={seeds}: give at least 1")
    if name == "all":
        names = [n for n in FIGURES if scale == "paper" or n not in LONG]
    else:
        names = [name]
        _figure_file(name)
    wanted = [(n, m) for n in names for m in models_of(n) if model in (None, m)]
    if name == "all" and model is None:
        wanted = [(n, m) for n, m in wanted if m not in ASKED_FOR or models_of(n) == (m,)]
    if not wanted:
        raise ValueError(
            f"figure {name!r} has no model {model!r}: use {', '.join(models_of(name))}"
        )
    found = [
        _figure(n, m, scale, seeds, overrides or {}) for n, m in wanted if _has_scale(n, m, scale)
    ]
    if not found:
        raise ValueError(
            f"{model} has no {scale} scale, since it hardly learns in so short a run: use "
            "--scale paper"
        )
    return found


def _has_scale(name: str, model: str, scale: str) -> bool:
    """Whether a model has runs of this scale; some figures have one scale of their own."""
    return _figure_file(name).get("one-scale", False) or scale in _read(HERE / "models.toml")[model]


def _figure_file(name: str) -> dict[str, Any]:
    if name not in FIGURES:
        raise ValueError(f"figure {name!r} is not known: use all, {', '.join(FIGURES)}")
    return _read(HERE / "figures" / f"{name}.toml")


def _figure(
    name: str, model: str, scale: str, seeds: int | None, overrides: Mapping[str, Any]
) -> Figure:
    file = _figure_file(name)
    task = _read(HERE / "models.toml")[model]
    common = {key: value for key, value in task.items() if key not in (*SCALES, "title")}
    one_scale = file.get("one-scale", False)
    common = {**common, **({} if one_scale else task[scale]), **file["base"]}
    common |= file.get(scale, {}).get(model, {})
    count, value = common.pop("seeds"), common.pop("compare", LAST)
    setups = []
    for entry in file["setups"]:
        values = {**common, **entry["values"]}
        values.update(overrides)
        setups.append(
            FigureSetup(
                entry["name"],
                entry["label"].format(hubs=values["hubs"]),
                values,
                tuple(entry.get("published", ())),
                entry.get("steps-per-iteration", 0),
            )
        )
    claims = [
        replace(_claim(entry), value=value)
        for entry in file.get("claims", [])
        if _is_about(entry, model)
    ]
    return Figure(
        name,
        file["title"],
        file["source"],
        model,
        "paper" if one_scale else scale,
        tuple(setups),
        tuple(claims),
        seeds or count,
        tuple(
            Panel(panel["title"], tuple(panel["setups"]), panel["metric"])
            for panel in file.get("panels", [])
        ),
    )


def _is_about(entry: Mapping[str, Any], model: str) -> bool:
    return model in entry.get("models", [model])


def _claim(entry: Mapping[str, Any]) -> Claim:
    values: dict[str, Any] = {key: value for key, value in entry.items() if key != "models"}
    for side in ("left", "right"):
        values[side] = tuple(values.get(side, ()))
    return Claim(**values)
