"""What a SuperLink answers on its public port: calls of its own workers, and nothing else.

Flower serves three interfaces from one application: the fleet interface for workers, the control
interface (start, stop and list runs, register workers) and the runtime interface (for the ServerApp
and what starts it). Without an account system it asks nobody on the last two who they are.
`FleetFilter` stands before that application: on the private address, which is on loopback, all
interfaces answer, to processes of the hub's own user; on every other address only the fleet
interface does, and only to callers who name the key of one of the hub's workers.

A body is read here, and reaches Flower only when it is complete. It may be large only if the
headers carry a worker's signature, the same that Flower checks after it has read the body.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER

from mll_flower.processes.local_callers import is_own_connection

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

UNSIGNED_BODY = 64 << 10
"""Largest body in bytes that is read from a caller who has proved nothing yet."""

MAX_BODY = 64 << 20
"""Largest body in bytes of a worker. Flower cuts a model into pieces of 5 MB."""

# Whole paths, letters and hyphens alone: no dots, escapes or doubled slashes to interpret.
FLEET_PATH = re.compile(rb"/v1/fleet/[a-z]+(-[a-z]+)*")

_PROOFS = {
    name.encode()
    for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER)
}


class WorkerKeys:
    """The public keys of a hub's workers.

    Parameters
    ----------
    files : Iterable[Path]
        Public keys in OpenSSH form, as ``mll-flower certs`` makes them.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._keys: dict[bytes, ec.EllipticCurvePublicKey] = {}
        for path in files:
            try:
                key = serialization.load_ssh_public_key(path.read_bytes())
            except (OSError, ValueError) as error:
                raise ValueError(f"{path} is no public key in OpenSSH form ({error})") from None
            if not isinstance(key, ec.EllipticCurvePublicKey):
                raise ValueError(f"{path}: Flower takes keys of `ssh-keygen -t ecdsa` only")
            self._keys[_pem(key)] = key

    def is_named(self, headers: dict[bytes, bytes]) -> bool:
        """Return whether the caller names one of these keys as its own."""
        return _header(headers, FLEET_HTTP_PUBLIC_KEY_HEADER) in self._keys

    def has_signed(self, headers: dict[bytes, bytes]) -> bool:
        """Return whether one of these keys has signed the headers."""
        key = self._keys.get(_header(headers, FLEET_HTTP_PUBLIC_KEY_HEADER))
        if key is None:
            return False
        signature = _header(headers, FLEET_HTTP_SIGNATURE_HEADER)
        try:
            key.verify(signature, headers[TIMESTAMP_HEADER.encode()], ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, KeyError):
            return False
        return True


class FleetFilter:
    """An ASGI application that passes on what may pass.

    Parameters
    ----------
    app : Application
        Flower's application.
    private : tuple[str, int]
        Host and port of the private address.
    keys : WorkerKeys, optional
        Keys of the workers; without them (no TLS, no authentication) anyone may be a worker.
    max_body : int
        Largest body in bytes.
    """

    def __init__(
        self,
        app: Application,
        private: tuple[str, int],
        keys: WorkerKeys | None,
        max_body: int = MAX_BODY,
    ) -> None:
        self.app, self.private, self.keys, self.max_body = app, private, keys, max_body

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None  # the server then ends the connection
        if tuple(scope["server"]) == self.private:
            if is_own_connection(scope["client"], self.private):
                return await self.app(scope, receive, send)
            return await _refuse(send, 403)
        if scope["method"] != "POST" or not FLEET_PATH.fullmatch(scope["raw_path"]):
            return await _refuse(send, 404)
        headers = dict(scope["headers"])
        if sum(name in _PROOFS for name, _ in scope["headers"]) > len(_PROOFS & headers.keys()):
            return await _refuse(send, 400)  # Flower might look at another of two than we do
        if self.keys is not None and not self.keys.is_named(headers):
            return await _refuse(send, 401)
        body = await _read(receive, self._limit(headers))
        if body is None:
            return await _refuse(send, 413)
        return await self.app(scope, _replay(body, receive), send)

    def _limit(self, headers: dict[bytes, bytes]) -> int:
        trusted = self.keys is None or self.keys.has_signed(headers)
        return self.max_body if trusted else min(self.max_body, UNSIGNED_BODY)


async def _read(receive: Receive, limit: int) -> list[Message] | None:
    """Return the messages of a body; None once it has more bytes than the limit, or breaks off."""
    messages: list[Message] = []
    size = 0
    while True:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        if size > limit or message["type"] != "http.request":
            return None
        if not message.get("more_body", False):
            return messages


def _replay(messages: list[Message], receive: Receive) -> Receive:
    """Return a function that gives the messages again, each once, and then what comes after."""

    async def next_message() -> Message:
        return messages.pop(0) if messages else await receive()

    return next_message


async def _refuse(send: Send, status: int) -> None:
    headers = [(b"connection", b"close"), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _header(headers: dict[bytes, bytes], name: str) -> bytes:
    """Return what a header holds in base64; empty if it holds no such thing."""
    try:
        return base64.b64decode(headers.get(name.encode(), b""), validate=True)
    except binascii.Error:
        return b""


def _pem(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a key as SuperNodes name theirs."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
