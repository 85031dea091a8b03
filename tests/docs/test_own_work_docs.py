"""docs/own-work.md: its files and commands work, word by word, and it names every choice."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from mll_flower.cli import app
from mll_flower.config import OPTIMISERS
from mll_flower.deployment.run_config import hub_run_config
from mll_flower.results.runs import load_run
from mll_flower.tasks import own_code
from mll_flower.tasks.metrics import NUMBER_LOSSES, NUMBER_METRICS
from mll_flower.training.run_engine import forget_engines
from tests.support.deployment import example_with

PAGE = (Path(__file__).parents[2] / "docs" / "own-work.md").read_text()
FILES = dict(re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = [
    shlex.split(line)[1:]
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("mll-flower run")
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the page's Python files, which this process forgets afterwards."""
    modules = [name for name in FILES if name.endswith(".py")]
    for name in modules:
        (tmp_path / name).write_text(FILES[name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    import sys

    for name in modules:
        sys.modules.pop(name.removesuffix(".py"), None)
    own_code._executed.clear()
    forget_engines()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_commands_learn(command: list[str], folder: Path) -> None:
    small = ["--in-process", "--slots", "256", "--output", "out"]
    with patch("mll_flower.results.plots.plot_run"):
        result = CliRunner().invoke(app, [*command, *small])
    assert result.exit_code == 0, result.output
    run = load_run(folder / "out")
    first = run.series("slots", "accuracy")[1][0]
    assert run.best("accuracy") > max(0.6, first + 0.2)
    assert f"test {run.metric}" in result.output


def test_the_network_file_finds_the_code_beside_it(folder: Path) -> None:
    assert len(COMMANDS) == 3
    table = FILES["network.toml"].partition("[run-config]\n")[2]
    network = example_with(folder, ('dataset = "digits"\nmodel = "mlp"\n', table))
    values = hub_run_config(network, "a", folder / "state", insecure=True)
    assert values["code-dir"] == str(folder)
    assert values["model"] == "my_work:net"


def test_every_choice_is_named() -> None:
    for name in (*OPTIMISERS, *NUMBER_LOSSES, *NUMBER_METRICS, *own_code.OWN_KEYS, "code-dir"):
        assert f"`{name}`" in PAGE, name
