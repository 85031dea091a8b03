"""Messages of Flower's simulation are delivered at once, each of them once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.server.superlink.fleet.vce import vce_api

from mll_flower.grids import _prompt_messages
from mll_flower.grids._prompt_messages import deliver_promptly
from mll_flower.grids.deadline import DeadlineGrid
from tests.support.flower_grid import Nodes


@pytest.fixture
def nodes() -> Nodes:
    """Nodes that have stopped: nobody but a simulation takes their messages."""
    with Nodes(ClientApp(), 3) as nodes:
        pass
    return nodes


class Simulation:
    """The part of Flower's simulation that delivers messages, run in its own thread."""

    def __init__(self, nodes: Nodes) -> None:
        self.queue: Queue[Message] = Queue()
        self.stop = threading.Event()
        arguments = (nodes.state, self.queue, dict.fromkeys(nodes.ids, 0), self.stop)
        self.thread = threading.Thread(target=vce_api.add_messages_to_queue, args=arguments)
        self.thread.start()

    def taken(self, count: int) -> list[str]:
        found = [self.queue.get(timeout=5).metadata.message_id for _ in range(count)]
        time.sleep(0.15)  # Flower's own thread has had another look
        assert self.queue.empty()
        return found


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "deliver-promptly"]


@pytest.fixture
def simulation(nodes: Nodes) -> Iterator[Simulation]:
    simulation = Simulation(nodes)
    yield simulation
    simulation.stop.set()
    for thread in (simulation.thread, *ours()):
        thread.join(timeout=5)
        assert not thread.is_alive()


def messages(nodes: Nodes, *places: int) -> list[Message]:
    return [Message(RecordDict(), nodes.ids[place], "train") for place in places]


def push(nodes: Nodes, *places: int) -> list[str]:
    return list(nodes.grid.push_messages(messages(nodes, *places)))


def test_each_message_is_delivered_once_in_order(nodes: Nodes, simulation: Simulation) -> None:
    deliver_promptly(nodes.grid)
    time.sleep(0.2)  # it has taken over
    for _ in range(3):
        pushed = push(nodes, 1, 0, 1, 2)
        assert simulation.taken(4) == pushed
    assert all(m.metadata.delivered_at for m in nodes.state.message_ins_store.values())
    assert nodes.state.get_message_ins(nodes.ids[0], limit=None) == []


def test_messages_wait_for_no_poll(nodes: Nodes, simulation: Simulation) -> None:
    deliver_promptly(nodes.grid)
    push(nodes, 0)
    simulation.taken(1)
    start = time.monotonic()
    for _ in range(100):
        push(nodes, 0)
        simulation.queue.get(timeout=5)
    assert time.monotonic() - start < 5  # Flower's own takes 10 s, whatever else goes on


def test_messages_from_before_are_delivered(nodes: Nodes, simulation: Simulation) -> None:
    pushed = push(nodes, 2, 2, 2, 0)
    deliver_promptly(nodes.grid)
    assert sorted(simulation.taken(4)) == sorted(pushed)


def test_a_message_that_is_stored_again_or_refused_is_not_delivered(
    nodes: Nodes, simulation: Simulation
) -> None:
    deliver_promptly(nodes.grid)
    [message] = messages(nodes, 0)
    list(nodes.grid.push_messages([message]))
    simulation.taken(1)
    nodes.state.store_message_ins(message)
    assert simulation.taken(0) == []
    stray = Message(RecordDict(), 12345, "train")
    assert list(nodes.grid.push_messages([stray])) == []
    assert simulation.taken(0) == []


def test_nothing_is_lost_or_doubled_while_it_takes_over(
    nodes: Nodes, simulation: Simulation
) -> None:
    pushed: list[str] = []

    def push_many() -> None:
        for _ in range(100):
            pushed.extend(push(nodes, 0, 1, 2))

    threads = [threading.Thread(target=push_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    deliver_promptly(nodes.grid)
    for thread in threads:
        thread.join()
    assert sorted(simulation.taken(1200)) == sorted(pushed)


def test_a_deadline_grid_sees_to_it_once(nodes: Nodes, simulation: Simulation) -> None:
    grid = DeadlineGrid(nodes.grid, 0.01)
    assert not ours()
    for _ in range(3):
        grid.send_and_receive(messages(nodes, 0))
        assert len(ours()) == 1
    simulation.taken(3)


def test_two_simulations_are_kept_apart(nodes: Nodes, simulation: Simulation) -> None:
    with Nodes(ClientApp(), 2) as others:
        pass
    deliver_promptly(others.grid)  # for which no simulation runs
    assert not ours()
    deliver_promptly(nodes.grid)
    assert len(push(others, 0)) == 1
    assert simulation.taken(0) == []


@pytest.mark.parametrize("change", ["arguments", "function", "module"])
def test_another_release_of_flower_is_left_alone(
    change: str, nodes: Nodes, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    find: Callable[..., Any] = nodes.state.get_message_ins
    if change == "arguments":
        monkeypatch.setattr(_prompt_messages, "_ARGUMENTS", ["state", "queue"])
    elif change == "function":
        monkeypatch.setattr(_prompt_messages, "_FUNCTION", "deliver_messages")
    else:
        monkeypatch.setattr(_prompt_messages, "_MODULE", "flwr.simulation.not_there")
    deliver_promptly(nodes.grid)
    assert not ours()
    assert nodes.state.get_message_ins == find
    pushed = push(nodes, 0, 1)
    assert sorted(simulation.taken(2)) == sorted(pushed)
