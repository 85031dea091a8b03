"""A Ray cluster of several machines on which a simulation runs: its address, its actors.

Without an address, Ray starts on this machine alone, with as many CPUs as there are to be actors.
With one, the simulation joins the cluster and takes what its nodes offer: one actor per CPU, or as
many as ``gpus`` per actor allows.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_PATIENCE = 5.0  # seconds that the cluster has to answer


@dataclass(frozen=True)
class Resources:
    """Where actors, the processes that train, are started.

    Parameters
    ----------
    actors : int
        Their number on this machine; 0: one per core. A cluster decides this itself.
    address : str
        ``host:port`` of a Ray cluster, or ``auto`` for the one that this machine belongs to; empty:
        this machine alone.
    gpus : float
        Share of a GPU that an actor takes; 0: none.
    """

    actors: int = 0
    address: str = ""
    gpus: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.actors < 0:
            raise ValueError(
                f"actors={self.actors}: give a number of processes, or 0 for one per core"
            )
        if not 0 <= self.gpus < 1000:
            raise ValueError(
                f"actor-gpus={self.gpus}: give a share of a GPU per actor, such as 0.25"
            )

    @classmethod
    def found(cls, actors: int = 0, address: str = "", gpus: float = 0.0) -> Resources:
        """Return what a user asks for, once the cluster has answered.

        Parameters
        ----------
        actors, address, gpus
            As in `Resources`; the environment variable RAY_ADDRESS is the default address.

        Raises
        ------
        ValueError
            For a value that cannot be right, and if no cluster answers at the address.
        """
        address = address or os.environ.get("RAY_ADDRESS", "")
        if address and actors:
            raise ValueError(
                f"actors={actors} with the Ray cluster {address}: the cluster has one actor per "
                "CPU of its nodes; leave actors out, or give ray start fewer --num-cpus"
            )
        if address and address != "auto":
            _check_answers(address)
        return cls(actors, address, gpus)

    def federation(self, nodes: int) -> dict[str, Any]:
        """Return Flower's federation config for so many SuperNodes."""
        values: dict[str, Any] = {"num-supernodes": nodes, "client-resources-num-cpus": 1}
        if self.gpus:
            values["client-resources-num-gpus"] = float(self.gpus)
        if not self.address:  # Ray refuses it for a cluster that exists
            values["init-args-num-cpus"] = self.actors or len(os.sched_getaffinity(0))
        return {**values, "init-args-log-to-driver": False}

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of Flower's commands."""
        env = dict(env)
        env.pop("RAY_ADDRESS", None)
        if self.address:
            env["RAY_ADDRESS"] = self.address
            env.pop("RAY_TMPDIR", None)  # the cluster has its own
        return env


THIS_MACHINE = Resources()
"""No cluster, and one actor per core."""


def _check_answers(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or "://" in address:
        raise ValueError(
            f"ray-address={address!r}: give host:port of the head node, as ray start --head prints "
            "it, or auto"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"ray-address={address!r}: no Ray cluster answers there ({error}): start one with "
            "ray start --head, and let this machine join it with ray start --address"
        ) from None
