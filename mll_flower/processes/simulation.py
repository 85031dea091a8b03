"""Start Flower for one run and leave nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

_NAME = "mll"  # of the SuperLink in the Flower config of its own


class RunFailed(RuntimeError):
    """A run that Flower did not complete."""


def app_directory() -> Path:
    """Find the Flower app: the project's folder, with pyproject.toml and the app's packages."""
    for folder in (Path(__file__).resolve().parent.parent, Path.cwd()):
        if (folder / "pyproject.toml").is_file() and (folder / "server_app").is_dir():
            return folder
    raise ValueError(
        "the Flower app is not here: run in a checkout of mll-flower, or install it from one "
        "with pip install -e ."
    )


def free_port() -> int:
    """Return a port of the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def flower_environment(home: Path) -> dict[str, str]:
    """Environment for Flower's commands: a home of their own, quiet, no installations."""
    tools = str(Path(sys.executable).parent)  # also when the environment is not activated
    return {
        **os.environ,
        "PATH": tools + os.pathsep + os.environ.get("PATH", ""),
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Ray keeps 4 KB for each of the last 100,000 messages, for a dashboard nobody opens.
        "RAY_task_events_report_interval_ms": "0",
        "PYTHONUNBUFFERED": "1",
    }


@dataclass(frozen=True)
class SuperLink:
    """A SuperLink for simulations, in a process of its own."""

    home: Path
    port: int
    env: dict[str, str]

    def status(self) -> str:
        """Return the status of the newest run, such as ``finished:completed``."""
        listing = subprocess.run(
            ["flwr", "ls", _NAME, "--format", "json"],
            env=self.env,
            capture_output=True,
            text=True,
            check=True,
        )
        runs = json.loads(listing.stdout)["runs"]
        return str(max(runs, key=lambda run: str(run.get("created-at", "")))["status"])


@contextmanager
def simulation_superlink(home: Path | None = None) -> Iterator[SuperLink]:
    """Start a SuperLink on loopback with ports and (unless given) a home of its own."""
    own = home is None
    folder = Path(tempfile.mkdtemp(prefix="mll-flower-")) if home is None else home
    folder.mkdir(parents=True, exist_ok=True)
    port, control = free_port(), free_port()
    (folder / "config.toml").write_text(
        f'[superlink]\ndefault = "{_NAME}"\n\n[superlink.{_NAME}]\n'
        f'address = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    env = flower_environment(folder)
    words = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"]
    words += ["--host", "127.0.0.1", "--port", str(port)]
    words += ["--control-api-address", f"127.0.0.1:{control}"]
    with (folder / "superlink.log").open("w") as log:
        # A session of its own: a Ctrl-C in the terminal is ours to handle.
        process = subprocess.Popen(
            words, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _wait_until_up(process, port, folder / "superlink.log")
        yield SuperLink(folder, port, env)
    finally:
        end_group(process)
        if own:
            shutil.rmtree(folder, ignore_errors=True)


def run_app(
    superlink: SuperLink,
    app: Path,
    config: Mapping[str, Any],
    federation: Mapping[str, Any],
    on_line: Callable[[str], None],
) -> None:
    """Run an app, giving each line of its log to ``on_line``; raise RunFailed if it fails."""
    words = ["flwr", "run", str(app), _NAME, "--stream"]
    words += ["--federation-config", _pairs(federation), "--run-config", _pairs(config)]
    process = subprocess.Popen(
        words,
        env=superlink.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line.rstrip())
            on_line(lines[-1])
        process.wait()
    finally:
        end_group(process)
    status = superlink.status() if process.returncode == 0 else "not started"
    if status != "finished:completed":
        tail = "\n".join(lines[-15:])
        raise RunFailed(f"the run ended as {status!r}; its last words were:\n{tail}")


def end_group(process: subprocess.Popen[Any], patience: float = 10.0) -> None:
    """End a process that was started in a session of its own, with all its descendants."""
    # Their groups too: a SuperLink starts what executes its runs in another session.
    groups = {process.pid, *_descendant_groups(process.pid)}
    for word in (signal.SIGTERM, signal.SIGKILL):
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, word)
        end = time.monotonic() + patience
        while groups and time.monotonic() < end:
            process.poll()
            groups = {group for group in groups if _group_alive(group)}
            time.sleep(0.05)
    process.wait()


def _descendant_groups(root: int) -> set[int]:
    """Process groups of all that a process has started, directly or not."""
    words = ["ps", "-A", "-o", "pid=,ppid=,pgid="]
    listing = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    children: dict[int, list[tuple[int, int]]] = {}
    for line in listing.splitlines():
        pid, parent, group = map(int, line.split())
        children.setdefault(parent, []).append((pid, group))
    groups: set[int] = set()
    ancestors = [root]
    while ancestors:
        for pid, group in children.get(ancestors.pop(), []):
            ancestors.append(pid)
            groups.add(group)
    return groups


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _wait_until_up(process: subprocess.Popen[Any], port: int, log: Path) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RunFailed(f"flower-superlink ended at once:\n{log.read_text()[-2000:]}")
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=1.0).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise RunFailed(f"flower-superlink was not up after 60 s:\n{log.read_text()[-2000:]}")


def _pairs(values: Mapping[str, Any]) -> str:
    # JSON's numbers, strings and booleans are TOML's.
    # Not its escapes for what is not ASCII, though.
    return " ".join(f"{key}={json.dumps(v, ensure_ascii=False)}" for key, v in values.items())
