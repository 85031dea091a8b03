"""A hub's log, and what it says where the app and the network file differ."""

from __future__ import annotations

import logging
from collections.abc import Collection
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import networkx as nx
from flwr.supercore import log

from mll_flower.deployment.network_entries import NetworkFile
from mll_flower.processes.log_rotation import KEPT, MOST_BYTES
from mll_flower.strategies.multi_level import MultiLevelStrategy

# Flower's logger, which apps use, too, and that of the gossip.
_LOGGERS = ("flwr", "mll_flower")


class HubLog:
    """Writes what Flower, the strategy and the app log to a file as well, until it is closed.

    Parameters
    ----------
    path : Path
        The file, to which lines are appended; when it has become large, it begins anew.
    """

    def __init__(self, path: Path) -> None:
        self._handler = RotatingFileHandler(
            path, maxBytes=MOST_BYTES, backupCount=KEPT, encoding="utf-8"
        )
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self._handler)

    def close(self) -> None:
        """Write no more."""
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(self._handler)
        self._handler.close()


def log_differences(app: MultiLevelStrategy, given: Collection[str], network: NetworkFile) -> None:
    """Log each argument that the app gave and about which the network file says something else."""
    for name, asked, decided in (
        ("hubs", app.number_of_hubs, len(network.hubs)),
        ("q", app.q, network.q),
        ("tau", app.tau, network.tau),
        ("slot", app.slot, network.slot),
        ("deadline", app.deadline, "auto" if network.auto_deadline else network.round_deadline),
        ("absent", app.absent, network.absent),
        ("mixing", str(app.mixing), str(network.mixing)),
        ("corrections", app.corrections, network.corrections),
        *(
            (name, getattr(app.limits, name), limit)
            for name, limit in network.trust.reply_limits.items()
        ),
    ):
        if name in given and asked != decided:
            say_who_decides(name, asked, decided)
    if "inner_strategy" in given and network.trust.inner_strategy is not None:
        say_who_decides("inner_strategy", app.inner_strategy, network.trust.inner_strategy)
    graphs: tuple[Any, Any] = app.graph, network.graph
    if "graph" in given and not nx.faster_could_be_isomorphic(*graphs):
        say_who_decides("graph", list(app.graph.edges), list(network.edges))


def say_who_decides(name: str, asked: object, decided: object) -> None:
    """Log that the network file's value is used, and not that of the app."""
    log(logging.WARNING, "%s=%r in the app: the network file decides, %r", name, asked, decided)
