"""What a worker is told that its SuperLink turns away: about clocks and certificates."""

from __future__ import annotations

import re
import ssl
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mll_flower.deployment.certs import make_certs
from mll_flower.deployment.clock import why_turned_away
from mll_flower.deployment.network_file import NetworkFile
from mll_flower.deployment.sites import WorkerSite
from mll_flower.processes.flower_environment import free_port
from tests.support.deployment import example_with


class Dated(BaseHTTPRequestHandler):
    """Answers with a clock that is some seconds ahead of ours."""

    ahead = 0.0

    def do_GET(self) -> None:
        self.send_response_only(404)
        self.send_header("Date", formatdate(time.time() + self.ahead, usegmt=True))
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def network(tmp_path: Path) -> NetworkFile:
    network = example_with(tmp_path, ("127.0.0.1:9400", f"127.0.0.1:{free_port()}"))
    make_certs(network, network.certs)
    return network


@pytest.fixture
def hub(network: NetworkFile, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Dated]]:
    """A server with the certificate of hub a, at the address of its SuperLink."""
    entry = network.hub("a")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(entry.tls.certificate, entry.tls.key)
    host, _, port = entry.superlink.rpartition(":")
    server = HTTPServer((host, int(port)), Dated)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setattr(Dated, "ahead", 0.0)
    yield Dated
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("hub_ahead", "told"),
    [
        (0.0, ""),
        (290.0, ""),
        (400.0, "this machine's clock is (39|40). s behind that of its hub"),
        (-3600.0, "this machine's clock is 360. s ahead of that of its hub"),
        (86400.0, "s behind that of its hub, which refuses workers"),
    ],
)
def test_clocks_that_differ_are_named(
    network: NetworkFile, hub: type[Dated], hub_ahead: float, told: str
) -> None:
    hub.ahead = hub_ahead
    entry = network.hub("a")
    why = why_turned_away(entry.superlink, entry.tls.ca, 10.0)
    assert re.search(told, why) if told else not why


def test_a_certificate_of_another_authority_is_named(
    network: NetworkFile, hub: type[Dated], tmp_path: Path
) -> None:
    make_certs(network, tmp_path / "other")
    why = why_turned_away(network.hub("a").superlink, tmp_path / "other" / "ca.crt", 10.0)
    assert "is refused here" in why
    assert "set the clock" in why


def test_nothing_is_said_of_a_hub_that_does_not_answer(network: NetworkFile) -> None:
    entry = network.hub("a")
    assert why_turned_away(entry.superlink, entry.tls.ca) == ""
    assert why_turned_away(entry.superlink, None) == ""


def test_a_worker_whose_clock_is_wrong_is_told_so(network: NetworkFile, hub: type[Dated]) -> None:
    hub.ahead = -3600.0
    said: list[str] = []
    site = WorkerSite(network, "a", 0, None, said.append)  # type: ignore[arg-type]
    site.processes = SimpleNamespace(start=lambda *_: None)  # type: ignore[assignment]
    site.start()
    assert re.search(r"SuperNode a-0: .*clock is 360. s ahead of", said[0])
