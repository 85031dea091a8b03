"""Read and check the file of a plan: regions and links, what is trained, the goal, what is tried.

Regions and links are those of the clock (`mll_flower.timing.clock_file`). Every mistake is an error
that names the key, the value and the remedy, before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mll_flower.algorithm.mixing import RULES
from mll_flower.apps.launch import absolute_paths
from mll_flower.config import RunConfig
from mll_flower.tasks.data import absolute_dataset
from mll_flower.tasks.metrics import LOWER_IS_BETTER
from mll_flower.tasks.own_code import needs_code_dir
from mll_flower.timing.clock import Clock
from mll_flower.timing.clock_file import read_clock, region_tables
from mll_flower.timing.tables import Table, read_toml

GRAPHS = ("complete", "links", "ring", "star", "tree", "one-server")
"""Graphs that a plan tries, where the links allow them; see `mll_flower.planning.candidates`."""

_GOAL = ("accuracy", "metric", "loss", "hours", "gigabytes")
_SEARCH = ("tau", "q", "graphs", "mixing", "waiting", "seeds", "most", "longest-slots")

_SET_BY_PLAN = {
    **dict.fromkeys(("hubs", "workers-per-hub", "rates", "clock"), "the [[region]] tables set it"),
    **dict.fromkeys(("graph", "mixing", "tau", "q"), "the plan tries several: see [search]"),
    **dict.fromkeys(("preset", "wait-for-all"), "the plan tries both ways: see [search]"),
    **dict.fromkeys(("slots", "lr-milestones"), "the goal decides how long runs are"),
    **dict.fromkeys(("output", "resume", "tensorboard"), "--output is the folder of the plan"),
    **dict.fromkeys(("seed", "evaluate-every", "checkpoint-every", "pool"), "the plan sets it"),
    **dict.fromkeys(("reply-timeout", "node-timeout"), "the plan's runs need no Flower"),
}
"""Keys of the run config that may not be in [task], and why."""


@dataclass(frozen=True)
class Goal:
    """What a plan is for: a target, a budget, or both.

    Parameters
    ----------
    measure : str
        What the target is about: ``metric``, or ``test_loss``.
    target : float, optional
        The value to reach.
    seconds, bytes : float, optional
        What may be spent; without a limit None.
    """

    measure: str = "metric"
    target: float | None = None
    seconds: float | None = None
    bytes: float | None = None


@dataclass(frozen=True)
class Search:
    """What is tried.

    Parameters
    ----------
    tau, q : tuple of int, optional
        Values to try; chosen from the clock's figures if None.
    graphs, mixing : tuple of str
        Graphs and rules to try.
    waiting : tuple of bool
        Whether rounds that do not wait, and rounds that wait, are tried.
    seeds : int
        Runs per setting in the last comparison.
    most : int
        Settings that are played at most, of those that wait and of those that do not.
    longest_slots : int
        Slots (or steps per worker, if rounds wait) that a run has at most.
    """

    tau: tuple[int, ...] | None = None
    q: tuple[int, ...] | None = None
    graphs: tuple[str, ...] = GRAPHS
    mixing: tuple[str, ...] = ("metropolis", "complete", "diffusion")
    waiting: tuple[bool, ...] = (False, True)
    seeds: int = 5
    most: int = 24
    longest_slots: int = 4096


@dataclass(frozen=True)
class Plan:
    """A plan's file, read and checked.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        Name of the plan, and of the deployment that it leads to.
    clock : Clock
        What takes how long.
    task : dict
        Keys of the run config: what is trained, on which data.
    goal : Goal
        What is wanted.
    search : Search
        What is tried.
    addresses : list of dict
        ``superlink`` and ``gossip`` of each region, where the file has them.
    """

    path: Path
    name: str
    clock: Clock
    task: dict[str, Any]
    goal: Goal
    search: Search
    addresses: list[dict[str, str]] = field(default_factory=list)

    def config(self, **values: Any) -> RunConfig:
        """Return the run config of the plan's task with other values, by their names in Python."""
        given = {key.replace("_", "-"): value for key, value in values.items()}
        settings = {**RunConfig.clock_values(self.path), **self.task, **given}
        return RunConfig.from_run_config(settings)


