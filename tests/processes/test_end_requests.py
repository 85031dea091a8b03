"""Signals that ask a process to end."""

from __future__ import annotations

import signal
import threading

import pytest

from mll_flower.processes.end_requests import EndRequested, end_requests


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_is_an_exception(kind: signal.Signals) -> None:
    before = signal.getsignal(kind)
    with pytest.raises(EndRequested) as request, end_requests():
        signal.raise_signal(kind)
    assert request.value.kind == kind
    assert request.value.exit_code == 128 + kind
    assert isinstance(request.value, KeyboardInterrupt)  # whatever lets Ctrl-C pass lets it pass
    assert signal.getsignal(kind) is before


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
