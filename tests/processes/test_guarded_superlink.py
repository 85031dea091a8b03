"""Attacks on a hub's SuperLink with a worker's files alone: stock is open to them, ours is not.

Real SuperLinks with real TLS, Flower's own commands, and raw HTTP.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from flwr.proto.control_pb2 import ListNodesResponse, ListRunsResponse, RegisterNodeRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest
from flwr.proto.node_pb2 import NodeInfo

from mll_flower.deployment.certs import make_certs, public_key, worker_key
from mll_flower.processes.fleet_filter import MAX_BODY, UNSIGNED_BODY
from tests.support.deployment import example_with
from tests.support.superlinks import PROTOBUF, Site, running_superlink, signature, status

BIG = 100 << 20  # bytes of a large body

APP = """
[project]
name = "attack"
version = "1.0.0"
[tool.flwr.app]
publisher = "attacker"
[tool.flwr.app.components]
serverapp = "attack:server"
clientapp = "attack:client"
[tool.flwr.app.config]
proof = ""
"""
CODE = """
import os, time
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
server = ServerApp()
client = ClientApp()

@server.main()
def main(grid, context):
    with open(context.run_config["proof"], "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
"""

# Runs several commands of Flower's in one process; prints the exit code and output of each.
FLWR = """
import json, sys
from mll_flower.processes.submit import _run_flwr
for line in sys.stdin:
    print(json.dumps(_run_flwr(*json.loads(line))), flush=True)
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_superlink(tmp_path_factory.mktemp("guarded"), guarded=True) as site:
        yield site


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_superlink(tmp_path_factory.mktemp("stock"), guarded=False) as site:
        yield site


@pytest.fixture(params=["stock", "guarded"])
def site(request: pytest.FixtureRequest) -> Site:
    return request.getfixturevalue(request.param)


def is_open(site: Site) -> bool:
    """Return whether an attack on this SuperLink is expected to succeed."""
    return site.link.port == site.port


def flwr(env: dict[str, str], *commands: list[str]) -> list[tuple[int, str]]:
    """Run Flower's commands one after the other; return their exit codes and outputs."""
    lines = "".join(json.dumps([*command]) + "\n" for command in commands)
    run = subprocess.run(
        [sys.executable, "-c", FLWR], env=env, input=lines, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return [tuple(json.loads(line)) for line in run.stdout.splitlines()]


def write_app(folder: Path) -> Path:
    folder.mkdir()
    (folder / "pyproject.toml").write_text(APP)
    (folder / "attack.py").write_text(CODE)
    return folder


def stranger_key(folder: Path) -> Path:
    """Return the private key of a worker of another network."""
    folder.mkdir()
    other = example_with(folder)
    make_certs(other, other.certs)
    return worker_key(other.certs, "a", 0)


def test_flower_s_commands(site: Site, tmp_path: Path) -> None:
    env = site.flwr_home(tmp_path / "home")
    app, proof = write_app(tmp_path / "app"), tmp_path / "proof"
    key = public_key(stranger_key(tmp_path / "other"))
    config = ["--run-config", f'proof="{proof}"']
    found = flwr(
        env,
        ["run", str(app), "mll", *config],
        ["list", "mll"],
        ["supernode", "register", str(key), "mll"],
        ["supernode", "list", "mll"],
        ["stop", "1", "mll"],
    )
    codes = [code for code, _ in found]
    if is_open(site):
        assert codes == [0, 0, 0, 0, 1], found
        assert "Run ID not found" in found[4][1]  # it has looked for this run, and would stop it
    else:
        assert 0 not in codes
        assert "Run ID not found" not in found[4][1]
    started, registered = runs_and_nodes(site)
    assert (started, registered) == ((1, 1) if is_open(site) else (0, 0))


def runs_and_nodes(site: Site) -> tuple[int, int]:
    """Return how many runs and workers the SuperLink knows, asked by the hub itself."""
    sent = request("POST /v1/control/list-runs HTTP/1.1", "Connection: close")
    runs = site.send(sent, site.link.port).partition(b"\r\n\r\n")[2]
    return len(ListRunsResponse.FromString(runs).run_dict), len(listed_nodes(site))


def listed_nodes(site: Site) -> list[NodeInfo]:
    sent = request("POST /v1/control/list-nodes HTTP/1.1", "Connection: close")
    nodes = site.send(sent, site.link.port).partition(b"\r\n\r\n")[2]
    return list(ListNodesResponse.FromString(nodes).nodes_info)


CONTROL = ["list-runs", "start-run", "stop-run", "list-nodes", "register-node", "stream-logs"]
RUNTIME = ["acquire-task", "pull-task-input", "get-nodes", "push-logs", "pull-object"]


@pytest.mark.parametrize(
    "path",
    [*(f"/v1/control/{name}" for name in CONTROL), *(f"/v1/runtime/{name}" for name in RUNTIME)],
)
def test_control_and_runtime_interfaces(site: Site, path: str) -> None:
    key = worker_key(site.network.certs, "a", 0)
    for headers in ([], signature(key)):
        sent = request(f"POST {path} HTTP/1.1", "Connection: close", *headers)
        assert is_flower_s(site.send(sent)) == is_open(site)
        assert is_flower_s(site.send(sent, site.link.port))


def is_flower_s(answer: bytes) -> bool:
    """Return whether an answer comes from the interface, be it an error, or from the filter."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return status(head) == 200 or body != b""


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    head = [line, "Host: hub", f"Content-Type: {PROTOBUF}", *headers]
    return "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body


@pytest.mark.parametrize(
    "target",
    [
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/..%2fcontrol/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/%2E%2E%2Fcontrol%2Flist-runs",
        "/v1/fleet/..;/control/list-runs",
        "/v1/fleet/..\\control\\list-runs",
        "/v1/fleet//../control/list-runs",
        "//v1/control/list-runs",
        "/v1/fleet/%00/../../control/list-runs",
        "/v1/control/list-runs?/v1/fleet/pull-messages",
        "/v1/control/list-runs#/v1/fleet/pull-messages",
        "/%76%31/control/list-runs",
        "https://127.0.0.1/v1/control/list-runs",
        "http://hub/v1/fleet/../control/list-runs",
        "hub:443",
        "*",
        "/docs",
        "/openapi.json",
        "/health",
        "/v1/fleet",
        "/v1/fleet/",
    ],
)
def test_paths_that_try_to_get_round_the_filter(guarded: Site, target: str) -> None:
    headers = [*signature(worker_key(guarded.network.certs, "a", 0)), "Connection: close"]
    for method in ("POST", "GET", "CONNECT"):
        assert status(guarded.send(request(f"{method} {target} HTTP/1.1", *headers))) in (404, 400)


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "post", "PRI"]
)
def test_other_methods(guarded: Site, method: str) -> None:
    for path in ("/v1/fleet/pull-messages", "/v1/control/list-runs"):
        sent = request(
            f"{method} {path} HTTP/1.1", "Connection: close", "X-HTTP-Method-Override: POST"
        )
        assert status(guarded.send(sent)) in (404, 400)


def test_requests_in_one_connection(guarded: Site) -> None:
    key = signature(worker_key(guarded.network.certs, "a", 0))
    good = request("POST /v1/fleet/pull-messages HTTP/1.1", *key)
    bad = request("POST /v1/control/list-runs HTTP/1.1", *key, "Connection: close")
    answers = guarded.send(good + bad).split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"401", b"404"]  # its node is not registered
    # A body that two parsers would cut in different ways, with a request hidden in it.
    hidden = f"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: hub\r\nContent-Type: {PROTOBUF}\r\n"
    hidden += "\r\n".join(key) + "\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    answers = guarded.send(hidden.encode() + b"0\r\n\r\n" + bad).split(b"HTTP/1.1 ")[1:]
    assert answers
    assert all(answer[:3] in (b"400", b"401", b"404") for answer in answers)


def test_upgrades_to_websockets_and_to_http_2(guarded: Site) -> None:
    websocket = ["Upgrade: websocket", "Sec-WebSocket-Version: 13"]
    websocket += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Connection: Upgrade, close"]
    h2c = ["Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__", "Connection: Upgrade, close"]
    for path in ("/v1/control/list-runs", "/v1/fleet/pull-messages"):
        for headers in (websocket, h2c):
            answer = guarded.send(request(f"GET {path} HTTP/1.1", *headers))
            assert status(answer) in (400, 404)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    assert status(guarded.send(preface)) in (0, 400, 404, 505)


def pieces(chunked: bool, *headers: str) -> Iterator[bytes]:
    """Yield the pieces of a request with a large body."""
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {BIG}"
    head = ["POST /v1/fleet/push-object HTTP/1.1", "Host: hub", f"Content-Type: {PROTOBUF}"]
    yield "\r\n".join([*head, length, "Connection: close", *headers, "", ""]).encode()
    piece = bytes(1 << 20)
    for _ in range(BIG // len(piece)):
        yield b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece
    if chunked:
        yield b"0\r\n\r\n"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_takes_memory_before_anyone_is_asked(site: Site, chunked: bool) -> None:
    before = site.memory
    answer = status(site.send(pieces(chunked)))
    grown = site.memory - before
    if is_open(site):
        assert grown > BIG / 2
    else:
        assert grown < BIG / 5
        assert answer in (0, 401)


def test_a_worker_s_own_body_is_bounded(guarded: Site) -> None:
    before = guarded.memory
    known = signature(worker_key(guarded.network.certs, "a", 0))
    assert MAX_BODY < BIG
    assert status(guarded.send(pieces(True, *known))) in (0, 413)
    # Somebody who knows a worker's public key, but has not the private one.
    unsigned = [known[0], known[1], "flwr-signature: AAAA"]
    path = "POST /v1/fleet/push-object HTTP/1.1"
    body = bytes(UNSIGNED_BODY + 1)
    sent = request(path, *unsigned, "Connection: close", body=body)
    assert status(guarded.send(sent)) == 413
    sent = request(path, *unsigned, "Connection: close", body=body[1:])
    assert is_flower_s(guarded.send(sent))  # it was small enough to be looked at
    assert guarded.memory - before < MAX_BODY * 2.5


def test_headers_without_end(guarded: Site) -> None:
    def headers() -> Iterator[bytes]:
        yield b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: hub\r\nA: "
        for _ in range(64):
            yield b"a" * (1 << 18)

    before = guarded.memory
    assert status(guarded.send(headers())) in (0, 400, 431)
    assert guarded.memory - before < 8 << 20


def test_who_is_a_worker(guarded: Site, tmp_path: Path) -> None:
    own, foreign = worker_key(guarded.network.certs, "a", 0), stranger_key(tmp_path / "other")

    fleet = RegisterNodeFleetRequest(public_key=pem(own))
    answer = guarded.post("/v1/fleet/register-node", fleet.SerializeToString(), own)
    assert answer not in (200, 404)  # nobody registers a worker from outside
    for key in (own, foreign):
        control = RegisterNodeRequest(public_key=pem(key)).SerializeToString()
        assert guarded.post("/v1/control/register-node", control, key) == 404
        assert guarded.post("/v1/control/register-node", control, key, guarded.link.port) == 200
    assert activate(guarded, own) == 200
    assert (
        activate(guarded, foreign) == 401
    )  # Flower knows this key now, but it is none of the hub's


def activate(site: Site, key: Path) -> int:
    """Do the first thing that a SuperNode does; return the status of the answer."""
    message = ActivateNodeRequest(public_key=pem(key), heartbeat_interval=30.0)
    return site.post("/v1/fleet/activate-node", message.SerializeToString(), key)


def pem(key: Path) -> bytes:
    from flwr.cli.supernode.register import try_load_public_key

    return try_load_public_key(public_key(key))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user for a moment")
def test_other_users_of_the_machine(guarded: Site) -> None:
    sent = request("POST /v1/control/list-runs HTTP/1.1", "Connection: close")
    assert status(guarded.send(sent, guarded.link.port)) == 200
    os.seteuid(65534)
    try:
        plain = socket.socket()  # it belongs to that user for good
    finally:
        os.seteuid(0)
    plain.connect(("127.0.0.1", guarded.link.port))
    with guarded.encrypt(plain) as connection:
        connection.sendall(sent)
        assert status(connection.recv(1 << 16)) == 403


def test_a_run_of_the_hub_itself(guarded: Site, tmp_path: Path) -> None:
    app, proof = write_app(tmp_path / "app"), tmp_path / "proof"
    config = ["--run-config", f'proof="{proof}"']
    ((code, output),) = flwr(guarded.link.env, ["run", str(app), "mll", *config])
    assert code == 0, output
    wait(lambda: proof.exists() and proof.read_text() != "")
    process = psutil.Process(int(proof.read_text()))
    assert "--token-file" in process.cmdline()
    tree = [psutil.Process(guarded.pid), *psutil.Process(guarded.pid).children(recursive=True)]
    assert process in tree
    assert not any("--token" in member.cmdline() for member in tree)
    database = list(guarded.folder.glob("superlink.db*"))
    assert database
    for path in (*database, proof):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    process.kill()


def test_a_worker_whose_key_was_removed(guarded: Site, tmp_path: Path) -> None:
    first, second = (worker_key(guarded.network.certs, "a", number) for number in (0, 1))

    def submit(*keys: Path) -> str:
        names = [str(public_key(key)) for key in keys]
        command = [sys.executable, "-m", "mll_flower.processes.submit", "mll"]
        run = subprocess.run(
            [*command, str(tmp_path / "no app"), "", *names],
            env=guarded.link.env,
            capture_output=True,
            text=True,
        )
        return run.stdout

    submit(first, second)
    assert activate(guarded, second) == 200
    submit(first)
    assert activate(guarded, second) != 200
    state = {node.public_key: node.status for node in listed_nodes(guarded)}
    assert state[pem(second)] == "unregistered"
    assert state[pem(first)] != "unregistered"
    assert f"{public_key(second)} was registered with this SuperLink once and then removed" in (
        submit(first, second)
    )


def wait(condition: Callable[[], bool], timeout: float = 60.0) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
