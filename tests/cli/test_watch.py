"""``mll-flower watch``: started, opened, stopped; and what it refuses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mll_flower.cli import app
from tests.support.deployment import COMMAND, example_with
from tests.support.run_folders import write_run


def test_it_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    write_run(tmp_path / "first")
    process = subprocess.Popen(
        [COMMAND, "watch", "first", "--port", "0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(
            r"Watching first: (http://127\.0\.0\.1:\d+/) \(Ctrl-C ends it\)\n", line
        )
        assert found is not None, line
        with urllib.request.urlopen(found.group(1), timeout=20) as page:
            assert b"<title>first</title>" in page.read()
        # A browser that is connected does not keep it from ending.
        with urllib.request.urlopen(f"{found.group(1)}events", timeout=20) as events:
            events.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "nothing does not exist: for a run that has not begun, add --wait"),
        (["."], "is no run: for its deployment, give network.toml"),
        (["network.toml"], "ca.crt"),
        (["first", "--port", "99999"], "99999"),
        (["first", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1:8765"),
    ],
)
def test_what_cannot_be_watched_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "first")
    example_with(tmp_path)
    result = CliRunner().invoke(app, ["watch", *arguments], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert message in result.output + (result.stderr if result.stderr_bytes else "")
