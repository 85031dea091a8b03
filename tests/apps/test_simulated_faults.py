"""Faulty workers in a run: one fault at a time, with the exact numbers expected after it.

Every fault is injected in the reply of the real ClientApp. The run must go on, name the
worker in its log and metrics, and end where rule 6 says: at the bit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message

from client_app.app import app as client_app
from mll_flower.grids.in_process import InProcessGrid
from tests.support.simulated import SMALL, config_of, play, replay


class Fault(StrEnum):
    """What is wrong with a worker's reply."""

    RAISES = "raises"
    NO_MODEL = "no model"
    OTHER_KEYS = "other keys"
    WRONG_SHAPE = "wrong shape"
    WRONG_DTYPE = "wrong dtype"
    NAN = "NaN"
    INFINITY = "infinity"
    SILENT = "silent"
    LATE = "late"


CAUSES = {
    Fault.RAISES: "raised",
    Fault.NO_MODEL: "no-model",
    Fault.OTHER_KEYS: "wrong-shape",
    Fault.WRONG_SHAPE: "wrong-shape",
    Fault.WRONG_DTYPE: "wrong-shape",
    Fault.NAN: "not-finite",
    Fault.INFINITY: "not-finite",
    Fault.SILENT: "late",
    Fault.LATE: "late",
}

When = Callable[[int, int], bool]


def rounds_of(message: Message) -> list[int]:
    if message.metadata.message_type != "train":
        return []
    return [int(r) for r in message.content.config_records["config"]["rounds"]]


class Spoiled:
    """The ClientApp, with a fault in the replies of some nodes to some rounds."""

    def __init__(self, fault: Fault, when: When) -> None:
        self.fault, self.when = fault, when

    def hit(self, message: Message, context: Context) -> bool:
        node = int(context.node_config["partition-id"])
        return any(self.when(node, r) for r in rounds_of(message))

    def __call__(self, message: Message, context: Context) -> Message:
        reply = client_app(message, context)
        if not self.hit(message, context):
            return reply
        content = reply.content
        if self.fault is Fault.RAISES:
            raise ZeroDivisionError("the worker's battery is flat")
        if self.fault is Fault.NO_MODEL:
            del content["arrays"]
            return reply
        arrays = {k: v.numpy() for k, v in content.array_records["arrays"].items()}
        weight = arrays["linear.weight"]
        if self.fault is Fault.OTHER_KEYS:
            arrays["linear.slope"] = arrays.pop("linear.weight")
        elif self.fault is Fault.WRONG_SHAPE:
            arrays["linear.weight"] = weight.T
        elif self.fault is Fault.WRONG_DTYPE:
            arrays["linear.weight"] = weight.astype(np.float64)
        elif self.fault is Fault.NAN:
            weight[0, 3] = np.nan
        elif self.fault is Fault.INFINITY:
            weight[0, 63] = -np.inf
        content["arrays"] = ArrayRecord({k: Array(v) for k, v in arrays.items()})
        return reply


class LossyGrid(InProcessGrid):
    """Loses, or holds back until the next round, what the app's fault says."""

    def push_messages(self, messages: Iterable[Message]) -> Sequence[str]:
        sent = list(messages)
        self._replies.update(getattr(self, "held", {}))
        self.held: dict[str, Message] = {}
        ids = super().push_messages(sent)
        app = self.app
        assert isinstance(app, Spoiled)
        for message, sent_id in zip(sent, ids, strict=True):
            if app.hit(message, self._contexts[message.metadata.dst_node_id]):
                reply = self._replies.pop(sent_id)
                if app.fault is Fault.LATE:
                    self.held[sent_id] = reply
        return ids


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What Flower's log says, which does not reach pytest by itself."""
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def spoiled(fault: Fault, when: When) -> dict:
    waits = fault in (Fault.SILENT, Fault.LATE)
    grid = {"grid": LossyGrid, "reply_timeout": 0.5} if waits else {}
    return {"app": Spoiled(fault, when), **grid}


def test_the_wrapped_app_without_faults_is_the_app(tmp_path):
    run = play(tmp_path / "a", **spoiled(Fault.NAN, lambda i, r: False))
    assert run.same_model(play(tmp_path / "b"))
    assert run.report["absences"] == []


@pytest.mark.parametrize("rule", ["keep", "renormalise"])
@pytest.mark.parametrize("fault", Fault)
def test_a_faulty_worker_is_absent_for_that_round(tmp_path, log, fault, rule):
    # Worker 3 is the middle one of hub 1's three; round 2 ends in a mixing, round 3 does not.
    def when(i: int, r: int) -> bool:
        return i == 3 and r in (2, 3)

    run = play(tmp_path, absent=rule, **spoiled(fault, when))
    expected = replay(config_of(absent=rule), when)
    assert run.same_model(expected[-1][1])
    # As it would be without the fault, the run ends elsewhere.
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


