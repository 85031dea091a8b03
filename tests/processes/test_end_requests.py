"""Signals that ask a process to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from mll_flower.processes.end_requests import EndRequested, end_requests

KINDS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture
def defaults() -> Iterator[None]:
    """Handle the signals as in a terminal; the tests themselves may run in the background."""
    before = {kind: signal.signal(kind, signal.SIG_DFL) for kind in KINDS}
    yield
    for kind, old in before.items():
        signal.signal(kind, old)


@pytest.mark.usefixtures("defaults")
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_to_end_is_an_exception(kind: signal.Signals) -> None:
    before = signal.getsignal(kind)
    with pytest.raises(EndRequested) as request, end_requests():
        signal.raise_signal(kind)
    assert request.value.kind == kind
    assert request.value.exit_code == 128 + kind
    assert isinstance(request.value, KeyboardInterrupt)  # whatever lets Ctrl-C pass lets it pass
    assert signal.getsignal(kind) is before


@pytest.mark.usefixtures("defaults")
def test_what_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with end_requests():
        signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL


def test_other_threads_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def look() -> None:
        with end_requests():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]
