"""A certificate for loopback that never ends, beside the one that the public port shows."""

from __future__ import annotations

import asyncio
import socket
import ssl
import stat
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from cryptography import x509

from mll_flower.processes.private_certificate import CERTIFICATE, KEY, make_private_certificate
from mll_flower.processes.two_certificates import TwoCertificatesServer


def test_it_is_for_the_owner_alone_and_ends_with_the_calendar(tmp_path: Path) -> None:
    first = make_private_certificate(tmp_path).read_bytes()
    for name in (CERTIFICATE, KEY):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    read = x509.load_pem_x509_certificate(first)
    assert (read.not_valid_before_utc.year, read.not_valid_after_utc.year) == (2000, 9999)
    assert make_private_certificate(tmp_path).read_bytes() != first


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(scope["server"][1]).encode()})


def test_each_socket_shows_its_own(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("public", "private")}
    for folder in folders.values():
        folder.mkdir()
        make_private_certificate(folder)
    public, private = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    shown = folders["public"] / CERTIFICATE, folders["public"] / KEY
    config = uvicorn.Config(
        app,
        ssl_certfile=str(shown[0]),
        ssl_keyfile=str(shown[1]),
        lifespan="off",
        log_level="error",
    )
    pair = folders["private"] / CERTIFICATE, folders["private"] / KEY
    server = TwoCertificatesServer(config, private, *pair)
    thread = threading.Thread(target=asyncio.run, args=(server.serve([public]),))
    thread.start()
    try:
        while not server.started or len(server.servers) < 2:
            time.sleep(0.02)
        ports = {"public": public.getsockname()[1], "private": private.getsockname()[1]}
        for name, port in ports.items():
            trust = ssl.create_default_context(cafile=str(folders[name] / CERTIFICATE))
            with httpx.Client(verify=trust, trust_env=False) as client:
                assert client.get(f"https://127.0.0.1:{port}/").text == str(port)
                other = next(p for p in ports.values() if p != port)
                with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                    client.get(f"https://127.0.0.1:{other}/")
    finally:
        server.should_exit = True
        thread.join()
    assert private.fileno() == -1, "nothing is left open"
