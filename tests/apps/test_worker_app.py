"""The ClientApp: which role it plays, and how a node answers which workers it hosts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from mll_flower.apps import deployed_worker, simulated_worker
from mll_flower.apps.worker_app import worker_app
from mll_flower.grids.in_process import InProcessGrid
from mll_flower.grids.node_identity import ask_identity
from mll_flower.training.run_engine import run_engine
from tests.support.simulated import config_of, settings_of, task_and_shards


def identities(nodes: int, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the answers of all nodes, in the order of their partition ids."""
    grid = InProcessGrid(worker_app(), nodes, values)
    answers = ask_identity(grid, list(grid.get_node_ids()), timeout=10)
    return sorted(answers.values(), key=lambda answer: answer["partition-id"])


@pytest.mark.parametrize(
    ("role", "expected"), [(None, "hosted"), ("network", "hosted"), ("hub", "deployed")]
)
def test_the_role_decides_who_trains(role, expected, monkeypatch) -> None:
    called = []

    def replace_training(module: Any, name: str, label: str) -> None:
        def train(message: Message, context: Context) -> Message:
            called.append(label)
            return Message(RecordDict(), reply_to=message)

        monkeypatch.setattr(module, name, train)

    replace_training(simulated_worker, "train_hosted", "hosted")
    replace_training(deployed_worker, "train_deployed", "deployed")
    grid = InProcessGrid(worker_app(), 1, {} if role is None else {"role": role})
    (reply,) = grid.send_and_receive([Message(RecordDict(), 1, "train")])
    assert not reply.has_error()
    assert called == [expected]


@pytest.mark.parametrize(
    ("pool", "hosted"),
    [
        ("hub", [[0, 1], [2, 3, 4], [5], []]),
        ("worker", [[0], [1], [2], [3], [4], [5], [], []]),
    ],
)
def test_a_node_of_a_simulation_names_the_workers_it_hosts(pool: str, hosted) -> None:
    """Hubs of 2, 3 and 1 workers; the last nodes are more than are needed and host nothing."""
    answers = identities(len(hosted), settings_of({"pool": pool, "partition": "sized"}))
    assert [answer["workers"] for answer in answers] == hosted
    sizes = [len(shard) for shard in task_and_shards(config_of(partition="sized"))[1]]
    assert [answer["examples"] for answer in answers] == [[sizes[i] for i in w] for w in hosted]
    assert [answer["num-partitions"] for answer in answers] == [len(hosted)] * len(hosted)


def test_a_worker_of_a_deployment_answers_with_its_node_config_alone() -> None:
    (answer,) = identities(1, {"role": "hub"})
    assert answer == {"partition-id": 0, "num-partitions": 1}


@pytest.mark.parametrize(("pool", "node"), [("worker", 3), ("hub", 1)])
def test_one_message_may_cover_several_rounds(pool: str, node: int) -> None:
    """The reply has the steps of each hosted worker over all rounds together."""
    values = settings_of({"pool": pool, "rates": "1"})
    grid = InProcessGrid(worker_app(), config_of(pool=pool).nodes, values)
    engine = run_engine(config_of())
    workers = [2, 3, 4] if pool == "hub" else [3]
    request = {
        "rounds": [1, 2, 3],
        "learning-rates": [0.1, 0.1, 0.0],
        "weights": [1.0] * len(workers),
    }
    content = RecordDict(
        {"arrays": engine.layout.record(engine.initial()), "config": ConfigRecord(request)}
    )
    (reply,) = grid.send_and_receive([Message(content, node + 1, "train")])
    metrics = reply.content["metrics"]
    assert metrics["workers"] == workers
    assert metrics["steps"] == [3 * 4] * len(workers)
    assert all(0 < loss < 1 for loss in metrics["losses"])
    assert reply.content["absent"]["workers"] == []
    trained = reply.content["arrays"]["linear.weight"].numpy()
    assert trained.any()


@pytest.mark.filterwarnings("error")
def test_a_loss_beyond_all_bounds_is_told_as_it_is() -> None:
    steps, losses = np.array([[2, 0, 4], [2, 0, 4]]), np.array([[0.5, np.nan, np.inf]] * 2)
    metrics = simulated_worker._metrics([0, 1, 2], steps, losses)
    assert metrics["steps"] == [4, 0, 8]
    assert [str(loss) for loss in metrics["losses"]] == ["0.5", "nan", "inf"]
