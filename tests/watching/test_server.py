"""The web server of the live page: what it serves, to whom, and what it refuses."""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mll_flower.watching.opening import open_source
from mll_flower.watching.server import WatchServer, serve
from mll_flower.watching.source import Source, View
from tests.support.run_folders import write_run


class Told(Source):
    """A source that shows what it is told, or raises it."""

    kind = "run"
    pause = 0.02

    def __init__(self, first: Any) -> None:
        self.told = first

    def look(self) -> View | None:
        told, self.told = self.told, None
        if isinstance(told, Exception):
            raise told
        view: View | None = told
        return view


def get(server: WatchServer, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    connection.putrequest("GET", path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    return connection.getresponse()


def events(stream: http.client.HTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
    kind = ""
    while line := stream.readline().decode().rstrip("\n"):
        if line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("data: "):
            yield kind, json.loads(line[6:])
            stream.readline()


@pytest.fixture
def told() -> Told:
    return Told(View("first", still={"edges": [1]}, moving={"charts": []}))


@pytest.fixture
def server(told: Told) -> Iterator[WatchServer]:
    with serve(told, "127.0.0.1", 0, "<i>name") as found:
        yield found


def test_there_is_the_page_and_nothing_else(server: WatchServer) -> None:
    answer = get(server, "/")
    page = answer.read().decode()
    assert answer.status == 200
    policy = answer.headers["Content-Security-Policy"]
    nonce = re.search(r"script-src 'nonce-([\w-]+)';", policy)
    assert nonce is not None
    assert page.count("<script") == page.count(f'<script nonce="{nonce.group(1)}">') == 1
    assert '<h1 id="title">&lt;i&gt;name</h1>' in page
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]
    assert answer.headers["X-Frame-Options"] == "DENY"
    addresses = set(re.findall(r"(?:https?:)?//[a-z][\w.]*\.[a-z]+[^\s\"'`]*", page))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    paths = ("/etc/passwd", "/../../etc/passwd", "//etc/passwd", "/%2e%2e/pyproject.toml")
    for path in (*paths, "/config.json", "/metrics.csv", "/events/x", "/index.html"):
        assert get(server, path).status == 404, path


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:9", 200),
        ("localhost:8765", 200),
        ("LOCALHOST", 200),
        ("[::1]:8765", 200),
        ("10.1.2.3:80", 200),
        ("evil.example", 421),
        ("evil.example:8765", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("", 421),
    ],
)
def test_a_foreign_name_is_refused(server: WatchServer, host: str, status: int) -> None:
    assert get(server, "/", Host=host).status == status
    if status != 200:
        assert get(server, "/events", Host=host).status == status


def test_only_reading_is_possible(server: WatchServer) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        with socket.create_connection(("127.0.0.1", server.server_address[1]), 20) as client:
            client.sendall(f"{method} / HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert b" 501 " in client.recv(100)


def test_every_reader_gets_what_is_new(server: WatchServer, told: Told) -> None:
    streams = [events(get(server, "/events")) for _ in range(3)]
    for stream in streams:
        assert next(stream) == ("still", {"edges": [1]})
        kind, view = next(stream)
        assert (kind, view["title"], view["version"]) == ("view", "first", 1)
    told.told = View("second", still={"edges": [1]}, moving={"charts": [7]}, age=1.0)
    for stream in streams:
        # The graph is the same, and is not sent again.
        kind, view = next(stream)
        assert (kind, view["title"], view["moving"]["charts"]) == ("view", "second", [7])
    told.told = View("second", still={"edges": [2]}, moving={"charts": [7]})
    for stream in streams:
        assert next(stream) == ("still", {"edges": [2]})
        assert next(stream)[0] == "view"


def test_the_same_view_is_sent_once(server: WatchServer, told: Told) -> None:
    stream = events(get(server, "/events"))
    next(stream), next(stream)
    told.told = View("first", still={"edges": [1]}, moving={"charts": []}, age=99.0)
    while told.told is not None:
        time.sleep(0.01)
    told.told = View("second")
    assert next(stream)[0] == "still"
    assert next(stream)[1]["version"] == 2


def test_trouble_is_shown_and_passes(server: WatchServer, told: Told) -> None:
    stream = events(get(server, "/events"))
    next(stream), next(stream)
    told.told = ValueError("config.json cannot be read: <b>")
    _, view = next(stream)
    assert view["trouble"] == "config.json cannot be read: <b>"
    assert view["title"] == "first"
    told.told = View("back", still={"edges": [1]})
    _, view = next(stream)
    assert (view["title"], "trouble" in view) == ("back", False)


def test_what_is_wrong_at_the_start_is_raised_and_the_port_is_free_again() -> None:
    with (
        pytest.raises(ValueError, match="no such"),
        serve(Told(ValueError("no such")), "127.0.0.1", 0, "x"),
    ):
        pass
    with serve(Told(View("a")), "127.0.0.1", 0, "x") as server:
        port = server.server_address[1]
        again = serve(Told(View("b")), "127.0.0.1", port, "x")
        with pytest.raises(OSError, match="choose another --port"):
            again.__enter__()
    with serve(Told(View("b")), "127.0.0.1", port, "x") as server:
        assert server.url == f"http://127.0.0.1:{port}/"


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "bad.toml").write_text("rounds = 3")
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.json").write_text("[]")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "network.toml").write_text("")
    write_run(tmp_path / "runs" / "one")
    for name, message in (
        ("nothing", "does not exist: for a run that has not begun, add --wait"),
        ("empty", "is neither a run's output"),
        ("notes.txt", "is a file: give the output folder"),
        ("bad.toml", "bad.toml"),
        ("sweep", "has no list of runs"),
        ("site", "network.toml"),
        ("runs", "it contains runs, such as .*one: name one of them"),
    ):
        with pytest.raises(ValueError, match=message):
            open_source(tmp_path / name)
    assert open_source(tmp_path / "nothing", wait=True).kind == "run"
    assert open_source(tmp_path / "runs" / "one").kind == "run"
