"""The examples learn when Flower's simulation runs them, and their README shows what changed."""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from mll_flower.processes.simulation import SuperLink, run_app, simulation_superlink

EXAMPLES = Path(__file__).parents[2] / "examples"
BEFORE, AFTER = EXAMPLES / "quickstart-pytorch-before", EXAMPLES / "quickstart-pytorch-after"
# An untrained model gets one in ten digits right.
FLOOR = 0.8


@pytest.fixture(scope="module")
def superlink() -> Iterator[SuperLink]:
    with simulation_superlink() as link:
        yield link


@pytest.mark.parametrize(
    ("example", "nodes"),
    [
        ("quickstart-pytorch-after", 10),
        pytest.param("numpy", 8, marks=pytest.mark.slow),
        pytest.param("fedadam", 8, marks=pytest.mark.slow),
    ],
)
def test_flwr_run_learns(example: str, nodes: int, superlink: SuperLink, tmp_path: Path) -> None:
    results = tmp_path / "accuracy.json"
    federation = {
        "num-supernodes": nodes,
        "client-resources-num-cpus": 1,
        "init-args-num-cpus": 2,
    }
    run_app(superlink, EXAMPLES / example, {"results": str(results)}, federation, print)
    accuracy = {int(k): v for k, v in json.loads(results.read_text()).items()}
    assert accuracy[0] < 0.2
    assert accuracy[max(accuracy)] > FLOOR
    assert max(accuracy) >= 4


IN_PROCESS = """
import importlib, sys, tomllib
from pathlib import Path

from flwr.app import Context, RecordDict

folder, package, results, forbidden = sys.argv[1:]


class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == forbidden:
            raise ImportError(f"{name} must not be imported")


sys.meta_path.insert(0, Forbid())
sys.path.insert(0, folder)
from mll_flower.grids.in_process import InProcessGrid

project = tomllib.loads(Path(folder, "pyproject.toml").read_text())
config = {**project["tool"]["flwr"]["app"]["config"], "results": results}
client = importlib.import_module(package + ".client_app").app
server = importlib.import_module(package + ".server_app").app
server(InProcessGrid(client, 8, config), Context(1, 1, {}, RecordDict(), config))
assert forbidden not in sys.modules
"""


@pytest.mark.parametrize(
    ("example", "package", "forbidden"),
    [
        ("quickstart-pytorch-before", "pytorchexample", ""),
        ("three-sites", "pytorchexample", ""),
        ("numpy", "numpyexample", "torch"),
    ],
)
def test_without_flowers_runtime(
    example: str, package: str, forbidden: str, tmp_path: Path
) -> None:
    """The project before the change learns too; the NumPy one needs no torch."""
    results = tmp_path / "accuracy.json"
    arguments = [str(EXAMPLES / example), package, str(results), forbidden]
    done = subprocess.run(
        [sys.executable, "-c", IN_PROCESS, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=EXAMPLES.parent,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    accuracy = {int(k): v for k, v in json.loads(results.read_text()).items()}
    assert accuracy[0] < 0.2
    assert accuracy[max(accuracy)] > FLOOR


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def difference(before: Path, after: Path, context: int = 1) -> str:
    """Return what differs between two projects, as a diff with some lines of context."""
    old, new = files(before), files(after)
    assert list(old) == list(new)
    lines: list[str] = []
    for name, text in old.items():
        lines += difflib.unified_diff(
            text.splitlines(), new[name].splitlines(), name, name, n=context, lineterm=""
        )
    return "\n".join(lines)


def test_only_the_strategy_changes() -> None:
    lines = difference(BEFORE, AFTER).splitlines()
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert [line for line in lines if line.startswith("+++")] == [
        "+++ pytorchexample/server_app.py"
    ]
    assert [line.split("(")[0] for line in changed] == [
        "-from flwr.serverapp.strategy import FedAvg",
        "+from mll_flower import MultiLevelStrategy",
        "-    strategy = FedAvg",
        "+    strategy = MultiLevelStrategy",
    ]


def test_the_readme_shows_exactly_that_diff() -> None:
    assert f"```diff\n{difference(BEFORE, AFTER)}\n```" in (EXAMPLES / "README.md").read_text()


@pytest.mark.parametrize("example", [p.parent.name for p in EXAMPLES.glob("*/pyproject.toml")])
def test_flower_need_not_look_for_this_library_in_a_registry(example: str) -> None:
    text = (EXAMPLES / example / "pyproject.toml").read_text()
    assert not any("mll-flower" in d for d in tomllib.loads(text)["project"]["dependencies"])
