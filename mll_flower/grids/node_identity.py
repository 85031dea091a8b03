"""Who is this node? One question to every node, and its answer in a ClientApp.

Flower's server side sees no node config. A ClientApp that calls `answer_identity` tells
its node config when asked, with one line and nothing else changed.
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

Identity = dict[str, Any]


def answer_identity(
    app: ClientApp, extra: Callable[[Context], Mapping[str, ConfigRecordValues]] | None = None
) -> None:
    """Make a ClientApp answer with its node config.

    Parameters
    ----------
    app : ClientApp
        The app to register the answer with.
    extra : callable, optional
        More to tell, such as the number of local examples.
    """

    @app.query("mll_identity")
    def identity(message: Message, context: Context) -> Message:
        values: Identity = dict(context.node_config)
        if extra is not None:
            values.update(extra(context))
        content = RecordDict({"identity": ConfigRecord(values)})
        return Message(content, reply_to=message)


def ask_identity(grid: Grid, nodes: list[int], timeout: float) -> dict[int, Identity]:
    """Ask nodes who they are; an error names those that do not answer."""
    messages = [Message(RecordDict(), node, QUERY) for node in nodes]
    answers: dict[int, Identity] = {}
    silent: dict[int, str] = {}
    if isinstance(grid, DeadlineGrid):
        grid = grid.grid  # this question has a deadline of its own
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
    """Wait until ``expected`` nodes (of ``among``) are connected; else say how many came."""
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
