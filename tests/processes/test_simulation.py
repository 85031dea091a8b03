"""Starting Flower's processes and ending them; runs on them are in test_simulation.py."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from mll_flower.processes import simulation as launch
from mll_flower.processes.simulation import (
    RunFailed,
    SuperLink,
    app_directory,
    end_group,
    flower_environment,
    free_port,
    run_app,
    simulation_superlink,
)


def group_is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def start(code: str) -> subprocess.Popen[bytes]:
    """Start Python code in a session of its own, and wait until it says that it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    return process


CHILD = "import subprocess, sys; subprocess.Popen(['sleep', '600']); print('ready', flush=True)"


class TestEndGroup:
    def test_children_end_too(self):
        process = start(f"{CHILD}; import time; time.sleep(600)")
        end_group(process)
        assert process.returncode == -signal.SIGTERM
        assert group_is_gone(process.pid)

    def test_descendants_in_sessions_of_their_own(self, tmp_path):
        noted = tmp_path / "pid"
        process = start(
            "import subprocess, sys, time; "
            "child = subprocess.Popen(['sh', '-c', 'sleep 600 & wait'], start_new_session=True); "
            f"open({str(noted)!r}, 'w').write(str(child.pid)); "
            "print('ready', flush=True); time.sleep(600)"
        )
        child = int(noted.read_text())
        assert not group_is_gone(child)
        end_group(process)
        assert group_is_gone(process.pid)
        assert group_is_gone(child)

    def test_children_of_one_that_has_ended(self):
        process = start(CHILD)
        process.wait()
        assert not group_is_gone(process.pid)
        end_group(process)
        assert group_is_gone(process.pid)

    def test_one_that_does_not_listen(self):
        process = start(
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
            "print('ready', flush=True); time.sleep(600)"
        )
        end_group(process, patience=0.3)
        assert process.returncode == -signal.SIGKILL

    def test_one_that_is_gone(self):
        process = start("print('ready', flush=True)")
        process.wait()
        end_group(process)
        assert process.returncode == 0


class TestPairs:
    def test_flower_reads_what_was_meant(self):
        values = {
            "hubs": 5,
            "rate": 1e-05,
            "wait": True,
            "off": False,
            "empty": "",
            "path": "/a folder/with spaces=and more/run.toml",
            "back": "C:\\data\\new",
            "name": "Zürich \N{WHITE SMILING FACE} \N{GRINNING FACE}",
            "partition": "dirichlet(0.5)",
            "last": "x",
        }
        read = parse_config_args([launch._pairs(values)])
        assert read == values
        assert [type(v) for v in read.values()] == [type(v) for v in values.values()]


class TestEnvironment:
    def test_flower_is_kept_to_itself(self, tmp_path):
        env = flower_environment(tmp_path)
        assert env["FLWR_HOME"] == str(tmp_path)
        assert env["FLWR_TELEMETRY_ENABLED"] == "0"
        assert env["RAY_task_events_report_interval_ms"] == "0"
        assert env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
        # The tools of this very environment come first, activated or not.
        assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)

    def test_a_free_port_can_be_used(self):
        with socket.socket() as server:
            server.bind(("127.0.0.1", free_port()))

    def test_the_app_is_the_checkout(self):
        folder = app_directory()
        assert (folder / "server_app" / "app.py").is_file()
        assert (folder / "mll_flower" / "launch.py") == Path(launch.__file__)

    def test_no_app_is_an_error_with_a_remedy(self, tmp_path, monkeypatch):
        monkeypatch.setattr(launch, "__file__", str(tmp_path / "a" / "b" / "launch.py"))
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ValueError, match=r"run in a checkout of mll-flower, or .* pip install"):
            app_directory()


def test_a_superlink_that_cannot_start_says_why(tmp_path, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(launch, "free_port", lambda: taken.getsockname()[1])
        with (
            pytest.raises(RunFailed, match="flower-superlink ended at once") as error,
            simulation_superlink(tmp_path / "home"),
        ):
            pytest.fail("a SuperLink on a port that is taken")
    assert len(str(error.value).splitlines()) > 1  # the end of its log
    assert (tmp_path / "home" / "superlink.log").is_file()


def test_a_run_that_flower_does_not_take_is_a_failure(tmp_path):
    port = free_port()
    (tmp_path / "config.toml").write_text(
        f'[superlink]\ndefault = "mll"\n\n[superlink.mll]\naddress = "127.0.0.1:{port}"\n'
        "insecure = true\n"
    )
    nowhere = SuperLink(tmp_path, port, flower_environment(tmp_path))
    lines: list[str] = []
    with pytest.raises(RunFailed, match="'not started'") as error:
        run_app(nowhere, tmp_path / "no app", {}, {}, lines.append)
    assert lines
    assert lines[-1] in str(error.value)
