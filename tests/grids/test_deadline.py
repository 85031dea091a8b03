"""Rounds that end on time, on Flower's own link state; replies pulled directly or in threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from mll_flower.grids._watchers import MOST
from mll_flower.grids.absences import Absence, absence_of
from mll_flower.grids.deadline import DeadlineGrid
from mll_flower.grids.wrapper import GridWrapper
from tests.support.arrays import record
from tests.support.flower_grid import Nodes, client_app

LIMIT = 1.0
# Seconds that a busy machine may add to a round before a test calls it stuck.
TOLERANCE = 20.0


class Remote(GridWrapper):
    """Flower's grid, treated as a remote one: replies are pulled in other threads."""


class Uploading(Remote):
    """A grid whose pulls of one node's replies block, as while a node uploads its arrays."""

    def __init__(self, grid: Grid, node: int) -> None:
        super().__init__(grid)
        self.node, self.blocked, self.done = node, set(), threading.Event()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        asked = list(messages)
        sent = list(super().push_messages(asked))
        self.blocked |= {
            m.metadata.message_id for m in asked if m.metadata.dst_node_id == self.node
        }
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ids = list(message_ids)
        if self.blocked & set(ids):
            self.done.wait(60)
        return super().pull_messages(ids)


class Frozen(Remote):
    """A grid whose pushes are refused after some seconds."""

    seconds = 0.0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        time.sleep(self.seconds)
        raise RuntimeError("500 Internal Server Error: Message TTL has expired")


class Behaviour:
    """What the nodes do when asked to train, by partition id."""

    def __init__(self) -> None:
        self.never = threading.Event()
        self.delay: dict[int, float] = {}
        self.fails: set[int] = set()
        self.hangs: set[int] = set()
        self.trained: list[tuple[int, int]] = []

    def train(self, partition, arrays, config: ConfigRecord):
        if partition in self.fails:
            raise RuntimeError(f"no data for {partition}")
        if partition in self.hangs:
            self.never.wait(60)
        time.sleep(self.delay.get(partition, 0.0))
        self.trained.append((partition, int(config["round"])))
        return {"x": arrays["x"] + partition}, {"round": int(config["round"])}


@pytest.fixture
def behaviour() -> Behaviour:
    return Behaviour()


@pytest.fixture
def nodes(behaviour: Behaviour) -> Iterator[Nodes]:
    with Nodes(client_app(behaviour.train), 3) as nodes:
        yield nodes
        behaviour.never.set()


@pytest.fixture(params=["in process", "remote"])
def grid(request: pytest.FixtureRequest, nodes: Nodes) -> DeadlineGrid:
    inner = nodes.grid if request.param == "in process" else Remote(nodes.grid)
    return DeadlineGrid(inner, LIMIT, poll=0.02)


def messages(nodes: Nodes, round: int = 1) -> list[Message]:
    arrays = record({"x": np.zeros(2)})
    config = ConfigRecord({"round": round})
    return [
        Message(RecordDict({"arrays": arrays, "config": config}), node, MessageType.TRAIN)
        for node in nodes.ids
    ]


def rounds_of(replies: list[Message]) -> list[int | Absence]:
    return [
        absence_of(r)[0] if r.has_error() else int(r.content["metrics"]["round"]) for r in replies
    ]


def test_a_round_ends_when_all_have_answered(nodes: Nodes, grid: DeadlineGrid) -> None:
    grid.seconds = 600.0
    asked = messages(nodes)
    replies = grid.send_and_receive(asked)
    assert [r.metadata.src_node_id for r in replies] == nodes.ids
    assert rounds_of(replies) == [1, 1, 1]
    assert grid.late < 0
    assert 0 < grid.lasted < 600


def test_arrival_times_are_known(nodes: Nodes, grid: DeadlineGrid, behaviour: Behaviour) -> None:
    behaviour.fails, behaviour.delay[1] = {0}, 0.5
    grid.seconds = TOLERANCE
    grid.send_and_receive(messages(nodes))
    assert list(grid.failures) == nodes.ids[:1]
    assert sorted(grid.arrivals) == sorted(nodes.ids[1:])
    assert 0.5 <= grid.arrivals[nodes.ids[1]] <= grid.lasted
    grid.send_and_receive([])
    assert not grid.arrivals, "they are those of the last round"


