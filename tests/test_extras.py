"""Without torch, ray and matplotlib: what works, and what the rest says, in a fresh interpreter."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mll_flower.extras import EXTRAS, MissingPackage, explain, require
from tests.support.run_folders import write_run

# Runs each command of a list in one interpreter that has none of the extras' packages.
WITHOUT = """
import json, sys
for name in {names!r}:
    sys.modules[name] = None
import mll_flower
from typer.testing import CliRunner
from mll_flower.cli import app
mll_flower.MultiLevelStrategy(hubs=3, graph="ring", q=2, deadline=60)
answers = []
for arguments in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, arguments)
    answers.append([result.exit_code, result.output + repr(result.exception)])
print(json.dumps(answers))
"""
NAMES = [name for names in EXTRAS.values() for name in names]


def answers_without_extras(folder: Path, commands: list[list[str]]) -> list[tuple[int, str]]:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(names=NAMES), json.dumps(commands)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return [(code, text) for code, text in json.loads(run.stdout.splitlines()[-1])]


def test_networks_certificates_status_and_tables_work_without_extras(tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    write_run(tmp_path / "two")
    commands = [
        ["network", "--hubs", "3"],
        ["network", "--hubs", "3", "--save", "saved.toml"],
        ["network", "saved.toml"],
        ["example-network", "--hubs", "2", "-o", "network.toml"],
        ["certs", "network.toml"],
        ["status", "network.toml"],
        ["compare", "one", "two"],
        ["report", "one"],
        ["app", "the-app"],
        ["run", "--help"],
    ]
    answers = answers_without_extras(tmp_path, commands)
    for command, (code, text) in zip(commands, answers, strict=True):
        assert code == 0, f"{command}: {text}"
    assert (tmp_path / "certs" / "README.txt").is_file()
    assert (tmp_path / "one" / "report.html").is_file()
    assert (tmp_path / "the-app" / "server_app" / "app.py").is_file()


def test_every_other_command_names_its_extra(tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    commands = [
        ["run"],
        ["run", "--in-process"],
        ["plot", "one"],
        ["compare", "one", "--out", "both.png"],
        ["network", "--draw", "graph.png"],
        ["example-network", "-o", "network.toml"],
        ["hub", "network.toml", "--id", "a", "--insecure"],
        ["worker", "network.toml", "--hub", "a", "--number", "0", "--insecure"],
        ["up", "network.toml", "--insecure"],
    ]
    answers = answers_without_extras(tmp_path, commands)
    for command, (code, text) in zip(commands, answers, strict=True):
        if command[0] == "example-network":
            continue
        assert code == 2, f"{command}: {text}"
        lines = [line for line in text.splitlines() if "needs" in line]
        assert len(lines) == 1, f"{command}: {text}"
        assert re.search(r"Error: .* needs .*: pip install 'mll-flower\[torch\]'", lines[0]), text
        assert "Traceback" not in text
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "state").exists()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    require("this test", "json", "re")
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(MissingPackage) as error:
        require("this test", "json", "ray", "cvxpy")
    assert str(error.value) == (
        "this test needs ray, cvxpy: pip install 'mll-flower[torch,optimal]'"
    )
    assert explain(error.value) == str(error.value)
    deep = ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")
    assert explain(deep) == "this needs torch: pip install 'mll-flower[torch]'"
    assert explain(ModuleNotFoundError("no", name="mll_flower.nothing")) is None
