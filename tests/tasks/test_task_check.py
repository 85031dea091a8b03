"""A task is tried before a run: whatever is wrong with the user's parts is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mll_flower.tasks import own_code
from mll_flower.tasks.task import Task
from mll_flower.tasks.task_check import check_task
from tests.support.own_work import FILE, write_user_files

Load = Callable[..., Task]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load and try a task of the user's file, to which some code is added; @ stands for it."""
    write_user_files(tmp_path)

    def load_task(code: str = "", **options: str) -> Task:
        (tmp_path / "mine.py").write_text(FILE + code)
        own_code._executed.clear()
        values = {"model": "@plain", "dataset": "@classes", **options}
        named = {key: value.replace("@", "mine.py:") for key, value in values.items()}
        task = Task.load(**named, code_dir=str(tmp_path))
        check_task(task, 8)
        return task

    return load_task


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": "@Awkward", "loss": "@smooth", "metric": "@share_right"},
        {"model": "@lazy"},
        {"dataset": "@numbers"},
        {"dataset": "@numbers", "loss": "huber", "metric": "r2"},
        {"model": "mlp", "augment": "@noisy"},
    ],
    ids=str,
)
def test_good_work_passes_and_leaves_no_trace(load: Load, options: dict[str, str]) -> None:
    state = torch.random.get_rng_state()
    task = load(**options)
    assert torch.equal(torch.random.get_rng_state(), state)
    first, second = task.new_model().state_dict(), task.new_model().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_other_seeds_give_other_models(load: Load) -> None:
    task = load()
    other = Task(task.data, task.model, 1, code_dir=task.code_dir)
    assert not torch.equal(task.new_model()[0].weight, other.new_model()[0].weight)


MODEL, LOSS, AUGMENT = {"model": "@f"}, {"loss": "@f"}, {"augment": "@f"}


@pytest.mark.parametrize(
    ("code", "options", "message"),
    [
        ("def f(): return 3", MODEL, "model='mine.py:f' gives a int: give a torch.nn.Module"),
        ("def f(): return nn.ReLU()", MODEL, "without parameters to train"),
        ("net = nn.Linear(6, 3)\ndef f(): return net", MODEL, "the same module at every call"),
        (
            "rng = np.random.default_rng(1)\ndef f():\n    net = nn.Linear(6, 3)\n"
            "    net.bias.data[:] = torch.tensor(rng.random(3))\n    return net",
            MODEL,
            "gives another 'bias' at each call",
        ),
        ("def f(): return nn.Linear(5, 3)", MODEL, r"on a batch of shape \(8, 6\) raised RuntimeE"),
        ("def f(): return nn.Linear(6, 2)", MODEL, r"2 outputs per row for 3 classes .*\(8, 3\)"),
        ("def f(): return nn.Unflatten(1, (6, 1))", MODEL, "without parameters"),
        (
            "class F(nn.Linear):\n    def forward(self, x): return {'a': super().forward(x)}\n"
            "def f(): return F(6, 3)",
            MODEL,
            "gives a dict: loss='auto' takes a tensor; give a loss of your own",
        ),
        (
            "class F(nn.Linear):\n    def forward(self, x): return super().forward(x)[:, 0]\n"
            "def f(): return F(6, 3)",
            MODEL,
            r"gives shape \(8,\) \(float32\) for 8 rows and 3 classes: .* \(8, 3\)",
        ),
        ("def f(size): ...", MODEL, "needs a value for 'size': .* input_shape, classes, outputs"),
        ("def f(): raise OSError('no disk')", MODEL, r"raised OSError: no disk \(.*mine\.py, line"),
        ("def f(a, b): return a - b[:, None]", LOSS, r"loss='mine.py:f' gives shape \(8, 3\)"),
        ("def f(a, b): return float(a.mean())", LOSS, "gives a float: give the mean loss"),
        ("def f(a, b): return a.detach().mean()", LOSS, "does not depend on the parameters"),
        (
            "def f(a, b): return a.swap(b)",
            LOSS,
            r"on an output of shape \(8, 3\) \(float32\) and a target of shape \(8,\) \(int64\) "
            r"raised AttributeError: .* \(.*mine\.py, line",
        ),
        (
            "from torch.nn.functional import mse_loss",
            {"dataset": "@numbers", "loss": "torch.nn.functional:mse_loss"},
            r"loss='torch.nn.functional:mse_loss' on .* raised UserWarning: Using a target size",
        ),
        (
            "def f(x): return x[:, :5]",
            AUGMENT,
            r"augment='mine.py:f' gives shape \(8, 5\) .* must stay",
        ),
        (
            "def f(x): return x.double()",
            AUGMENT,
            r"gives shape \(8, 6\) \(float64\) for a batch of",
        ),
        ("def f(x): pass", AUGMENT, "gives a NoneType"),
        ("def f(x): return x.turn()", AUGMENT, r"augment='mine.py:f' on .* raised AttributeError"),
        ("def f(a, b): return {}", {"metric": "@f"}, "metric='mine.py:f' on .* raised TypeError"),
        (
            "",
            {"dataset": "@numbers", "model": "@Two"},
            r"loss='auto' on .*shape \(8, 2\).* raised ValueError: .*must be the same",
        ),
        ("", {"model": "cnn"}, r"model 'cnn' takes images"),
        (
            "x, y = np.ones((6, 3), int), np.arange(6)\ndef f(): return x, y, x, y",
            {"dataset": "@f", "model": "mlp"},
            "gives whole numbers as examples, which model='mlp' cannot take",
        ),
    ],
)
def test_what_is_wrong_is_named(
    load: Load, code: str, options: dict[str, str], message: str
) -> None:
    two = "\nclass Two(nn.Linear):\n    def __init__(self): super().__init__(6, 2)\n"
    with pytest.raises(ValueError, match=message):
        load(two + code, **options)
