"""Node identities: the server side asks each node for its node config, and a ClientApp answers.

Flower's server side cannot see a node's config, which may say, for example, to which hub the node
belongs. `answer_identity` makes a ClientApp report it on request; nothing else in the app changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from logging import INFO
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.app.typing import ConfigRecordValues
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore import log

from mll_flower.grids.absences import absence_of
from mll_flower.grids.deadline import DeadlineGrid

QUERY = "query.mll_identity"
"""Message type of the question."""

Identity = dict[str, Any]
"""A node's node config, and what its app adds to it."""


def answer_identity(
    app: ClientApp, extra: Callable[[Context], Mapping[str, ConfigRecordValues]] | None = None
) -> None:
    """Make a ClientApp report its node config when asked.

    Parameters
    ----------
    app : ClientApp
        The app to register the answer with.
    extra : callable, optional
        Returns further values to report, such as the number of local examples.
    """

    @app.query("mll_identity")
    def identity(message: Message, context: Context) -> Message:
        values: Identity = dict(context.node_config)
        if extra is not None:
            values.update(extra(context))
        content = RecordDict({"identity": ConfigRecord(values)})
        return Message(content, reply_to=message)


def ask_identity(grid: Grid, nodes: list[int], timeout: float) -> dict[int, Identity]:
    """Ask nodes for their identities.

    Parameters
    ----------
    grid : Grid
        The grid that connects the nodes.
    nodes : list of int
        Ids of the nodes to ask.
    timeout : float
        Seconds that the nodes have to answer.

    Returns
    -------
    dict
        The identity of each node, by node id.

    Raises
    ------
    RuntimeError
        If a node does not answer, or answers with an error.
    """
    messages = [Message(RecordDict(), node, QUERY) for node in nodes]
    answers: dict[int, Identity] = {}
    silent: dict[int, str] = {}
    if isinstance(grid, DeadlineGrid):
        grid = grid.grid  # this question has a timeout of its own, not the rounds' deadline
    for reply in DeadlineGrid(grid, timeout).send_and_receive(messages):
        node = reply.metadata.src_node_id
        if reply.has_error():
            silent[node] = ": ".join(absence_of(reply))[:300]
        else:
            answers[node] = dict(reply.content.config_records["identity"])
    if silent:
        node, why = next(iter(silent.items()))
        raise RuntimeError(
            f"{len(silent)} of {len(nodes)} nodes did not say who they are; node {node}: {why}. "
            "Does their ClientApp call mll_flower.answer_identity(app)?"
        )
    return answers


def wait_for_nodes(
    grid: Grid, expected: int, timeout: float, among: Container[int] | None = None
) -> list[int]:
    """Wait until at least ``expected`` nodes are connected.

    Parameters
    ----------
    grid : Grid
        The grid to ask for its nodes.
    expected : int
        Number of nodes to wait for.
    timeout : float
        Seconds to wait.
    among : container of int, optional
        Count only nodes with these ids.

    Returns
    -------
    list of int
        Ids of the nodes, sorted.

    Raises
    ------
    RuntimeError
        If fewer nodes are connected when the time is up.
    """
    end = time.monotonic() + timeout
    announced = -1
    while True:
        nodes = sorted(n for n in grid.get_node_ids() if among is None or n in among)
        if len(nodes) >= expected:
            return nodes
        if time.monotonic() >= end:
            raise RuntimeError(
                f"{len(nodes)} of {expected} nodes are connected after {timeout:g} s: start the "
                "missing ones (in a simulation, --federation-config num-supernodes="
                f"{expected}), or lower the number of workers"
            )
        if len(nodes) != announced:
            log(INFO, "Waiting for nodes: %d of %d are connected", len(nodes), expected)
            announced = len(nodes)
        time.sleep(0.2)
