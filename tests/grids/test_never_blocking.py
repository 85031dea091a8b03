"""Which grids `DeadlineGrid` may pull from directly, and that it does so only with these."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.superlink.grid import InMemoryGrid

from mll_flower.grids._never_blocking import never_blocks
from mll_flower.grids.deadline import DeadlineGrid
from mll_flower.grids.in_process import InProcessGrid
from mll_flower.grids.wrapper import GridWrapper
from tests.support.arrays import record
from tests.support.flower_grid import Nodes, client_app


def same(partition: int, arrays: dict[str, np.ndarray], config: ConfigRecord):
    return arrays, {}


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with Nodes(client_app(same), 1) as nodes:
        yield nodes


def test_grids_of_this_process_never_block(nodes: Nodes) -> None:
    assert isinstance(nodes.grid, InMemoryGrid)
    assert never_blocks(nodes.grid)
    assert never_blocks(InProcessGrid(nodes.app, 1, {}))
    assert not never_blocks(GridWrapper(nodes.grid))


def test_a_flower_without_that_grid_is_no_error(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower may move its class; then its grid counts as remote, which is correct but slower."""
    monkeypatch.delattr("flwr.superlink.grid.InMemoryGrid")
    assert not never_blocks(nodes.grid)
    monkeypatch.delitem(sys.modules, "flwr.superlink.grid")
    assert not never_blocks(nodes.grid)
    assert never_blocks(InProcessGrid(nodes.app, 1, {}))


@pytest.mark.parametrize("remote", [False, True])
def test_only_a_remote_grid_is_pulled_in_other_threads(
    nodes: Nodes, remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulling: set[threading.Thread] = set()
    pull = nodes.grid.pull_messages

    def recorded(message_ids: Iterable[str]) -> Iterable[Message]:
        pulling.add(threading.current_thread())
        return pull(message_ids)

    monkeypatch.setattr(nodes.grid, "pull_messages", recorded)
    grid = DeadlineGrid(GridWrapper(nodes.grid) if remote else nodes.grid, 60.0)
    content = RecordDict({"arrays": record({"x": np.zeros(1)}), "config": ConfigRecord()})
    (reply,) = grid.send_and_receive([Message(content, nodes.ids[0], MessageType.TRAIN)])
    assert not reply.has_error()
    assert pulling
    assert (threading.current_thread() in pulling) == (not remote)
