"""A SuperLink's config, its health and its newest run; Flower itself is not started here."""

from __future__ import annotations

import json
import os
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from mll_flower.processes.flower_environment import free_port
from mll_flower.processes.process_tree import Processes
from mll_flower.processes.superlink import CONNECTION, SuperLink, SuperLinkFailed

# Serves Flower's health check on a port, after a moment.
FAKE = """
import http.server, sys, time
time.sleep(0.3)
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


def superlink(folder: Path, ca: Path | None = None) -> SuperLink:
    return SuperLink(folder / "home", f"127.0.0.1:{free_port()}", dict(os.environ), ca)


def read_config(link: SuperLink) -> dict[str, object]:
    return tomllib.loads((link.home / "config.toml").read_text())["superlink"]


def test_the_config_names_the_one_connection(tmp_path: Path) -> None:
    link = superlink(tmp_path)
    link.write_config()
    expected = {"address": link.address, "insecure": True}
    assert read_config(link) == {"default": CONNECTION, CONNECTION: expected}


def test_with_tls_the_config_names_the_authority(tmp_path: Path) -> None:
    link = superlink(tmp_path, tmp_path / "it's a \\ folder" / "ca.crt")
    link.write_config()
    connection = read_config(link)[CONNECTION]
    assert connection == {"address": link.address, "root-certificates": str(link.ca)}


def test_start_waits_until_it_answers(tmp_path: Path) -> None:
    link = superlink(tmp_path)
    assert not link.is_up()
    with Processes() as processes:
        link.start(processes, "fake", [sys.executable, "-c", FAKE, str(link.port)])
        assert link.is_up()
    assert not link.is_up()


def test_one_that_ends_at_once(tmp_path: Path) -> None:
    with Processes() as processes, pytest.raises(SuperLinkFailed, match="fake ended at once"):
        superlink(tmp_path).start(processes, "fake", ["false"])


def test_one_that_does_not_answer(tmp_path: Path) -> None:
    with (
        Processes() as processes,
        pytest.raises(SuperLinkFailed, match=r"fake did not answer within 0\.3 s"),
    ):
        superlink(tmp_path).start(processes, "fake", ["sleep", "60"], timeout=0.3)


def test_the_wait_can_be_ended(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with Processes() as processes:
        superlink(tmp_path).start(processes, "fake", ["sleep", "60"], stop=stop)


class _Unhealthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def unhealthy() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), _Unhealthy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_answer_that_is_an_error_is_not_health(tmp_path: Path, unhealthy: int) -> None:
    assert not SuperLink(tmp_path, f"127.0.0.1:{unhealthy}", {}).is_up()


@pytest.mark.parametrize(
    ("listing", "status"),
    [
        (
            {
                "runs": [
                    {"created-at": "2026-01-02", "status": "finished:failed"},
                    {"created-at": "2026-01-03", "status": "running"},
                    {"created-at": "2026-01-01", "status": "finished:completed"},
                ]
            },
            "running",
        ),
        ({"runs": []}, None),
        ({"success": False}, None),
        (None, None),
    ],
)
def test_the_status_of_the_newest_run(tmp_path: Path, listing: object, status: str | None) -> None:
    command = tmp_path / "flwr"
    (tmp_path / "listing").write_text("" if listing is None else json.dumps(listing))
    command.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\ncat {tmp_path}/listing\n')
    command.chmod(0o755)
    env = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    link = SuperLink(tmp_path, "127.0.0.1:1", env)
    assert link.newest_run_status() == status
    assert (tmp_path / "arguments").read_text().split() == ["list", CONNECTION, "--format", "json"]