def test_messages_that_expire_on_their_way_are_absences(nodes: Nodes) -> None:
    frozen = Frozen(nodes.grid)
    grid = DeadlineGrid(frozen, 0.2, poll=0.02)
    with pytest.raises(RuntimeError, match="500"):
        grid.send_and_receive(messages(nodes))  # they have not expired: another fault
    frozen.seconds = 1.5
    assert rounds_of(grid.send_and_receive(messages(nodes))) == [Absence.NOT_SENT] * 3
    assert grid.late > 1.0
    assert rounds_of(DeadlineGrid(nodes.grid, 60.0).send_and_receive(messages(nodes))) == [1, 1, 1]


def test_a_round_without_messages_ends_at_once(grid: DeadlineGrid) -> None:
    grid.seconds = 600.0
    assert grid.send_and_receive([]) == []


def test_a_late_node_is_absent_and_its_reply_is_never_used(
    nodes: Nodes, grid: DeadlineGrid, behaviour: Behaviour
) -> None:
    behaviour.delay[1] = LIMIT + 1.5
    first = grid.send_and_receive(messages(nodes, 1))
    assert rounds_of(first) == [1, Absence.LATE, 1]
    assert "no reply within 1 s" in absence_of(first[1])[1]
    assert 0 <= grid.late < TOLERANCE
    behaviour.delay.clear()
    # The late reply to round 1 arrives during these rounds; none of them may use it.
    later = [rounds_of(grid.send_and_receive(messages(nodes, k)))[1] for k in (2, 3, 4, 5)]
    assert 1 not in later
    assert later[-1] == 5
    assert all(x == k or isinstance(x, Absence) for k, x in zip((2, 3, 4, 5), later, strict=True))


def test_a_node_that_never_answers_delays_a_round_only_to_its_deadline(
    nodes: Nodes, grid: DeadlineGrid, behaviour: Behaviour
) -> None:
    behaviour.hangs.add(2)
    for number in (1, 2, 3):
        replies = grid.send_and_receive(messages(nodes, number))
        assert rounds_of(replies)[:2] == [number, number]
        assert absence_of(replies[2])[0] in (Absence.LATE, Absence.EXPIRED)
        assert replies[2].metadata.src_node_id == nodes.ids[2]
        assert 0 <= grid.late < TOLERANCE


def test_messages_of_past_rounds_expire(
    nodes: Nodes, grid: DeadlineGrid, behaviour: Behaviour
) -> None:
    """A node that hung does not work through the rounds that it missed."""
    behaviour.hangs.add(0)
    for number in (1, 2, 3):
        grid.send_and_receive(messages(nodes, number))
    time.sleep(1.5)
    behaviour.hangs.clear()
    behaviour.never.set()
    replies = grid.send_and_receive(messages(nodes, 4))
    again = grid.send_and_receive(messages(nodes, 5))
    assert rounds_of(again) == [5, 5, 5], (rounds_of(replies), behaviour.trained)
    seen = [number for partition, number in behaviour.trained if partition == 0]
    assert 2 not in seen
    assert 3 not in seen


def test_an_error_reply_is_an_absence_with_its_cause(
    nodes: Nodes, grid: DeadlineGrid, behaviour: Behaviour
) -> None:
    behaviour.fails.add(1)
    grid.seconds = 600.0
    replies = grid.send_and_receive(messages(nodes))
    assert rounds_of(replies) == [1, Absence.RAISED, 1]
    assert "no data for 1" in absence_of(replies[1])[1]
    assert replies[1].metadata.src_node_id == nodes.ids[1]


def test_a_node_that_leaves_in_a_round_is_gone(
    nodes: Nodes, grid: DeadlineGrid, behaviour: Behaviour
) -> None:
    grid.seconds = 60.0
    behaviour.hangs.add(2)
    threading.Timer(0.3, nodes.leave, [2]).start()
    replies = grid.send_and_receive(messages(nodes))
    assert rounds_of(replies) == [1, 1, Absence.GONE]
    assert grid.late < 0  # the round does not wait for it


def test_a_message_to_an_unknown_node_is_not_sent(nodes: Nodes, grid: DeadlineGrid) -> None:
    asked = messages(nodes)
    asked[2] = Message(asked[2].content, 12345, MessageType.TRAIN)
    replies = grid.send_and_receive(asked)
    assert rounds_of(replies) == [1, 1, Absence.NOT_SENT]
    assert grid.late < TOLERANCE


def test_a_round_that_reaches_no_node_lasts_its_time(nodes: Nodes, grid: DeadlineGrid) -> None:
    """A hub without a link to its workers must not run ahead of the others."""
    asked = [Message(m.content, 12345, MessageType.TRAIN) for m in messages(nodes)[:1]]
    started = time.monotonic()
    (reply,) = grid.send_and_receive(asked)
    assert absence_of(reply)[0] is Absence.NOT_SENT
    assert time.monotonic() - started >= LIMIT


