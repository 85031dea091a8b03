"""Mistakes in a plan: each is named with its key, value and remedy, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mll_flower.planning.example_plan import EXAMPLE
from mll_flower.planning.plan_file import Goal, load_plan


def load(folder: Path, text: str) -> object:
    path = folder / "plan.toml"
    path.write_text(text)
    return load_plan(path)


def test_the_example_is_a_plan(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(EXAMPLE)
    plan = load_plan(tmp_path / "plan.toml")
    assert plan.name == "first-plan"
    assert plan.goal == Goal(measure="metric", target=0.85)
    assert plan.clock.worker_counts == [4, 3, 3]
    assert plan.config(tau=4).tau == 4
    assert plan.config().model == "mlp"


def test_budgets_are_in_seconds_and_bytes(tmp_path: Path) -> None:
    text = EXAMPLE.replace("accuracy = 0.85", "loss = 0.4\nhours = 2\ngigabytes = 5")
    plan = load(tmp_path, text)
    assert plan.goal == Goal("test_loss", 0.4, 7200.0, 5e9)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("accuracy = 0.85", "", r"goal: accuracy: missing; give a target .* or a budget"),
        ("accuracy = 0.85", "accuracy = 85", r"goal: accuracy: 85; an accuracy is at most 1"),
        ("accuracy = 0.85", "accuracy = 0.8\nloss = 1", r"accuracy / loss: more than one target"),
        ("accuracy = 0.85", "hours = -1", r"goal: hours: -1; give a number above 0"),
        ("accuracy = 0.85", "speed = 1", r"goal: speed: unknown key; the known ones are accuracy"),
        ('model = "mlp"', 'model = "mpl"', r"task: model='mpl'"),
        ('model = "mlp"', 'modle = "mlp"', r"task: modle: unknown key"),
        ('model = "mlp"', "tau = 4", r"task: tau: the plan tries several.*; remove it from"),
        ('model = "mlp"', "hubs = 4", r"task: hubs: the \[\[region\]\] tables set it; remove"),
        ('model = "mlp"', 'lr-milestones = "0.5"', r"task: lr-milestones: the goal decides"),
        ("learning-rate = 0.1", "learning-rate = -1", r"task: learning-rate=-1.0"),
        ('dataset = "digits"', 'dataset = "npz:no.npz"', r"task: dataset=.* does not exist"),
        ("seeds = 5", "seeds = 0", r"search: seeds: 0; give a whole number of at least 1"),
        ("seeds = 5", "tau = [0]", r"search: tau: 0; give whole numbers of at least 1"),
        ("seeds = 5", "tau = 8", r"search: tau: 8; give a list"),
        ("seeds = 5", 'graphs = ["wheel"]', r"search: graphs: 'wheel' is not known; use complete"),
        ("seeds = 5", 'mixing = ["magic"]', r"search: mixing: 'magic' is not known; use metro"),
        ("seeds = 5", "waiting = [1]", r"search: waiting: \[1\]; give \[true\]"),
        ("[search]", "[serach]", r"serach: unknown key; the known ones are"),
    ],
)
def test_mistakes(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(tmp_path, EXAMPLE.replace(old, new, 1))


def test_a_metric_of_another_name(tmp_path: Path) -> None:
    text = EXAMPLE.replace('model = "mlp"', 'model = "mlp"\nmetric = "mse"')
    with pytest.raises(ValueError, match=r"goal: accuracy: the task's metric is 'mse'; write metr"):
        load(tmp_path, text)


def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no.toml: cannot be read .*--example writes one"):
        load_plan(tmp_path / "no.toml")
