"""`multi_level`: the one line by which a Flower project runs simulated and on real hubs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import Context

from mll_flower.algorithm.network import HubNetwork
from mll_flower.deployment.hub_place import HubPlace
from mll_flower.strategies.base import HubRoundsStrategy
from mll_flower.strategies.multi_level import MultiLevelStrategy


@contextmanager
def multi_level(
    context: Context, network: HubNetwork | None = None, **arguments: Any
) -> Iterator[HubRoundsStrategy]:
    """Give a ServerApp its strategy: all hubs on one grid, or one hub of a deployment.

    In ``flwr run``, simulated or on one SuperLink, this is `MultiLevelStrategy`. Started by
    ``mll-flower hub`` it is that hub: it waits for its workers and the other hubs, gossips, keeps
    records and checkpoints, goes on from them, and catches up. The network file then decides about
    hubs, graph, q, tau, slot, mixing, deadline, absent and the number of rounds; a line in the log
    names each argument that says something else. ``evaluate_fn`` gets the hub's own model.

    Use it as a context manager::

        with multi_level(context, hubs=3, graph="ring", q=2) as strategy:
            result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=10)

    At the end of the block the hub has finished; an app of your own then has a minute for the
    rest of its code. An error within the block ends the hub's run as failed.

    Parameters
    ----------
    context : Context
        That of the ServerApp.
    network, **arguments
        Arguments of `MultiLevelStrategy`. At a hub, ``worker_config`` gets the numbers of the
        hub's own workers, and what ``on_round`` returns (a mapping, or None) is added to the
        round's row in the hub's record.
    """
    strategy = MultiLevelStrategy(network, **arguments)
    place = HubPlace.find(context.run_config)
    if place is None:
        yield strategy
        return
    # Only a hub needs the code of deployments.
    from mll_flower.apps.hub_strategy import DeployedHubStrategy

    hub = DeployedHubStrategy(place, strategy, set(arguments))
    try:
        yield hub
        hub.finish()
    except BaseException as error:
        hub.fail(error)
        raise
