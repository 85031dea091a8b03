"""A deployed worker: how long it trains, on which data, and what it replies."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from mll_flower.apps.deployed_worker import (
    UPLOAD,
    UPLOAD_SHARE,
    seconds_left,
    train_deployed,
    worker_engine,
)
from tests.support.deployment import write_data

OWN_ROWS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network's data set, and a worker's own."""
    folder = tmp_path_factory.mktemp("data")
    write_data(folder / "data.npz")
    arrays = dict(np.load(folder / "data.npz"))
    own = {"x_train": arrays["x_train"][:OWN_ROWS], "y_train": arrays["y_train"][:OWN_ROWS]}
    np.savez(folder / "own.npz", **{**arrays, **own})
    return folder


@pytest.fixture(autouse=True)
def task() -> None:
    """Set what Flower's runtime sets for the messages that a process makes."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


def context_of(folder: Path, node: dict[str, Any], **values: Any) -> Context:
    """Return a worker's context: one of 4 workers of 2 hubs, 5 slots per round."""
    config = {
        "role": "hub",
        "dataset": f"npz:{folder}/data.npz",
        "model": "logistic",
        "hubs": 2,
        "workers-per-hub": "2,2",
        "graph": "complete",
        "tau": 5,
        "batch-size": 8,
        "learning-rate": 0.1,
        **values,
    }
    return Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=config)


def instruction(context: Context, slot: float, ttl: float = 60.0, round: int = 3) -> Message:
    """Return the message with which a hub starts a worker's round."""
    engine, _ = worker_engine(context)
    arrays = engine.layout.record(engine.initial())
    config = ConfigRecord({"round": round, "slot-seconds": slot})
    content = RecordDict({"arrays": arrays, "config": config})
    return Message(content, 1, MessageType.TRAIN, ttl=ttl)


def at_age(message: Message, age: float) -> Message:
    message.metadata.__dict__["_created_at"] = time.time() - age
    return message


@pytest.mark.parametrize(
    ("ttl", "age", "left"),
    [
        (20.0, 5.0, 20.0 - 5.0 - UPLOAD),
        (100.0, 5.0, 100.0 - 5.0 - UPLOAD_SHARE * 100.0),
        (20.0, 18.0, 20.0 - 18.0 - UPLOAD),  # negative: no step is begun
        (20.0, -1.0, math.inf),  # from the future: the clocks differ
        (20.0, 21.0, math.inf),  # expired, and yet it came: the clocks differ
    ],
)
def test_seconds_left_of_a_message(ttl: float, age: float, left: float) -> None:
    message = at_age(Message(RecordDict(), 1, MessageType.TRAIN, ttl=ttl), age)
    assert seconds_left(message) == pytest.approx(left, abs=0.5)


def test_without_own_data_a_worker_holds_its_part_of_the_network_s(folder: Path) -> None:
    engine, place = worker_engine(context_of(folder, {"partition-id": 2}))
    assert place == 2
    assert sum(engine.examples(i) for i in range(4)) == 1500


def test_own_data_come_from_the_node_config(folder: Path) -> None:
    node = {"partition-id": 2, "dataset": f"npz:{folder}/own.npz"}
    engine, place = worker_engine(context_of(folder, node, partition="sized"))
    assert (place, engine.examples(place)) == (0, OWN_ROWS)


def test_the_reply(folder: Path) -> None:
    context = context_of(folder, {"partition-id": 2})
    message = instruction(context, slot=0.001)
    content = train_deployed(message, context).content
    metrics = content.metric_records["metrics"]
    engine, place = worker_engine(context)
    assert metrics["worker"] == 2
    assert metrics["num-examples"] == metrics["weight"] == engine.examples(2)
    assert 1 <= metrics["steps"] <= 5
    assert metrics["rate"] == metrics["steps"] / 5
    # The model is that of as many steps, taken without a clock.
    expected = engine.initial()
    engine.train(expected, place, 3, metrics["steps"], 0.1)
    model = engine.layout.flatten(content.array_records["arrays"])
    np.testing.assert_array_equal(model["float32"], expected["float32"])


@pytest.mark.parametrize(("weights", "weight"), [("equal", 1.0), ("1,2,3,4", 3.0)])
def test_weights_that_are_given(folder: Path, weights: str, weight: float) -> None:
    context = context_of(folder, {"partition-id": 2}, weights=weights)
    reply = train_deployed(instruction(context, slot=0.001), context)
    assert reply.content.metric_records["metrics"]["weight"] == weight


def test_training_ends_before_the_hub_s_deadline(folder: Path) -> None:
    # 50 s of slots, but the hub waits 4 s: the worker stops after 1 s, and uploads.
    context = context_of(folder, {"partition-id": 0}, tau=1000)
    message = instruction(context, slot=0.05, ttl=UPLOAD + 1.0)
    started = time.monotonic()
    metrics = train_deployed(message, context).content.metric_records["metrics"]
    assert time.monotonic() - started < UPLOAD
    assert metrics["steps"] <= 21


def test_no_step_is_begun_when_there_is_no_time_left(folder: Path) -> None:
    context = context_of(folder, {"partition-id": 0})
    message = at_age(instruction(context, slot=0.001, ttl=20.0), 19.0)
    reply = train_deployed(message, context)
    metrics = reply.content.metric_records["metrics"]
    assert (metrics["steps"], metrics["rate"], metrics["loss"]) == (0, 0.0, 0.0)
    sent, received = (m.content.array_records["arrays"] for m in (message, reply))
    assert all((sent[k].numpy() == received[k].numpy()).all() for k in sent)


def test_a_loss_beyond_all_bounds_is_told_as_it_is(folder: Path) -> None:
    context = context_of(folder, {"partition-id": 0}, **{"learning-rate": 1e38})
    metrics = train_deployed(instruction(context, 0.001), context).content["metrics"]
    assert metrics["steps"] > 1
    assert not math.isfinite(metrics["loss"])
