"""Figures read from TOML files: the set-ups that are run, and the claims about them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from experiments.derived import SOURCE, is_derived
from mll_flower.config import RunConfig

HERE = Path(__file__).parent
FIGURES = (
    "tau-q", "hubs", "rates", "time", "non-iid", "zeta", "rates-non-iid", "corrections",
    "niid-bench", "resnet-cifar", "published",
)  # fmt: skip
"""The figures, in the order of the document."""
LONG = ("niid-bench", "resnet-cifar", "published")
"""Figures with one scale only, too long for ``all`` at the small scale."""
MODELS = ("logistic", "cnn", "resnet18", "lenet")
SCALES = ("small", "paper")
KINDS = ("lower", "higher", "nearer", "similar", "above")
METRICS = ("loss", "accuracy", "distance")


@dataclass(frozen=True)
class Setup:
    """One curve of a figure.

    Parameters
    ----------
    name, label : str
        Its name in files and claims, and its label in tables and plots.
    values : Mapping
        Values of the run config, without the seed.
    published : tuple of str
        Names of results in published.json that correspond to it, the best match first.
    steps_per_iteration : int
        A worker's steps in one iteration of the authors' code; 0 if these cannot be compared.
    """

    name: str
    label: str
    values: Mapping[str, Any]
    published: tuple[str, ...] = ()
    steps_per_iteration: int = 0

    def config(self, seed: int) -> RunConfig:
        """Return the run config for a seed, checked, with its preset applied."""
        values = {**self.values, "seed": seed}
        if not is_derived(values["dataset"]):
            return RunConfig.from_run_config(values)
        # The derived file is made when the run starts; until then the original is checked.
        config = RunConfig.from_run_config({**values, "dataset": SOURCE})
        return replace(config, dataset=values["dataset"])


@dataclass(frozen=True)
class Claim:
    """A sentence that runs can support or contradict.

    Parameters
    ----------
    text : str
        The claim as a sentence.
    kind : str
        One of `KINDS`; `experiments.verdicts` defines what each compares.
    left, right : tuple of str
        Names of set-ups.
    metric : str
        One of `METRICS`.
    target : str
        For ``nearer``: the set-up whose curve the others are compared with.
    threshold : float
        For ``above``: the number to exceed.
    """

    text: str
    kind: str
    left: tuple[str, ...]
    right: tuple[str, ...] = ()
    metric: str = "loss"
    target: str = ""
    threshold: float = 0.0


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
    """

    name: str
    title: str
    source: str
    model: str
    scale: str
    setups: tuple[Setup, ...]
    claims: tuple[Claim, ...]
    seeds: int

    @property
    def key(self) -> str:
        """Stem of the names of its files."""
        return f"{self.name}-{self.model}-{self.scale}"


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
        One of `MODELS`.
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
    found = [
        _figure(n, m, scale, seeds, overrides or {})
        for n in names
        for m in models_of(n)
        if model in (None, m)
    ]
    if not found:
        raise ValueError(
            f"figure {name!r} has no model {model!r}: use {', '.join(models_of(name))}"
        )
    return found


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
    count = common.pop("seeds")
    shrink = common.pop("shrink", None)
    setups = []
    for entry in file["setups"]:
        values = {**common, **entry["values"]}
        if shrink:
            values.update(_shrunk(values, shrink))
        values.update(overrides)
        setups.append(
            Setup(
                entry["name"],
                entry["label"].format(hubs=values["hubs"]),
                values,
                tuple(entry.get("published", ())),
                entry.get("steps-per-iteration", 0),
            )
        )
    claims = [_claim(entry) for entry in file.get("claims", []) if _is_about(entry, model)]
    return Figure(
        name,
        file["title"],
        file["source"],
        model,
        "paper" if one_scale else scale,
        tuple(setups),
        tuple(claims),
        seeds or count,
    )


def _is_about(entry: Mapping[str, Any], model: str) -> bool:
    return model in entry.get("models", [model])


def _claim(entry: Mapping[str, Any]) -> Claim:
    values: dict[str, Any] = {key: value for key, value in entry.items() if key != "models"}
    for side in ("left", "right"):
        values[side] = tuple(values.get(side, ()))
    return Claim(**values)


def _shrunk(values: Mapping[str, Any], shrink: Mapping[str, Any]) -> dict[str, Any]:
    """Return smaller numbers of workers and hubs for the same kind of network."""
    hubs = int(shrink["hubs"][str(values["hubs"])])
    return {"hubs": hubs, "workers-per-hub": str(shrink["workers"] // hubs)}
