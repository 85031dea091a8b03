"""What is removed from a SuperLink's database: what has expired, with its arrays."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.state.schema.corestate_models import TaskLogsTable
from flwr.supercore.state.schema.linkstate_models import MessageIns, MessageRes
from flwr.superlink.federation import NoOpFederationManager
from sqlalchemy import insert, select, text

from mll_flower.processes.superlink_cleaning import clean_regularly, remove_expired, shrink

MODEL = sha256(b"model").hexdigest()  # of the instructions, which share it


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "superlink.db"


@pytest.fixture
def state(database: Path) -> Iterator[Any]:
    factory = LinkStateFactory(
        str(database), NoOpFederationManager(), ObjectStoreFactory(str(database))
    )
    state: Any = factory.state()
    yield state
    state._engine.dispose()
    state.object_store._engine.dispose()


def add(state: Any, table: Any, name: str, left: float, part: str) -> str:
    """Store a message that is valid for some more seconds, with one array; return its id."""
    id = sha256(name.encode()).hexdigest()
    tree = ObjectTree(object_id=id, children=[ObjectTree(object_id=part)])
    for missing in state.object_store.preregister(1, tree):
        with state.object_store.session() as session:
            session.execute(
                text(
                    "UPDATE objects SET content = zeroblob(100000), is_available = 1 "
                    "WHERE object_id = :id"
                ),
                {"id": missing},
            )
    with state.session() as session:
        session.execute(text("PRAGMA foreign_keys = OFF"))
        session.execute(
            insert(table).values(
                message_id=id,
                reply_to_message_id=f"to {name}",
                ttl=100.0,
                created_at=time.time() - 100.0 + left,
            )
        )
    return id


def objects(state: Any) -> set[str]:
    with state.object_store.session() as session:
        return set(session.execute(text("SELECT object_id FROM objects")).scalars())


def messages(state: Any) -> set[str]:
    with state.session() as session:
        return {
            id
            for table in (MessageIns, MessageRes)
            for id in session.scalars(select(table.message_id))
        }


def test_expired_messages_go_with_their_arrays(state: Any) -> None:
    reply = sha256(b"reply").hexdigest()
    old = add(state, MessageIns, "old", -100.0, MODEL)
    add(state, MessageRes, "late reply", -100.0, reply)
    just = add(state, MessageIns, "just expired", -10.0, MODEL)
    now = add(state, MessageIns, "valid", 50.0, MODEL)
    assert {old, reply, MODEL} <= objects(state)
    assert remove_expired(state) == 2
    assert messages(state) == {just, now}
    assert objects(state) == {just, now, MODEL}, "the model is still needed"
    assert remove_expired(state) == 0


def test_the_newest_lines_of_logs_stay(state: Any) -> None:
    with state.session() as session:
        session.execute(text("PRAGMA foreign_keys = OFF"))
        for n in range(30):
            session.execute(insert(TaskLogsTable).values(timestamp=float(n), task_id=1, log="x"))
    remove_expired(state, log_lines=10)
    with state.session() as session:
        kept = session.scalars(select(TaskLogsTable.c.timestamp)).all()
    assert sorted(kept) == [float(n) for n in range(20, 30)]
    remove_expired(state, log_lines=10)
    with state.session() as session:
        assert len(session.scalars(select(TaskLogsTable.c.timestamp)).all()) == 10


def test_it_is_done_now_and_then_and_faults_do_not_end_it(state: Any) -> None:
    calls = 0

    def failing_first() -> Any:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise RuntimeError("the database is locked")
        return state

    add(state, MessageIns, "old", -100.0, MODEL)
    over = clean_regularly(failing_first, pause=0.02)
    end = time.monotonic() + 20
    while messages(state):
        assert time.monotonic() < end
        time.sleep(0.02)
    over.set()


def test_space_is_given_back_before_a_start(state: Any, database: Path) -> None:
    for n in range(50):
        add(state, MessageRes, f"reply {n}", -100.0, sha256(f"part {n}".encode()).hexdigest())
    remove_expired(state)
    state._engine.dispose()
    state.object_store._engine.dispose()
    large = database.stat().st_size
    shrink(database)
    assert database.stat().st_size < large / 5
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM node").fetchone() == (0,)
    shrink(database.with_name("none.db"))
    assert not database.with_name("none.db").exists()
