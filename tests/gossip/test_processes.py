"""A hub in a process of its own that is frozen or killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mll_flower.deployment.network_file import NetworkFile
from mll_flower.gossip import mix_with_neighbours
from tests.support.flood import Flood
from tests.support.gossip_hubs import Start, expected, snapshot

ROOT = Path(__file__).parents[2]


class Process:
    """Hub b, whose neighbour is a, in a process of its own."""

    def __init__(self, network: NetworkFile, ports: dict[str, int]) -> None:
        neighbours = json.dumps({"a": f"127.0.0.1:{ports['a']}"})
        listen = f"127.0.0.1:{ports['b']}"
        arguments = ["b", listen, neighbours, str(network.certs)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.gossip_hub_process", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.read() == "ready"

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def start_mixing(self, mixing: int, deadline: float = 5.0) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"mixing": mixing, "deadline": deadline}) + "\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def spawn(network: NetworkFile, ports: dict[str, int]) -> Iterator[Callable[[], Process]]:
    spawned: list[Process] = []

    def go() -> Process:
        spawned.append(Process(network, ports))
        return spawned[-1]

    yield go
    for process in spawned:
        process.end()


def check_mixing_with(a: Any, b: Process, mixing: int) -> None:
    """Do one mixing; both hubs must get the model that the formula gives."""
    b.start_mixing(mixing)
    a.publish(snapshot("a", mixing))
    mixed, _ = mix_with_neighbours(snapshot("a", mixing), a.exchange(mixing, 5.0))
    answer = b.read()
    assert answer["silent"] == {}
    for name, array in expected((("a", "b"),), "a").items():
        np.testing.assert_allclose(mixed[name], array, atol=1e-12)
    for name, array in expected((("a", "b"),), "b").items():
        np.testing.assert_allclose(answer["model"][name], array, atol=1e-12)


def test_a_frozen_hub_is_silent_until_it_wakes(start: Start, spawn) -> None:
    a, b = start("a"), spawn()
    check_mixing_with(a, b, 1)
    b.signal(signal.SIGSTOP)
    a.publish(snapshot("a", 2))
    began = time.monotonic()
    found = a.exchange(2, 1.5)
    assert time.monotonic() - began < 3.5
    assert found.silent == {"b": "no answer before the deadline"}
    np.testing.assert_array_equal(
        mix_with_neighbours(snapshot("a", 2), found)[0]["layer.bias"],
        snapshot("a").arrays["layer.bias"],
    )
    b.signal(signal.SIGCONT)
    check_mixing_with(a, b, 3)


def test_a_hub_frozen_before_the_first_exchange_delays_it_only_to_the_deadline(
    start: Start, spawn
) -> None:
    a, b = start("a"), spawn()
    b.signal(signal.SIGSTOP)
    a.publish(snapshot("a", 1))
    began = time.monotonic()
    assert set(a.exchange(1, 1.5).silent) == {"b"}
    assert time.monotonic() - began < 3.5
    b.signal(signal.SIGCONT)
    check_mixing_with(a, b, 2)


def test_a_killed_hub_delays_an_exchange_at_most_to_the_deadline_and_may_return(
    start: Start, spawn
) -> None:
    a, b = start("a"), spawn()
    check_mixing_with(a, b, 1)
    b.signal(signal.SIGKILL)
    b.process.wait()
    a.publish(snapshot("a", 2))
    began = time.monotonic()
    assert set(a.exchange(2, 1.0).silent) == {"b"}
    assert time.monotonic() - began < 3.0
    check_mixing_with(a, spawn(), 3)


def test_a_hub_killed_while_its_neighbour_waits_does_not_block_the_neighbour(
    start: Start, spawn
) -> None:
    a, b = start("a"), spawn()
    check_mixing_with(a, b, 1)
    a.publish(snapshot("a", 2))
    killer = subprocess.Popen(["sh", "-c", f"sleep 0.4; kill -9 {b.process.pid}"])
    began = time.monotonic()
    assert set(a.exchange(2, 1.5).silent) == {"b"}
    assert time.monotonic() - began < 3.5
    killer.wait()


def test_a_hub_mixes_on_while_strangers_flood_its_port(
    start: Start, spawn, ports: dict[str, int]
) -> None:
    a, b = start("a"), spawn()
    check_mixing_with(a, b, 1)
    with Flood(ports["b"], idle=100, senders=8) as flood:
        for mixing in range(2, 8):
            time.sleep(0.5)
            assert b.process.poll() is None, "it has crashed"
            check_mixing_with(a, b, mixing)
    assert flood.opened > 100
    check_mixing_with(a, b, 8)
