"""Fixtures of the gossip tests: real certificates, and real gRPC servers on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mll_flower.deployment.certs import make_certs
from mll_flower.deployment.network_file import NetworkFile, example_network, load_network
from mll_flower.gossip.grpc_client import GrpcGossip
from mll_flower.processes.flower_environment import free_port
from tests.support.gossip_hubs import PATH, RUN, FaultyGossip, Start, tls_files


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> NetworkFile:
    """Hubs a, b, c, d with certificates; in ``other``, certificates of another CA."""
    home = tmp_path_factory.mktemp("network")
    (home / "network.toml").write_text(example_network(hubs=4, workers=1))
    network = load_network(home / "network.toml")
    make_certs(network, network.certs)
    make_certs(network, home / "other")
    return network


@pytest.fixture
def ports() -> dict[str, int]:
    """A free port per hub."""
    return {hub: free_port() for hub in "abcd"}


@pytest.fixture
def start(network: NetworkFile, ports: dict[str, int]) -> Iterator[Start]:
    """Start hubs of the path a - b - c with TLS; all are closed at the end of the test."""
    started: list[GrpcGossip] = []

    def go(
        hub: str,
        neighbours: str | None = None,
        certs: Path = network.certs,
        run: str = RUN,
        **options: Any,
    ) -> FaultyGossip:
        if neighbours is None:
            neighbours = "".join(b if hub == a else a for a, b in PATH if hub in (a, b))
        addresses = {peer: f"127.0.0.1:{ports[peer]}" for peer in neighbours}
        options = {"tls": tls_files(certs, hub)} | options
        gossip = FaultyGossip(hub, f"127.0.0.1:{ports[hub]}", addresses, run, **options)
        started.append(gossip)
        return gossip

    yield go
    for gossip in started:
        gossip.close()
