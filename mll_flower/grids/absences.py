"""Absences: why a worker has no part in a round, and how an error reply says so."""

from __future__ import annotations

from enum import StrEnum

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode


class Absence(StrEnum):
    """Why a worker counts as absent from a round."""

    LATE = "late"
    UPLOADING = "uploading"
    RAISED = "raised"
    EXPIRED = "expired"
    GONE = "gone"
    DIED = "died"
    NOT_SENT = "not-sent"
    NO_MODEL = "no-model"
    WRONG_SHAPE = "wrong-shape"
    NOT_FINITE = "not-finite"
    NO_WEIGHT = "no-weight"


_CAUSES = {
    ErrorCode.MESSAGE_UNAVAILABLE: Absence.EXPIRED,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: Absence.EXPIRED,
    ErrorCode.NODE_UNAVAILABLE: Absence.GONE,
    ErrorCode.CLIENT_APP_CRASHED: Absence.DIED,
}


def absent_reply(message: Message, absence: Absence, why: str) -> Message:
    """Return an error reply that stands for a reply that cannot be used."""
    return Message(Error(code=0, reason=f"{absence}: {why}"), reply_to=message)


def absence_of(reply: Message) -> tuple[Absence, str]:
    """Read the cause and its explanation from an error reply."""
    reason = reply.error.reason or "no reason given"
    cause, _, why = reason.partition(": ")
    if reply.error.code == 0 and cause in set(Absence):
        return Absence(cause), why
    return _CAUSES.get(reply.error.code, Absence.RAISED), reason