def test_the_reason_is_told(tmp_path, log):
    run = play(tmp_path, **spoiled(Fault.RAISES, lambda i, r: (i, r) == (5, 1)))
    [absence] = run.report["absences"]
    assert "ZeroDivisionError: the worker's battery is flat" in absence["why"]
    assert "the worker's battery is flat" in log.text


@pytest.mark.parametrize("fault", [Fault.RAISES, Fault.INFINITY, Fault.SILENT])
def test_a_silent_hub_keeps_its_model_and_the_run_goes_on(tmp_path, fault):
    # Hub 1 is workers 2, 3 and 4; it has a part in both mixings all the same.
    def when(i: int, r: int) -> bool:
        return i in (2, 3, 4) and r <= 3

    run = play(tmp_path, **spoiled(fault, when))
    history = replay(config_of(), when)
    start = history[0][0][1]
    assert not any(vector.any() for vector in start.values())  # where logistic runs start
    assert run.same_model(history[-1][1])
    assert [row["steps"] for row in run.hub_rows(1)][:3] == ["0"] * 3
    assert [row["loss"] for row in run.hub_rows(1)][:3] == ["nan"] * 3
    assert [row["absent"] for row in run.hub_rows(1)] == ["3", "3", "3", "0"]
    assert len(run.report["absences"]) == 9


@pytest.mark.parametrize("fault", [Fault.RAISES, Fault.WRONG_SHAPE, Fault.SILENT])
def test_a_silent_pooled_hub_keeps_its_model(tmp_path, log, fault):
    # One message of the pooled hub 1 covers rounds 1 and 2.
    run = play(tmp_path, **{**spoiled(fault, lambda hub, r: hub == 1 and r == 2), "pool": "hub"})
    history = replay(config_of(), lambda i, r: i in (2, 3, 4) and r <= 2)
    assert run.same_model(history[-1][1])
    absences = run.report["absences"]
    gone = [(a["round"], a["hub"], a["worker"]) for a in absences]
    assert gone == [(r, 1, i) for r in (1, 2) for i in (2, 3, 4)]
    assert {a["cause"] for a in absences} == {CAUSES[fault]}
    assert "Rounds 1 to 2, hub 1: its workers [2, 3, 4] are absent" in log.text


def test_a_round_in_which_nobody_answers_changes_no_hub(tmp_path):
    run = play(tmp_path, **spoiled(Fault.RAISES, lambda i, r: r == 2))
    assert run.same_model(replay(config_of(), lambda i, r: r == 2)[-1][1])
    assert len(run.report["absences"]) == 6


def test_several_faults_at_once(tmp_path):
    chosen = {(0, 1), (1, 1), (2, 1), (5, 2), (4, 3), (0, 4), (5, 4)}
    run = play(tmp_path, weights="1,2,0.5,3,1.25,0.1", **spoiled(Fault.NAN, lambda *k: k in chosen))
    config = config_of(weights="1,2,0.5,3,1.25,0.1")
    assert run.same_model(replay(config, lambda *k: k in chosen)[-1][1])
    assert {(a["worker"], a["round"]) for a in run.report["absences"]} == chosen


def test_waiting_for_all_goes_on_without_the_faulty(tmp_path):
    settings = {"preset": "hl-sgd", "graph": "star", "rates": "0.5", "slots": 60}
    run = play(tmp_path, **settings, **spoiled(Fault.WRONG_DTYPE, lambda i, r: (i, r) == (0, 2)))
    assert run.same_model(replay(config_of(**settings), lambda i, r: (i, r) == (0, 2))[-1][1])


def test_rule_6_in_numbers(tmp_path):
    """One round of one hub, by hand: z = v(0) x(0) + v(1) y, with v = 1/4 and 3/4."""
    settings = {"hubs": 1, "workers_per_hub": "2", "weights": "1,3", "slots": 4, "rates": "1"}
    alone = play(tmp_path / "alone", **{**settings, "workers_per_hub": "2", "weights": "1,1e-9"})
    keep = play(tmp_path / "keep", **settings, **spoiled(Fault.NAN, lambda i, r: i == 1))
    rest = play(
        tmp_path / "renormalise",
        **settings,
        absent="renormalise",
        **spoiled(Fault.NAN, lambda i, r: i == 1),
    )
    x = alone.vector()  # worker 0's model, to the weight of the other
    assert SMALL["model"] == "logistic"  # y, the start, is zero
    assert np.allclose(keep.vector(), x / 4, atol=1e-6)
    assert np.allclose(rest.vector(), x, atol=1e-6)
    assert np.abs(x).max() > 1e-2
