"""Real runs on Flower that are killed: nothing is left, and the results so far can be used."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from mll_flower.processes.process_tree import is_alive

pytestmark = pytest.mark.timeout(400)

COMMAND = str(Path(sys.executable).parent / "mll-flower")
SETTINGS = {
    "hubs": 2,
    "workers-per-hub": 1,
    "tau": 2,
    "q": 1,
    "slots": 200_000,
    "model": "logistic",
    "evaluate-every": 200,
    "evaluate-limit": 100,
    "checkpoint-every": 1,
    "actors": 1,
}
OPTIONS = [text for key, value in SETTINGS.items() for text in (f"--{key}", str(value))]
SECONDS = 10.0


def _as_in_a_terminal() -> None:
    """Ignore no signal; a shell's background jobs, as the tests may be one, ignore Ctrl-C."""
    for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(kind, signal.SIG_DFL)


class KilledRun:
    """A run in a process of its own, with a place of its own for temporary folders."""

    def __init__(self, folder: Path) -> None:
        self.output = folder / "out"
        # Short, because the paths of Ray's sockets begin with it.
        self.temporary = Path(tempfile.mkdtemp(prefix="m", dir="/tmp"))
        self.mark = f"TEST_{uuid4().hex}"
        self.process = subprocess.Popen(
            [COMMAND, "run", *OPTIONS, "--output", str(self.output)],
            cwd=folder,
            env={**os.environ, "TMPDIR": str(self.temporary), self.mark: "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_as_in_a_terminal,
        )
        self.started: set[psutil.Process] = set()

    def wait_until_it_trains(self) -> None:
        end = time.monotonic() + 120
        checkpoint = self.output / "checkpoint.safetensors"
        while not checkpoint.is_file():
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.2)
        self.started = self.running()
        names = " ".join(process.name() for process in self.started)
        assert "raylet" in names  # not only our own process
        assert list(self.temporary.iterdir()) != []

    def running(self) -> set[psutil.Process]:
        """Return every process of the run, by its environment and by descent."""
        found = set()
        for process in psutil.process_iter():
            try:
                if self.mark in process.environ() and is_alive(process):
                    found.update({process, *process.children(recursive=True)})
            except psutil.Error:
                continue
        return found

    def left(self) -> list[object]:
        processes = {p for p in self.started | self.running() if is_alive(p)}
        return [*processes, *self.temporary.iterdir()]

    def clean_up(self) -> None:
        for process in self.started | self.running():
            if is_alive(process):
                process.kill()
        self.process.wait()
        shutil.rmtree(self.temporary, ignore_errors=True)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[KilledRun]:
    started = KilledRun(tmp_path)
    try:
        started.wait_until_it_trains()
        yield started
    finally:
        started.clean_up()


def wait_until_nothing_is_left(run: KilledRun) -> float:
    start = time.monotonic()
    while left := run.left():
        assert time.monotonic() - start < SECONDS, left
        time.sleep(0.1)
    return time.monotonic() - start


def test_nothing_is_left_of_a_killed_run(run: KilledRun) -> None:
    run.process.kill()
    print(f"{wait_until_nothing_is_left(run):.1f} s")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_run_that_is_asked_to_end_says_how_to_go_on(run: KilledRun, kind: signal.Signals) -> None:
    run.process.send_signal(kind)
    print(f"{wait_until_nothing_is_left(run):.1f} s")
    said, _ = run.process.communicate()
    assert run.process.returncode == 128 + kind
    assert f"The results so far are in {run.output}" in said
    assert "Traceback" not in said
    if kind is not signal.SIGINT:
        return
    # The command that it prints goes on, in the same folder.
    before = json.loads((run.output / "progress.json").read_text())["slot"]
    command = shlex.split(said.strip().splitlines()[-1])
    assert command[:2] == ["mll-flower", "resume"]
    again = subprocess.Popen(
        [COMMAND, *command[1:], "--in-process"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        end = time.monotonic() + 60
        while json.loads((run.output / "progress.json").read_text()).get("slot", 0) <= before:
            assert again.poll() is None, again.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.2)
    finally:
        again.kill()
        again.communicate()
