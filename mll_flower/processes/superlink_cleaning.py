"""Keep a SuperLink's database small: remove what Flower itself would never look at again.

Flower removes a message and its reply when the reply is fetched. What stays, for as long as the
run lasts, are messages that were never answered and replies that came too late, each with a whole
model, and every line that the ServerApp has logged.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from logging import WARNING
from pathlib import Path
from typing import Any

PAUSE = 60.0
"""Seconds between two cleanings."""

GRACE = 60.0
"""Seconds after a message has expired at which it is removed."""

LOG_LINES = 5000
"""Lines of the ServerApps' logs that are kept; the hub has its own log file."""

_FREE = 0.25  # share of a database without contents from which it is written anew at the start


def clean_regularly(state: Callable[[], Any], pause: float = PAUSE) -> threading.Event:
    """Clean a SuperLink's state now and then, in a thread of its own.

    Parameters
    ----------
    state : callable
        Returns Flower's ``SqlLinkState``.
    pause : float
        Seconds between two cleanings.

    Returns
    -------
    threading.Event
        Set it to clean no more.
    """
    from flwr.supercore import log

    over = threading.Event()

    def clean() -> None:
        failed = ""
        while not over.wait(pause):
            try:
                remove_expired(state())
            except Exception as error:  # a SuperLink that grows is better than none
                if repr(error) != failed:
                    log(WARNING, "The SuperLink's database could not be cleaned: %s", error)
                failed = repr(error)

    threading.Thread(target=clean, name="superlink cleaning", daemon=True).start()
    return over


def remove_expired(state: Any, log_lines: int = LOG_LINES) -> int:
    """Remove expired messages with their arrays, and old lines of logs; return how many messages.

    Parameters
    ----------
    state : SqlLinkState
        Flower's state of a SuperLink.
    log_lines : int
        Lines of logs that are kept.
    """
    from flwr.supercore.state.schema.corestate_models import TaskLogsTable
    from flwr.supercore.state.schema.linkstate_models import MessageIns, MessageRes
    from sqlalchemy import delete, select

    models: tuple[Any, Any] = MessageIns, MessageRes
    removed: list[str] = []
    limit = time.time() - GRACE
    with state.session() as session:
        for model in models:
            expired = model.created_at + model.ttl < limit
            removed += session.scalars(select(model.message_id).where(expired)).all()
            session.execute(delete(model).where(expired))
        logged = TaskLogsTable.c.timestamp
        newest = select(logged).order_by(logged.desc()).offset(log_lines).limit(1)
        oldest = session.scalar(newest)
        if oldest is not None:
            session.execute(delete(TaskLogsTable).where(logged <= oldest))
    for message in removed:
        state.object_store.delete(message)
    return len(removed)


def shrink(database: Path) -> None:
    """Give the space of removed contents back to the disk; before the SuperLink starts.

    Parameters
    ----------
    database : Path
        The file; it need not exist.
    """
    if not database.is_file():
        return
    # A database that cannot be read is for Flower to name.
    with suppress(sqlite3.Error), closing(sqlite3.connect(database, timeout=1.0)) as connection:
        ((pages,),) = connection.execute("PRAGMA page_count")
        ((free,),) = connection.execute("PRAGMA freelist_count")
        if free > _FREE * pages:
            connection.execute("VACUUM")