def load_plan(path: str | Path) -> Plan:
    """Read and check the file of a plan; relative paths in it start at its folder."""
    path = Path(path).absolute()
    values = read_toml(path, "a plan (mll-flower plan --example writes one)")
    clock = read_clock(path, values)
    search = _search(Table(path, "search", values.get("search", {}), _SEARCH))
    goal = _goal(Table(path, "goal", values.get("goal", {}), _GOAL))
    plan = Plan(
        path=path,
        name=str(values.get("name", path.stem)),
        clock=clock,
        task=_task(path, values.get("task", {})),
        goal=goal,
        search=search,
        addresses=[
            {key: region.text(key) for key in ("superlink", "gossip") if key in region}
            for region in region_tables(path, values)
        ],
    )
    try:
        config = plan.config(tau=1, q=1, slots=1)
    except ValueError as error:
        raise ValueError(f"{path}: task: {error}") from None
    if "accuracy" in values["goal"] and config.metric not in ("auto", "accuracy"):
        raise ValueError(
            f"{path}: goal: accuracy: the task's metric is {config.metric!r}; write "
            f"metric = {goal.target:g}"
        )
    return plan


def lower_is_better(goal: Goal, metric: str) -> bool:
    """Return whether what the goal measures should fall."""
    return goal.measure == "test_loss" or metric in LOWER_IS_BETTER


def _goal(table: Table) -> Goal:
    targets = [key for key in ("accuracy", "metric", "loss") if key in table]
    if len(targets) > 1:
        raise table.error(" / ".join(targets), "more than one target", "keep one of them")
    if not table.values:
        raise table.error(
            "accuracy", "missing", "give a target (accuracy = 0.9) or a budget (hours = 2)"
        )
    target = table.number(targets[0]) if targets else None
    if "accuracy" in table and target is not None and target > 1:
        raise table.error("accuracy", f"{target:g}", "an accuracy is at most 1: 0.9 is 90 %")
    return Goal(
        measure="test_loss" if "loss" in table else "metric",
        target=target,
        seconds=3600 * table.number("hours") if "hours" in table else None,
        bytes=1e9 * table.number("gigabytes") if "gigabytes" in table else None,
    )


def _search(table: Table) -> Search:
    default = Search()
    counts = {
        key: tuple(_whole(table, key, entry) for entry in table.list_of(key, [8]))
        for key in ("tau", "q")
        if key in table
    }
    graphs = tuple(table.list_of("graphs", default.graphs))
    mixing = tuple(table.list_of("mixing", default.mixing))
    for key, chosen, known in (("graphs", graphs, GRAPHS), ("mixing", mixing, tuple(RULES))):
        for entry in chosen:
            if entry not in known:
                raise table.error(key, f"{entry!r} is not known", f"use {', '.join(known)}")
    if "optimal" in mixing and find_spec("cvxpy") is None:
        raise table.error(
            "mixing", "'optimal' needs the solver cvxpy", "pip install 'mll-flower[optimal]'"
        )
    waiting = tuple(table.list_of("waiting", default.waiting))
    if not all(isinstance(entry, bool) for entry in waiting):
        raise table.error("waiting", f"{list(waiting)!r}", "give [true], [false] or [false, true]")
    return Search(
        tau=counts.get("tau"),
        q=counts.get("q"),
        graphs=graphs,
        mixing=mixing,
        waiting=waiting,
        seeds=table.count("seeds", default.seeds),
        most=table.count("most", default.most),
        longest_slots=table.count("longest-slots", default.longest_slots),
    )


def _whole(table: Table, key: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise table.error(key, f"{value!r}", "give whole numbers of at least 1: [4, 8, 16]")
    return value


def _task(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    known = [entry.name.replace("_", "-") for entry in fields(RunConfig)]
    table = Table(path, "task", values, known)
    for key, why in _SET_BY_PLAN.items():
        if key in table:
            raise table.error(key, why, "remove it from [task]")
    settings = dict(table.values)
    if "dataset" in settings:
        settings["dataset"] = absolute_dataset(str(settings["dataset"]), path.parent)
    if settings.get("code-dir") or needs_code_dir(settings):
        settings["code-dir"] = str((path.parent / settings.get("code-dir", "")).absolute())
    return absolute_paths(settings)
