"""A network file to begin with."""

from __future__ import annotations

import itertools


def example_network(hubs: int = 3, workers: int = 2, base_port: int = 9400) -> str:
    """A commented network file for a first look on one machine: hubs on a path."""
    if hubs < 1 or workers < 1:
        raise ValueError(f"hubs={hubs}, workers={workers}: at least 1 of each")
    if not 0 < base_port <= 65536 - 2 * hubs:
        raise ValueError(f"base_port={base_port}: {2 * hubs} ports from it must be below 65536")
    ids = [chr(ord("a") + n) if hubs <= 26 else f"h{n}" for n in range(hubs)]
    edges = ", ".join(f'["{a}", "{b}"]' for a, b in itertools.pairwise(ids))
    tables = "".join(
        _HUB_EXAMPLE.format(
            id=id, superlink=base_port + 2 * n, gossip=base_port + 2 * n + 1, workers=workers
        )
        for n, id in enumerate(ids)
    )
    return _EXAMPLE.format(edges=edges) + tables


_EXAMPLE = """\
# A network of hubs, each with its own workers. Every hub, worker and operator has this file.
name = "first-look"

# The algorithm: workers take tau slots of steps a round; hubs mix after every q rounds.
tau = 10
q = 2
slot = 0.5               # seconds; a worker takes at most one step a slot
rounds = 6               # or slots = 60

# A round ends when all workers have answered, or its time is up. Each needs some seconds of a
# core to start: six of them on two cores take about 25 s.
round-deadline = 60      # seconds; at least tau * slot
gossip-deadline = 120    # seconds a hub waits for its neighbours at a mixing
absent = "keep"          # an absent worker's share stays with the hub's model; or "renormalise"
mixing = "metropolis"    # or the path of a file that holds H

certs = "certs"          # made by `mll-flower certs`

# Which hubs talk to each other; or graph = "path", "ring", "star", "complete", ....
edges = [{edges}]

# What the workers train; the keys are those of the app's run config.
[run-config]
dataset = "digits"
model = "mlp"
batch-size = 16
learning-rate = 0.1
"""

_HUB_EXAMPLE = """
[[hub]]
id = "{id}"
superlink = "127.0.0.1:{superlink}"   # its workers connect here
gossip = "127.0.0.1:{gossip}"      # its neighbours connect here
workers = {workers}
"""
