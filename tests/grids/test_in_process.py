"""The in-process grid: a real ClientApp on nodes of this process."""

from __future__ import annotations

import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from mll_flower.grids.absences import Absence, absence_of
from mll_flower.grids.deadline import DeadlineGrid
from mll_flower.grids.in_process import InProcessGrid


@pytest.fixture
def grid() -> InProcessGrid:
    """Three nodes that report what they know; the node of partition 1 raises if asked to."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        config = message.content.config_records["config"]
        if config.get("fails") == context.node_config["partition-id"]:
            raise RuntimeError("no data")
        visits = int(context.state.config_records.get("visits", {"count": 0})["count"]) + 1
        context.state["visits"] = ConfigRecord({"count": visits})
        seen = {**context.node_config, "tau": context.run_config["tau"], "visits": visits}
        return Message(RecordDict({"seen": ConfigRecord(seen)}), reply_to=message)

    return InProcessGrid(app, 3, {"tau": 8})


def messages(grid: InProcessGrid, **config: int) -> list[Message]:
    content = RecordDict({"config": ConfigRecord(dict(config))})
    return [Message(content, node, MessageType.TRAIN) for node in grid.get_node_ids()]


def seen(reply: Message) -> dict:
    return dict(reply.content.config_records["seen"])


def test_each_node_has_its_own_config_and_state(grid: InProcessGrid) -> None:
    assert list(grid.get_node_ids()) == [1, 2, 3]
    grid.send_and_receive(messages(grid)[:1])
    replies = grid.send_and_receive(messages(grid))
    assert [reply.metadata.src_node_id for reply in replies] == [1, 2, 3]
    assert [seen(reply) for reply in replies] == [
        {"partition-id": 0, "num-partitions": 3, "tau": 8, "visits": 2},
        {"partition-id": 1, "num-partitions": 3, "tau": 8, "visits": 1},
        {"partition-id": 2, "num-partitions": 3, "tau": 8, "visits": 1},
    ]


def test_replies_belong_to_their_messages_and_are_pulled_once(grid: InProcessGrid) -> None:
    asked = messages(grid)
    ids = grid.push_messages(asked)
    assert list(ids) == [message.metadata.message_id for message in asked]
    assert len(set(ids)) == 3
    (last,) = grid.pull_messages([ids[2], "unknown"])
    assert last.metadata.reply_to_message_id == ids[2]
    assert [r.metadata.reply_to_message_id for r in grid.pull_messages(ids)] == ids[:2]
    assert grid.pull_messages(ids) == []


def test_an_exception_in_the_app_is_an_error_reply(grid: InProcessGrid) -> None:
    replies = grid.send_and_receive(messages(grid, fails=1))
    assert [reply.has_error() for reply in replies] == [False, True, False]
    assert absence_of(replies[1]) == (Absence.RAISED, "RuntimeError: no data")


def test_a_wrapped_grid_creates_the_same_message(grid: InProcessGrid) -> None:
    content = RecordDict({"config": ConfigRecord({})})
    for maker in (grid, DeadlineGrid(grid, 60.0)):
        message = maker.create_message(content, MessageType.TRAIN, 2, "round 5", ttl=7.0)
        metadata = message.metadata
        assert (metadata.dst_node_id, metadata.message_type) == (2, MessageType.TRAIN)
        assert (metadata.group_id, metadata.ttl) == ("round 5", 7.0)
        assert seen(grid.send_and_receive([message])[0])["partition-id"] == 1


def test_the_grid_has_one_run(grid: InProcessGrid) -> None:
    run = grid.run
    grid.set_run(run)
    assert grid.run.run_id == run.run_id == 1
