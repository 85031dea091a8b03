"""What several commands on one machine must not take twice: ports, and places for simulations.

A claim is a socket in Linux's abstract namespace: it is made by one process alone, needs no file,
and goes with the process that made it, however that ends. Elsewhere nothing is claimed.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mll_flower.processes.flower_environment import free_port

_LOOK_EVERY = 0.5  # seconds between two looks for a place
# A simulation with an actor per core takes 1 to 3 GB, and all cores if nobody else wants them.
_BYTES, _FEW = 3 << 30, 4


def _claim(name: str) -> socket.socket | None:
    """Claim a name among this user's processes; None if another process has it."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0mll-flower-{os.getuid()}-{name}")
    except OSError:
        claim.close()
        return None
    return claim


@contextmanager
def own_port() -> Iterator[int]:
    """Yield a port of the loopback interface that no other command takes while this one has it.

    A free port may be anyone's until something listens on it, seconds later.
    """
    while True:
        port = free_port()
        if sys.platform != "linux":
            yield port
            return
        claim = _claim(f"port-{port}")
        if claim is not None:
            break
    with claim:
        yield port


def places() -> int:
    """Return how many simulations run at the same time on this machine; others wait."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(max(_FEW, len(os.sched_getaffinity(0))), memory // _BYTES))


@contextmanager
def own_place(say: Callable[[str], None]) -> Iterator[None]:
    """Wait until there is a place for one more simulation on this machine, and take it.

    Parameters
    ----------
    say : callable
        Told once if there is a wait.
    """
    if sys.platform != "linux":
        yield
        return
    number, waited = places(), False
    while True:
        claims = (_claim(f"place-{place}") for place in range(number))
        claim = next((claim for claim in claims if claim is not None), None)
        if claim is not None:
            break
        if not waited:
            say(f"{number} simulations are running on this machine: waiting for one to end")
            waited = True
        time.sleep(_LOOK_EVERY)
    with claim:
        yield
