"""What an import of the library loads, seen from a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CORE = [
    "algorithm.coins",
    "algorithm.reference",
    "algorithm.theory",
    "models.sums",
    "training.budgets",
]


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "statement",
    [
        "import mll_flower",
        "import " + ", ".join(f"mll_flower.{name}" for name in CORE),
        "import mll_flower.cli, mll_flower.results.hub_graph",
    ],
)
def test_nothing_heavy_is_loaded(statement: str) -> None:
    heavy = {"torch", "torchvision", "ray", "matplotlib", "cvxpy", "llvmlite"}
    assert not heavy & loaded_after(statement)


def test_the_library_knows_nothing_of_the_apps() -> None:
    names = loaded_after("import " + ", ".join(f"mll_flower.{name}" for name in CORE))
    assert not {"server_app", "hub_app", "client_app"} & names
