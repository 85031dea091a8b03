"""Node identities: asked and answered over Flower's own grid, and waiting for nodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from flwr.app import Context
from flwr.clientapp import ClientApp

from mll_flower.grids.deadline import DeadlineGrid
from mll_flower.grids.node_identity import answer_identity, ask_identity, wait_for_nodes
from tests.support.flower_grid import Nodes


def app_with_identity() -> ClientApp:
    """Return an app that answers with its number of examples; partition 1 has no data."""

    def examples(context: Context) -> dict[str, int]:
        partition = int(context.node_config["partition-id"])
        if partition == 1 and context.node_config.get("broken"):
            raise FileNotFoundError("train.npz does not exist")
        return {"examples": 10 * (partition + 1)}

    app = ClientApp()
    answer_identity(app, examples)
    return app


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with Nodes(app_with_identity(), 3, lambda partition: {"hub": f"hub {partition % 2}"}) as nodes:
        yield nodes


@pytest.mark.parametrize("wrapped", [False, True])
def test_nodes_report_their_config_and_what_the_app_adds(nodes: Nodes, wrapped: bool) -> None:
    # A round's deadline of 1 ms must not count for this question.
    grid = DeadlineGrid(nodes.grid, 0.001) if wrapped else nodes.grid
    assert ask_identity(grid, nodes.ids, timeout=60.0) == {
        nodes.ids[0]: {"partition-id": 0, "hub": "hub 0", "examples": 10},
        nodes.ids[1]: {"partition-id": 1, "hub": "hub 1", "examples": 20},
        nodes.ids[2]: {"partition-id": 2, "hub": "hub 0", "examples": 30},
    }
    assert {kind for _, kind in nodes.asked} == {"query.mll_identity"}


def test_only_the_nodes_given_are_asked(nodes: Nodes) -> None:
    assert list(ask_identity(nodes.grid, nodes.ids[1:2], timeout=60.0)) == nodes.ids[1:2]
    assert [node for node, _ in nodes.asked] == nodes.ids[1:2]


def test_without_extra_values_the_node_config_is_the_identity() -> None:
    app = ClientApp()
    answer_identity(app)
    with Nodes(app, 1, lambda partition: {"hub": "lyon"}) as nodes:
        found = ask_identity(nodes.grid, nodes.ids, timeout=60.0)
    assert found == {nodes.ids[0]: {"partition-id": 0, "hub": "lyon"}}


def test_a_node_whose_app_raises_is_named_with_its_error() -> None:
    with Nodes(app_with_identity(), 3, lambda partition: {"broken": True}) as nodes:
        with pytest.raises(RuntimeError) as error:
            ask_identity(nodes.grid, nodes.ids, timeout=60.0)
        text = str(error.value)
    assert text.startswith("1 of 3 nodes did not say who they are")
    assert f"node {nodes.ids[1]}: raised: FileNotFoundError" in text
    assert "train.npz does not exist" in text
    assert "mll_flower.answer_identity(app)" in text


def test_the_error_for_an_app_that_does_not_answer_names_the_remedy(nodes: Nodes) -> None:
    nodes.app = ClientApp()
    with pytest.raises(
        RuntimeError, match=r"(?s)3 of 3 nodes.*call mll_flower\.answer_identity\(app\)"
    ):
        ask_identity(nodes.grid, nodes.ids, timeout=60.0)


def test_a_node_that_does_not_answer_in_time_is_late(nodes: Nodes) -> None:
    nodes.stop(2)
    nodes.come_back(2)  # connected again, but its app no longer runs
    with pytest.raises(RuntimeError, match=rf"1 of 3 .* node {nodes.ids[2]}: late: .*0\.5 s"):
        ask_identity(nodes.grid, nodes.ids, timeout=0.5)


def test_waiting_ends_when_enough_nodes_are_connected(nodes: Nodes) -> None:
    assert wait_for_nodes(nodes.grid, 3, timeout=0.0) == sorted(nodes.ids)
    later = threading.Timer(0.3, nodes.add)
    later.start()
    assert len(wait_for_nodes(nodes.grid, 4, timeout=60.0)) == 4
    later.join()  # the nodes may end only after the last one has begun


def test_waiting_counts_only_the_given_nodes(nodes: Nodes) -> None:
    among = set(nodes.ids[:2])
    assert wait_for_nodes(nodes.grid, 2, timeout=0.0, among=among) == sorted(among)
    with pytest.raises(RuntimeError, match="2 of 3 nodes are connected"):
        wait_for_nodes(nodes.grid, 3, timeout=0.0, among=among)


def test_missing_nodes_are_an_error_with_the_numbers_and_a_remedy(nodes: Nodes) -> None:
    began = time.monotonic()
    with pytest.raises(RuntimeError) as error:
        wait_for_nodes(nodes.grid, 5, timeout=0.3)
    assert time.monotonic() - began >= 0.3
    text = str(error.value)
    assert text.startswith("3 of 5 nodes are connected after 0.3 s")
    assert "num-supernodes=5" in text
