"""Error replies and the absences that they stand for."""

from __future__ import annotations

import pytest
from flwr.app import Error, Message, MessageType, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from mll_flower.grids.absences import Absence, absence_of, absent_reply


@pytest.fixture
def message() -> Message:
    """A message to node 7, with the id that a grid would give it."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID
    message = Message(RecordDict(), 7, MessageType.TRAIN)
    message.metadata.__dict__["_message_id"] = "message-1"
    return message


@pytest.mark.parametrize("absence", Absence)
def test_the_reason_of_an_absent_reply_can_be_read_back(message: Message, absence: Absence) -> None:
    reply = absent_reply(message, absence, "node 7: no reply: 30 s")
    assert reply.has_error()
    assert reply.metadata.src_node_id == 7
    assert reply.metadata.reply_to_message_id == "message-1"
    assert absence_of(reply) == (absence, "node 7: no reply: 30 s")


@pytest.mark.parametrize(
    ("code", "absence"),
    [
        (ErrorCode.MESSAGE_UNAVAILABLE, Absence.EXPIRED),
        (ErrorCode.REPLY_MESSAGE_UNAVAILABLE, Absence.EXPIRED),
        (ErrorCode.NODE_UNAVAILABLE, Absence.GONE),
        (ErrorCode.CLIENT_APP_CRASHED, Absence.DIED),
        (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, Absence.RAISED),
    ],
)
def test_flowers_error_codes_have_an_absence(message: Message, code: int, absence: Absence) -> None:
    reply = Message(Error(code, "late: this is Flower's own text"), reply_to=message)
    assert absence_of(reply) == (absence, "late: this is Flower's own text")


def test_an_error_without_a_reason_still_has_a_text(message: Message) -> None:
    reply = Message(Error(ErrorCode.NODE_UNAVAILABLE), reply_to=message)
    assert absence_of(reply) == (Absence.GONE, "no reason given")


def test_code_zero_with_another_text_is_an_exception(message: Message) -> None:
    reply = Message(Error(0, "ValueError: no data"), reply_to=message)
    assert absence_of(reply) == (Absence.RAISED, "ValueError: no data")
