"""A subclass with a ``start`` of its own, on Flower's grid: deadline and absences stay right."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from mll_flower import MultiLevelStrategy, RoundReport
from mll_flower.strategies.asked import AskedNodes
from tests.support.arrays import record
from tests.support.flower_grid import Nodes, client_app

WEIGHTS = [3, 1, 2, 4]


class OwnLoop(MultiLevelStrategy):
    """A loop as in Flower's advanced examples: it knows nothing of a DeadlineGrid."""

    keep = staticmethod(lambda messages: messages)

    def start(self, grid, initial_arrays, num_rounds=3, timeout=3600, **_):
        arrays = initial_arrays
        for number in range(1, num_rounds + 1):
            messages = self.keep(list(self.configure_train(number, arrays, ConfigRecord(), grid)))
            replies = list(grid.send_and_receive(messages, timeout=timeout))
            arrays, _ = self.aggregate_train(number, replies)
        return arrays


class Hanging:
    """Workers that add their number plus one; worker 1 hangs in round 2."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def __call__(self, partition, arrays, config):
        if partition == 1 and config["round"] == 2:
            self.release.wait(60)
        return {"x": arrays["x"] + partition + 1}, {"num-examples": WEIGHTS[partition]}


@pytest.mark.parametrize("absent", ["keep", "renormalise"])
def test_a_reply_that_is_missing_is_an_absent_worker(absent: str) -> None:
    hanging, reports = Hanging(), []
    strategy = OwnLoop(hubs=2, q=9, absent=absent, on_round=reports.append, fraction_evaluate=0.0)
    with Nodes(client_app(hanging), 4) as nodes:
        strategy.start(nodes.grid, record({"x": np.zeros(2)}), num_rounds=2, timeout=0.5)
        hanging.release.set()
    (missing,) = reports[1].hubs[1].absent
    assert (missing.node, missing.cause) == (nodes.ids[1], "late")
    # Hub 1 has the workers 1 and 3 with the weights 1 and 4.
    first = (1 * 2 + 4 * 4) / 5
    expected = first + 4 * (4 / 5 if absent == "keep" else 1)
    np.testing.assert_allclose(strategy.hubs[1].model["float64"], expected)
    assert not reports[1].hubs[0].absent


def test_the_deadline_holds_on_a_grid_that_knows_nothing_of_it(monkeypatch) -> None:
    monkeypatch.setattr("mll_flower.strategies.asked._EXPIRY_MARGIN", 0.5)
    hanging, reports = Hanging(), []
    strategy = OwnLoop(
        hubs=1, deadline=0.5, on_round=reports.append, fraction_evaluate=0.0, min_train_nodes=4
    )
    with Nodes(client_app(hanging), 4) as nodes:
        began = time.monotonic()
        strategy.start(nodes.grid, record({"x": np.zeros(2)}), num_rounds=2)
        assert time.monotonic() - began < 30  # worker 1 hangs for 60 s
        hanging.release.set()
    (missing,) = reports[1].hubs[0].absent
    # The SuperLink answers in its own name; the absence names the node that was asked.
    assert (missing.node, missing.cause) == (nodes.ids[1], "expired")


def test_messages_that_a_subclass_does_not_send_are_no_absences() -> None:
    class Fewer(OwnLoop):
        keep = staticmethod(lambda messages: messages[:2])

    reports: list[RoundReport] = []
    strategy = Fewer(hubs=1, on_round=reports.append, fraction_evaluate=0.0)
    with Nodes(client_app(Hanging()), 4) as nodes:
        strategy.start(nodes.grid, record({"x": np.zeros(2)}), num_rounds=1, timeout=30)
    (hub,) = reports[0].hubs
    assert [arrival.node for arrival in hub.arrived] == nodes.ids[:2]
    assert not hub.absent


def test_who_was_asked_does_not_keep_the_models_in_memory() -> None:
    message = Message(RecordDict({"arrays": record({"x": np.zeros(2)})}), 7, "train")
    asked = AskedNodes([message])
    assert all(not isinstance(value, Message) for value in vars(asked)["_metadata"])
    # Before a grid has numbered them, all of them count as asked.
    assert list(asked.without_reply([])) == [7]
    assert asked.without_reply([Message(RecordDict(), reply_to=message)]) == {}
