"""Absences: why a worker has no part in a round, and error replies that carry the reason."""

from __future__ import annotations

from enum import StrEnum

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode


class Absence(StrEnum):
    """Why a worker counts as absent from a round; the values appear in logs and metrics."""

    # No reply by the deadline.
    LATE = "late"
    # The reply was still being uploaded at the deadline.
    UPLOADING = "uploading"
    # The ClientApp raised an exception.
    RAISED = "raised"
    # The message or its reply expired.
    EXPIRED = "expired"
    # The node has left the network.
    GONE = "gone"
    # The ClientApp's process died.
    DIED = "died"
    # The SuperLink did not accept the message.
    NOT_SENT = "not-sent"
    # The reply does not hold exactly one ArrayRecord.
    NO_MODEL = "no-model"
    # The model's names, shapes or dtypes are not those of the hub's model.
    WRONG_SHAPE = "wrong-shape"
    # The model has a value that is not finite.
    NOT_FINITE = "not-finite"
    # The metric that is the worker's weight is missing or not usable.
    NO_WEIGHT = "no-weight"
    # The reply does not say what corrections need, such as the number of steps.
    NO_STEPS = "no-steps"
    # The update, the metrics or the reply as a whole is larger than the hub accepts.
    TOO_LARGE = "too-large"


_ABSENCE_OF_CODE = {
    ErrorCode.MESSAGE_UNAVAILABLE: Absence.EXPIRED,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: Absence.EXPIRED,
    ErrorCode.NODE_UNAVAILABLE: Absence.GONE,
    ErrorCode.CLIENT_APP_CRASHED: Absence.DIED,
}


def absent_reply(message: Message, absence: Absence, why: str) -> Message:
    """Return an error reply to a message whose own reply is missing or cannot be used."""
    return Message(Error(code=0, reason=f"{absence}: {why}"), reply_to=message)


def absence_of(reply: Message) -> tuple[Absence, str]:
    """Return the cause of an error reply, made by `absent_reply` or by Flower, and its details."""
    reason = reply.error.reason or "no reason given"
    cause, _, why = reason.partition(": ")
    if reply.error.code == 0 and cause in set(Absence):
        return Absence(cause), why
    return _ABSENCE_OF_CODE.get(reply.error.code, Absence.RAISED), reason
