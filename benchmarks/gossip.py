"""Mixing over the network, against a bare copy of the same bytes.

Run with ``python -m benchmarks.gossip``. Two and three hubs, each a process, all connected to one
another over gRPC with mutual TLS on loopback: publish, fetch, check, confirm. The bare copy moves
the same bytes between the same number of processes over TCP sockets, without encryption, checks or
agreement.
"""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.report import Spread, bars, interleave, options, plot_path, ratios, table, write
from benchmarks.team import Team, Work
from mll_flower.deployment.certs import make_certs
from mll_flower.deployment.example_network import example_network
from mll_flower.deployment.network_file import NetworkFile, load_network
from mll_flower.gossip.grpc_client import GrpcGossip
from mll_flower.gossip.snapshot import Snapshot
from mll_flower.gossip.tls import TlsFiles
from mll_flower.processes.flower_environment import free_port

DEADLINE = 60.0
SIZES = {"logistic, 785": 785, "CNN, 110 thousand": 110_000, "ResNet-18, 11 million": 11_000_000}


def gossip_hub(hub: str, ports: dict[str, int], tls: TlsFiles, size: int) -> Work:
    """Set up a hub; its work is one mixing with all others."""
    others = {peer: f"127.0.0.1:{port}" for peer, port in ports.items() if peer != hub}
    gossip = GrpcGossip(hub, f"127.0.0.1:{ports[hub]}", others, "benchmark", tls=tls)
    arrays = {"w": np.random.default_rng(0).standard_normal(size).astype(np.float32)}
    mixing = 0

    def work() -> int:
        nonlocal mixing
        mixing += 1
        gossip.publish(Snapshot("benchmark", mixing, hub, 1.0, len(others), arrays))
        exchange = gossip.exchange(mixing, DEADLINE)
        assert not exchange.silent, exchange.silent
        return 1

    return work


def raw_copy(place: int, ports: list[int], size: int) -> Work:
    """Set up a process with a TCP connection to each of the others; its work is one copy to all."""
    listener = socket.create_server(("127.0.0.1", ports[place]), backlog=len(ports))
    links = [_connect(port) for port in ports[:place]]
    links += [listener.accept()[0] for _ in ports[place + 1 :]]
    for link in links:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = bytes(4 * size)
    buffers = [bytearray(len(data)) for _ in links]

    def work() -> int:
        senders = [threading.Thread(target=link.sendall, args=(data,)) for link in links]
        readers = [
            threading.Thread(target=_receive, args=(link, buffer))
            for link, buffer in zip(links, buffers, strict=True)
        ]
        for thread in senders + readers:
            thread.start()
        for thread in senders + readers:
            thread.join()
        return 1

    return work


def _connect(port: int) -> socket.socket:
    end = time.monotonic() + DEADLINE
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def _receive(link: socket.socket, buffer: bytearray) -> None:
    view = memoryview(buffer)
    while view:
        view = view[link.recv_into(view) :]


def measure(
    hubs: int, size: int, repeats: int, network: NetworkFile
) -> tuple[list[float], list[float]]:
    """Return the milliseconds of mixings and of raw copies, which take turns."""
    entries = network.hubs[:hubs]
    with ExitStack() as stack:
        ports = {entry.id: free_port() for entry in entries}
        arguments = [(entry.id, ports, entry.tls, size) for entry in entries]
        ours = stack.enter_context(Team(gossip_hub, arguments))
        bare = [free_port() for _ in entries]
        copy = stack.enter_context(Team(raw_copy, [(place, bare, size) for place in range(hubs)]))
        # `seconds` is per unit of work; in a mixing every hub does one unit.
        found = interleave(
            {
                f"{hubs} hubs, {size:,} floats, gossip": lambda: 1e3 * hubs * ours.seconds(),
                f"{hubs} hubs, {size:,} floats, raw copy": lambda: 1e3 * hubs * copy.seconds(),
            },
            repeats,
            "ms",
        )
    first, second = found.values()
    return first, second


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the table."""
    parser = options("A mixing over gRPC with mutual TLS.", repeats=15)
    parser.add_argument("--hubs", type=int, nargs="+", default=[2, 3])
    choice = parser.parse_args(arguments)
    sizes = dict(SIZES)
    if choice.quick:
        choice.repeats, choice.hubs = 1, [2]
        del sizes["ResNet-18, 11 million"]
    rows, plotted = [], {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "network.toml").write_text(example_network(hubs=max(choice.hubs), workers=1))
        network = load_network(folder / "network.toml")
        make_certs(network, network.certs)
        for label, size in sizes.items():
            for hubs in choice.hubs:
                ours, copy = measure(hubs, size, choice.repeats, network)
                megabytes = 4e-6 * size * hubs * (hubs - 1)
                rows.append(
                    [
                        f"{label}, {hubs} hubs",
                        f"{megabytes:.3g}",
                        Spread.of(ours).text(),
                        Spread.of(copy).text(),
                        ratios(ours, copy).text(),
                    ]
                )
                plotted[f"{label}, {hubs} hubs"] = Spread.of(ours)
                plotted[f"{label}, {hubs} hubs, raw TCP"] = Spread.of(copy)
    headings = ["floats, hubs", "MB moved", "one mixing, ms", "raw TCP copy, ms", "ratio"]
    plot = plot_path(choice.docs, "gossip")
    bars(plot, plotted, "milliseconds (log)", log=True)
    text = table(headings, rows) + f"\n\nMedian (range) of {choice.repeats} repetitions.\n\n"
    write(choice.docs, "gossip", text + f"![gossip](figures/{plot.name})")


if __name__ == "__main__":
    main()
