"""Faulty workers in a run: one fault at a time, with the exact numbers expected after it.

Every fault is injected into the reply of the real ClientApp. The run must go on, name the worker
in its log and metrics, and end, to the bit, with the model that follows from the rule for absent
workers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.faulty_workers import CAUSES, Fault, faulty
from tests.support.simulated import SMALL, config_of, play, replay


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Flower's log, which does not reach pytest by itself."""
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def test_without_a_fault_the_faulty_app_is_the_app(tmp_path):
    run = play(tmp_path / "a", **faulty(Fault.NAN, lambda i, r: False))
    assert run.same_model(play(tmp_path / "b"))
    assert run.report["absences"] == []


@pytest.mark.parametrize("rule", ["keep", "renormalise"])
@pytest.mark.parametrize("fault", Fault)
def test_a_faulty_worker_is_absent_for_that_round(tmp_path, log, fault, rule):
    # Worker 3 is the middle one of hub 1's three; round 2 ends in a mixing, round 3 does not.
    def when(i: int, r: int) -> bool:
        return i == 3 and r in (2, 3)

    run = play(tmp_path, absent=rule, **faulty(fault, when))
    expected = replay(config_of(absent=rule), when)
    assert run.same_model(expected[-1][1])
    # Without the fault, the run ends with another model.
    assert not run.same_model(replay(config_of(absent=rule))[-1][1])

    absences = run.report["absences"]
    assert [(a["round"], a["hub"], a["worker"]) for a in absences] == [(2, 1, 3), (3, 1, 3)]
    assert {a["cause"] for a in absences} == {CAUSES[fault]}
    assert all(a["why"] for a in absences)
    for r in (2, 3):
        assert f"Round {r}, hub 1: worker 3 " in log.text
    assert [w["absent"] for w in run.report["workers"]] == [0, 0, 0, 2, 0, 0]
    assert [row["absent"] for row in run.hub_rows(1)] == ["0", "1", "1", "0"]
    assert {row["absent"] for row in run.hub_rows(0) + run.hub_rows(2)} == {"0"}
    assert run.evaluations[-1]["absent"] == "2"
    assert run.report["summary"]["slot"] == 16


def test_the_reason_is_reported(tmp_path, log):
    run = play(tmp_path, **faulty(Fault.RAISES, lambda i, r: (i, r) == (5, 1)))
    [absence] = run.report["absences"]
    assert "ZeroDivisionError: the worker's battery is flat" in absence["why"]
    assert "the worker's battery is flat" in log.text


@pytest.mark.parametrize("fault", [Fault.RAISES, Fault.INFINITY, Fault.SILENT])
def test_a_hub_without_any_reply_keeps_its_model_and_the_run_goes_on(tmp_path, fault):
    # Hub 1 has the workers 2, 3 and 4; it takes part in both mixings all the same.
    def when(i: int, r: int) -> bool:
        return i in (2, 3, 4) and r <= 3

    run = play(tmp_path, **faulty(fault, when))
    history = replay(config_of(), when)
    start = history[0][0][1]
    assert not any(vector.any() for vector in start.values())  # a logistic model starts at zero
    assert run.same_model(history[-1][1])
    assert [row["steps"] for row in run.hub_rows(1)][:3] == ["0"] * 3
    assert [row["loss"] for row in run.hub_rows(1)][:3] == ["nan"] * 3
    assert [row["absent"] for row in run.hub_rows(1)] == ["3", "3", "3", "0"]
    assert len(run.report["absences"]) == 9


@pytest.mark.parametrize("fault", [Fault.RAISES, Fault.WRONG_SHAPE, Fault.SILENT])
def test_a_pooled_hub_whose_node_fails_keeps_its_model(tmp_path, log, fault):
    # Hub 1 is one node, and one message to it covers the rounds 1 and 2.
    run = play(tmp_path, **{**faulty(fault, lambda hub, r: hub == 1 and r == 2), "pool": "hub"})
    history = replay(config_of(), lambda i, r: i in (2, 3, 4) and r <= 2)
    assert run.same_model(history[-1][1])
    absences = run.report["absences"]
    gone = [(a["round"], a["hub"], a["worker"]) for a in absences]
    assert gone == [(r, 1, i) for r in (1, 2) for i in (2, 3, 4)]
    assert {a["cause"] for a in absences} == {CAUSES[fault]}
    assert "Rounds 1 to 2, hub 1: its workers [2, 3, 4] are absent" in log.text


def test_a_round_in_which_nobody_answers_changes_no_hub(tmp_path):
    run = play(tmp_path, **faulty(Fault.RAISES, lambda i, r: r == 2))
    assert run.same_model(replay(config_of(), lambda i, r: r == 2)[-1][1])
    assert len(run.report["absences"]) == 6


def test_several_faults_at_once(tmp_path):
    chosen = {(0, 1), (1, 1), (2, 1), (5, 2), (4, 3), (0, 4), (5, 4)}
    run = play(tmp_path, weights="1,2,0.5,3,1.25,0.1", **faulty(Fault.NAN, lambda *k: k in chosen))
    config = config_of(weights="1,2,0.5,3,1.25,0.1")
    assert run.same_model(replay(config, lambda *k: k in chosen)[-1][1])
    assert {(a["worker"], a["round"]) for a in run.report["absences"]} == chosen


def test_waiting_for_all_goes_on_without_a_faulty_worker(tmp_path):
    settings = {"preset": "hl-sgd", "graph": "star", "rates": "0.5", "slots": 60}
    run = play(tmp_path, **settings, **faulty(Fault.WRONG_DTYPE, lambda i, r: (i, r) == (0, 2)))
    assert run.same_model(replay(config_of(**settings), lambda i, r: (i, r) == (0, 2))[-1][1])


def test_the_two_rules_for_absent_workers_in_numbers(tmp_path):
    """One round of one hub: z = v(0) x(0) + v(1) y with v = 1/4 and 3/4, or z = x(0)."""
    settings = {"hubs": 1, "workers_per_hub": "2", "weights": "1,3", "slots": 4, "rates": "1"}
    alone = play(tmp_path / "alone", **{**settings, "workers_per_hub": "2", "weights": "1,1e-9"})
    keep = play(tmp_path / "keep", **settings, **faulty(Fault.NAN, lambda i, r: i == 1))
    renormalise = play(
        tmp_path / "renormalise",
        **settings,
        absent="renormalise",
        **faulty(Fault.NAN, lambda i, r: i == 1),
    )
    x = alone.vector()  # worker 0's model: the other one weighs next to nothing
    assert SMALL["model"] == "logistic"  # so that y, the initial model, is zero
    assert np.allclose(keep.vector(), x / 4, atol=1e-6)
    assert np.allclose(renormalise.vector(), x, atol=1e-6)
    assert np.abs(x).max() > 1e-2
