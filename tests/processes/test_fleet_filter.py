"""The filter before a SuperLink, on an application that says what reaches it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from mll_flower.processes import local_callers
from mll_flower.processes.fleet_filter import UNSIGNED_BODY, FleetFilter, WorkerKeys
from mll_flower.processes.local_callers import is_own_connection
from tests.support.superlinks import signature

PRIVATE = ("127.0.0.1", 5000)
PUBLIC = ("192.0.2.1", 9400)


class Flower:
    """Reads the whole body, notes it, and answers 200."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def write_key(path: Path) -> Path:
    key = ec.generate_private_key(ec.SECP384R1())
    openssh = serialization.PrivateFormat.OpenSSH
    none = serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, openssh, none))
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    path.with_suffix(".pub").write_bytes(public)
    return path


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    return write_key(tmp_path / "worker")


def ask(
    app: Any,
    *pieces: bytes,
    path: str = "/v1/fleet/push-object",
    headers: Iterable[str] = (),
    server: tuple[str, int] = PUBLIC,
    end: str = "http.request",
    method: str = "POST",
) -> int:
    """Send a request in pieces; return the status of the answer."""
    pairs = [header.split(": ", 1) for header in headers]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "server": server,
        "client": ("192.0.2.7", 4711),
        "headers": [(name.lower().encode(), value.encode()) for name, value in pairs],
    }
    sent = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages = [*sent, {"type": end, "body": b"", "more_body": False}]
    status: list[int] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        status.append(message.get("status", 0))

    asyncio.run(app(scope, receive, send))
    return status[0]


def test_a_body_arrives_whole(worker: Path) -> None:
    flower = Flower()
    app = FleetFilter(flower, PRIVATE, WorkerKeys([worker.with_suffix(".pub")]))
    assert ask(app, b"one ", b"two", headers=signature(worker)) == 200
    assert flower.bodies == [b"one two"]


def test_bodies_have_limits(worker: Path) -> None:
    flower = Flower()
    keys = WorkerKeys([worker.with_suffix(".pub")])
    app = FleetFilter(flower, PRIVATE, keys, max_body=3 * UNSIGNED_BODY)
    piece = bytes(UNSIGNED_BODY)
    signed = signature(worker)
    assert ask(app, piece, piece, piece, headers=signed) == 200
    assert ask(app, piece, piece, piece, b"x", headers=signed) == 413
    forged = [signed[0], "flwr-timestamp: now", signed[2]]
    for headers in (forged, signed[:2], signed[:1], [signed[0], signed[1], "flwr-signature: ?"]):
        assert ask(app, piece, headers=headers) == 200  # Flower says no; it is small, at least
        assert ask(app, piece, b"x", headers=headers) == 413
    assert len(flower.bodies) == 5
    anyone = FleetFilter(flower, PRIVATE, None, max_body=3 * UNSIGNED_BODY)
    assert ask(anyone, piece, piece) == 200
    assert ask(anyone, piece, piece, piece, b"x") == 413


def test_a_body_that_breaks_off_reaches_nobody(worker: Path) -> None:
    flower = Flower()
    app = FleetFilter(flower, PRIVATE, None)
    ask(app, b"half", end="http.disconnect")
    assert flower.bodies == []


def test_only_the_hub_s_workers(worker: Path, tmp_path: Path) -> None:
    flower = Flower()
    app = FleetFilter(flower, PRIVATE, WorkerKeys([worker.with_suffix(".pub")]))
    stranger = signature(write_key(tmp_path / "stranger"))
    assert ask(app, headers=[]) == 401
    assert ask(app, headers=stranger) == 401
    assert ask(app, headers=["flwr-public-key: %%%"]) == 401
    # Two of a kind: the filter must not look at one, and Flower at the other.
    assert ask(app, headers=[*stranger, *signature(worker)]) == 400
    assert ask(app, headers=[*signature(worker), *stranger]) == 400
    assert flower.bodies == []


@pytest.mark.parametrize("path", ["/v1/control/list-runs", "/v1/fleet/", "/v1/fleet/a/../b", "/"])
def test_other_paths(worker: Path, path: str) -> None:
    flower = Flower()
    app = FleetFilter(flower, PRIVATE, None)
    assert ask(app, path=path) == 404
    assert ask(app, method="GET") == 404
    assert flower.bodies == []


def test_the_private_address_is_host_and_port(monkeypatch: pytest.MonkeyPatch) -> None:
    flower = Flower()
    app = FleetFilter(flower, PRIVATE, None)
    own = {"path": "/v1/control/list-runs"}
    # Nobody is connected there, so the caller is none of ours.
    assert ask(app, server=PRIVATE, **own) == 403
    monkeypatch.setattr("mll_flower.processes.fleet_filter.is_own_connection", lambda *_: True)
    assert ask(app, server=PRIVATE, **own) == 200
    for other in (("192.0.2.1", 5000), ("127.0.0.1", 5001)):
        assert ask(app, server=other, **own) == 404


def test_keys_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing\.pub is no public key in OpenSSH form"):
        WorkerKeys([tmp_path / "missing.pub"])
    (tmp_path / "bad.pub").write_text("nonsense")
    with pytest.raises(ValueError, match=r"bad\.pub is no public key in OpenSSH form"):
        WorkerKeys([tmp_path / "bad.pub"])
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    text = other.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (tmp_path / "other.pub").write_bytes(text)
    with pytest.raises(ValueError, match="ssh-keygen -t ecdsa"):
        WorkerKeys([tmp_path / "other.pub"])


def test_whose_connection_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as client:
            caller = client.getsockname()
            assert is_own_connection(caller, address)
            assert not is_own_connection(address, (*caller[:1], 1))
            monkeypatch.setattr(local_callers.os, "getuid", lambda: 12345)
            assert is_own_connection(caller, address) == (local_callers.os.geteuid() == 0)
        # It has closed its end; Linux then no longer says whose it was.
        assert not is_own_connection(caller, address)
    assert not is_own_connection(None, address)
    monkeypatch.setattr(local_callers, "_TABLE", tmp_path / "not on this system")
    assert is_own_connection(None, address)