def test_a_node_that_answers_twice_counts_once(nodes: Nodes, grid: DeadlineGrid) -> None:
    asked = messages(nodes)
    first = grid.send_and_receive(asked)
    assert rounds_of(first) == [1, 1, 1]
    # The second reply must not reach a later round.
    again = Message(first[0].content, reply_to=asked[0])
    again.metadata.__dict__["_message_id"] = "again"
    again.metadata.__dict__["_src_node_id"] = nodes.ids[0]
    nodes.state.store_message_res(again)
    assert rounds_of(grid.send_and_receive(messages(nodes, 2))) == [2, 2, 2]


def test_a_shorter_timeout_holds(nodes: Nodes, grid: DeadlineGrid, behaviour: Behaviour) -> None:
    grid.seconds = 600.0
    behaviour.hangs.add(0)
    replies = grid.send_and_receive(messages(nodes), timeout=0.3)
    assert rounds_of(replies) == [Absence.LATE, 1, 1]
    assert grid.lasted < TOLERANCE


def test_an_endless_upload_does_not_delay_the_round(nodes: Nodes) -> None:
    inner = Uploading(nodes.grid, nodes.ids[1])
    grid = DeadlineGrid(inner, 3.0, poll=0.02)
    try:
        replies = grid.send_and_receive(messages(nodes))
        assert rounds_of(replies) == [1, Absence.UPLOADING, 1]
        assert 0 <= grid.late < TOLERANCE
        assert rounds_of(grid.send_and_receive(messages(nodes, 2)))[::2] == [2, 2]
    finally:
        inner.done.set()


def test_a_pull_that_fails_is_tried_again(nodes: Nodes) -> None:
    class Flaky(Remote):
        failures = 3

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            if self.failures:
                self.failures -= 1
                raise ConnectionError("the SuperLink does not answer")
            return super().pull_messages(message_ids)

    grid = DeadlineGrid(Flaky(nodes.grid), 60.0, poll=0.02)
    assert rounds_of(grid.send_and_receive(messages(nodes))) == [1, 1, 1]


@pytest.mark.parametrize(("seconds", "poll"), [(0, 0.1), (-1, 0.1), (1, 0), (float("nan"), 0.1)])
def test_impossible_times_are_refused(nodes: Nodes, seconds: float, poll: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        DeadlineGrid(nodes.grid, seconds, poll)


# --- Many nodes on a remote grid ---


class Threads(Remote):
    """Counts the threads that pull, and lets the pull of one node's reply block."""

    def __init__(self, grid: Grid, uploading: int | None = None) -> None:
        super().__init__(grid)
        self.uploading, self.sent = uploading, {}
        self.pulling: set[int] = set()
        self.done = threading.Event()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        asked = list(messages)
        ids = list(super().push_messages(asked))
        self.sent.update({m.metadata.message_id: m.metadata.dst_node_id for m in asked})
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.pulling.add(threading.get_ident())
        # As Flower's grid: it asks for all replies at once, then waits for each one's arrays.
        replies = list(super().pull_messages(list(message_ids)))
        if any(r.metadata.src_node_id == self.uploading for r in replies):
            self.done.wait(60)
        return replies


MANY = 2 * MOST + 5


@pytest.fixture
def many() -> Iterator[Nodes]:
    def train(partition, arrays, config):
        # All but the first answer late enough not to come in one pull with it.
        time.sleep(0.0 if partition == 0 else 0.5)
        return {"x": arrays["x"]}, {"round": int(config["round"])}

    with Nodes(client_app(train), MANY) as nodes:
        yield nodes


def test_many_nodes_need_few_threads(many: Nodes) -> None:
    inner = Threads(many.grid)
    replies = DeadlineGrid(inner, 60.0, poll=0.02).send_and_receive(messages(many))
    assert rounds_of(replies) == [1] * MANY
    assert len(inner.pulling) <= MOST


def test_an_upload_does_not_hold_up_the_other_nodes_of_its_thread(many: Nodes) -> None:
    inner = Threads(many.grid, uploading=many.ids[0])
    grid = DeadlineGrid(inner, 4.0, poll=0.02)
    try:
        replies = grid.send_and_receive(messages(many))
        assert rounds_of(replies) == [Absence.UPLOADING] + [1] * (MANY - 1)
    finally:
        inner.done.set()
