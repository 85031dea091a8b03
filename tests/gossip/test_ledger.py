"""The ledger: which snapshots it offers, which verdicts it takes, and how waiting ends."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from mll_flower.gossip.ledger import Ack, Ledger, Missing, Published, Verdict
from tests.support.gossip_hubs import RUN, snapshot

# Seconds after which a wait that should have ended counts as stuck.
STUCK = 30.0


@pytest.fixture
def ledger() -> Ledger:
    """Hub a's ledger, with its snapshot of mixing 1."""
    ledger = Ledger(RUN, "a", ["b"])
    ledger.publish(snapshot("a"))
    return ledger


def confirmation(ledger: Ledger, **changes) -> Verdict:
    """Return a confirmation of the newest snapshot, with some fields changed."""
    found = ledger.wait_for(None, 0.0)
    assert isinstance(found, Published)
    fields = {"run": RUN, "mixing": 1, "token": found.token, "accepted": True} | changes
    return Verdict(**fields)


def test_two_snapshots_are_kept(ledger: Ledger) -> None:
    ledger.publish(snapshot("a", 2))
    assert isinstance(ledger.wait_for(1, 0.0), Published)
    ledger.publish(snapshot("a", 3))
    assert ledger.wait_for(1, 0.0) is Missing.GONE
    assert isinstance(ledger.wait_for(2, 0.0), Published)
    assert ledger.wait_for(4, 0.0) is Missing.NOT_YET
    assert ledger.latest == 3


def test_an_empty_ledger_has_nothing_yet() -> None:
    empty = Ledger(RUN, "a", ["b"])
    assert empty.latest is None
    assert empty.wait_for(None, time.monotonic() + STUCK) is Missing.NOT_YET  # does not wait
    assert empty.wait_for(1, 0.0) is Missing.NOT_YET


def test_snapshots_are_published_once_and_in_order(ledger: Ledger) -> None:
    ledger.publish(snapshot("a"))  # publishing the same again is harmless
    with pytest.raises(ValueError, match="immutable"):
        ledger.publish(snapshot("a", weight=9.0))
    with pytest.raises(ValueError, match="numbers must grow"):
        ledger.publish(snapshot("a", 0))
    with pytest.raises(ValueError, match="only its own model"):
        ledger.publish(snapshot("b", 2))


def test_publishing_ends_a_wait(ledger: Ledger) -> None:
    threading.Timer(0.1, ledger.publish, [snapshot("a", 2)]).start()
    found = ledger.wait_for(2, time.monotonic() + STUCK)
    assert isinstance(found, Published)
    assert found.snapshot.mixing == 2


def test_shutting_ends_all_waits(ledger: Ledger) -> None:
    threading.Timer(0.1, ledger.shut).start()
    began = time.monotonic()
    assert ledger.wait_for(2, began + STUCK) is Missing.NOT_YET
    assert ledger.await_verdict("b", 1, began + STUCK) is None
    assert time.monotonic() - began < STUCK
    assert ledger.is_shut


def test_a_caller_that_hangs_up_does_not_wait_on(ledger: Ledger) -> None:
    hung_up = threading.Event()

    def hang_up() -> None:
        hung_up.set()
        ledger.wake()

    threading.Timer(0.1, hang_up).start()
    began = time.monotonic()
    found = ledger.wait_for(2, began + STUCK, still_wanted=lambda: not hung_up.is_set())
    assert found is Missing.NOT_YET
    assert time.monotonic() - began < STUCK


def test_a_recorded_verdict_is_awaited(ledger: Ledger) -> None:
    refusal = confirmation(ledger, accepted=False, reason="not finite")
    threading.Timer(0.1, ledger.record, ["b", refusal]).start()
    assert ledger.await_verdict("b", 1, time.monotonic() + STUCK) == refusal


def test_a_confirmation_sent_twice_is_acknowledged_twice(ledger: Ledger) -> None:
    verdict = confirmation(ledger)
    assert ledger.record("b", verdict) is Ack.RECORDED
    ledger.close(1)
    # The first acknowledgement may have been lost; the answer must not change.
    assert ledger.record("b", verdict) is Ack.RECORDED


def test_a_confirmation_repeated_after_the_next_publication_is_acknowledged(
    ledger: Ledger,
) -> None:
    verdict = confirmation(ledger)
    assert ledger.record("b", verdict) is Ack.RECORDED
    ledger.close(1)
    ledger.publish(snapshot("a", 2))
    assert ledger.record("b", verdict) is Ack.RECORDED
    # What was not recorded in time stays out, and so does another verdict.
    assert ledger.record("b", replace(verdict, accepted=False)) is Ack.CLOSED
    assert ledger.record("b", replace(verdict, token="another")) is Ack.CLOSED
    late = confirmation(ledger, mixing=2)
    ledger.publish(snapshot("a", 3))
    assert ledger.record("b", late) is Ack.CLOSED


def test_the_first_verdict_stands(ledger: Ledger) -> None:
    assert ledger.record("b", confirmation(ledger)) is Ack.RECORDED
    assert ledger.record("b", confirmation(ledger, accepted=False)) is Ack.CLOSED
    verdict = ledger.await_verdict("b", 1, 0.0)
    assert verdict is not None
    assert verdict.accepted


def test_verdicts_on_an_earlier_mixing_are_forgotten(ledger: Ledger) -> None:
    ledger.record("b", confirmation(ledger))
    ledger.publish(snapshot("a", 2))
    assert ledger.await_verdict("b", 1, 0.0) is None
    assert ledger.await_verdict("b", 2, 0.0) is None


def test_after_the_last_call_no_verdict_is_taken(ledger: Ledger) -> None:
    ledger.open(1, time.monotonic() - 0.01)
    assert ledger.record("b", confirmation(ledger)) is Ack.CLOSED


def test_after_the_exchange_no_verdict_is_taken(ledger: Ledger) -> None:
    ledger.open(1, time.monotonic() + STUCK)
    ledger.close(1)
    assert ledger.record("b", confirmation(ledger)) is Ack.CLOSED


def test_a_confirmation_of_a_snapshot_from_before_a_restart_is_unknown(ledger: Ledger) -> None:
    before = confirmation(ledger)
    restarted = Ledger(RUN, "a", ["b"])
    restarted.publish(snapshot("a"))
    assert restarted.record("b", before) is Ack.UNKNOWN


@pytest.mark.parametrize(
    ("changes", "ack"),
    [({"run": "x"}, Ack.UNKNOWN), ({"mixing": 2}, Ack.UNKNOWN), ({"mixing": 0}, Ack.CLOSED)],
)
def test_verdicts_on_other_runs_and_mixings_do_not_count(
    ledger: Ledger, changes: dict, ack: Ack
) -> None:
    assert ledger.record("b", confirmation(ledger, **changes)) is ack
    assert ledger.await_verdict("b", 1, 0.0) is None


def test_only_neighbours_give_verdicts(ledger: Ledger) -> None:
    assert ledger.record("z", confirmation(ledger)) is Ack.UNKNOWN


def test_an_exchange_happens_once_and_after_publishing(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="publish this hub's snapshot first"):
        ledger.open(2, 0.0)
    ledger.open(1, time.monotonic() + 1)
    ledger.close(1)
    with pytest.raises(ValueError, match="it happens only once"):
        ledger.open(1, 0.0)
