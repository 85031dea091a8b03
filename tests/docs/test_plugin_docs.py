"""docs/plugin.md: its code runs, and it explains every argument, cause and strategy."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import flwr.serverapp.strategy
import pytest
from flwr.app import ArrayRecord

from mll_flower import (
    DeadlineGrid,
    GossipingHubStrategy,
    MultiLevelStrategy,
    RoundReport,
    answer_identity,
)
from mll_flower.grids.absences import Absence
from tests.support.flower_grid import Nodes, unpack

PAGE = (Path(__file__).parents[2] / "docs" / "plugin.md").read_text()


def section(title: str) -> str:
    (text,) = re.findall(rf"^## {title}.*?\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return text


@pytest.mark.parametrize(
    "documented", [MultiLevelStrategy, GossipingHubStrategy, DeadlineGrid, answer_identity]
)
def test_every_argument_is_explained(documented) -> None:
    text = section(documented.__name__)
    for name in inspect.signature(documented).parameters:
        assert re.search(rf"[`(* ]{name}[`,=)]", text), name


def test_every_cause_of_absence_and_every_strategy_is_named() -> None:
    for cause in Absence:
        assert f"`{cause}`" in section("Absent workers")
    table = section("What keeps the theory's guarantees")
    for name in flwr.serverapp.strategy.__all__:
        if name not in ("Strategy", "Result"):
            short = re.sub("^DifferentialPrivacy", "...", name)
            assert f"`{name}`" in table or f"`{short}`" in table, name


@pytest.mark.parametrize("kind", ["steps", "coins", "time"])
def test_the_budget_example_trains(kind: str) -> None:
    (code,) = re.findall(r"```python\n(# client_app\.py.*?)```", section("Budgets"), re.DOTALL)
    names: dict = {}
    exec(code, names)
    reports: list[RoundReport] = []
    config = {
        "steps": lambda worker, round: {"steps": worker},
        "coins": lambda worker, round: {"rate": 0.5, "seed": 3, "worker": worker},
        "time": None,
    }[kind]
    strategy = MultiLevelStrategy(
        hubs=2,
        tau=30,
        slot=0.005 if kind == "time" else None,
        worker_config=config,
        fraction_evaluate=0.0,
        on_round=reports.append,
    )
    with Nodes(names["app"], 4) as nodes:
        start = ArrayRecord(names["initial_model"]())
        result = strategy.start(nodes.grid, start, num_rounds=3)
    steps = [
        [a.metrics["steps"] for a in sorted(arrived, key=lambda a: a.node)]
        for arrived in ([a for hub in r.hubs for a in hub.arrived] for r in reports)
    ]
    if kind == "steps":
        assert steps == [[0, 1, 2, 3]] * 3
    elif kind == "coins":
        assert all(5 <= n <= 25 for row in steps for n in row)
        assert len({n for row in steps for n in row}) > 3
    else:
        assert all(1 <= n <= 30 for row in steps for n in row)
    (weights,) = unpack(result.arrays).values()
    # It starts 3 away from the solution, and "steps" gives a worker at most nine steps.
    assert abs(weights - [1, 2, 3]).max() < (2.5 if kind == "steps" else 1.0)
