"""Commands at the same time: no port twice, no more simulations than there are places."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import pytest

from mll_flower.processes import places
from mll_flower.processes.places import own_place, own_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="claims are Linux's")


def test_a_port_belongs_to_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([50001, 50001, 50001, 50002])  # the system may offer a port again
    monkeypatch.setattr(places, "free_port", lambda: next(free))
    with own_port() as first, own_port() as second:
        assert (first, second) == (50001, 50002)
    monkeypatch.setattr(places, "free_port", lambda: 50001)
    with own_port() as again:
        assert again == 50001


def test_who_finds_no_place_says_so_and_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "places", lambda: 2)
    monkeypatch.setattr(places, "_LOOK_EVERY", 0.01)
    monkeypatch.setattr(places, "_claim", _other_names(places._claim))
    said: list[str] = []
    done = threading.Event()

    def third() -> None:
        with own_place(said.append):
            done.set()

    with own_place(said.append), ExitStack() as second:
        second.enter_context(own_place(said.append))
        assert said == []
        thread = threading.Thread(target=third)
        thread.start()
        end = time.monotonic() + 10
        while not said and time.monotonic() < end:
            time.sleep(0.01)
        assert said == ["2 simulations are running on this machine: waiting for one to end"]
        assert not done.is_set()
        second.close()
        assert done.wait(10)
    thread.join()


def test_a_process_that_is_killed_gives_its_claims_back() -> None:
    code = (
        "import time; from mll_flower.processes.places import _claim; "
        "claim = _claim('test-killed'); print(claim is not None, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert places._claim("test-killed") is None
        other.kill()
    claim = places._claim("test-killed")
    assert claim is not None
    claim.close()


def test_there_is_always_a_place() -> None:
    assert places.places() >= 1


def _other_names(claim: object) -> object:
    """Claim under names that simulations on this machine do not use."""
    return lambda name: claim(f"test-{name}")  # type: ignore[operator]
