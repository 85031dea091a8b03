"""The text that ``mll-flower example-network`` writes: a network file to begin with.

A network file is the TOML file that describes a deployment. This one has hubs in a line, each
linked to the next, all on this machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import tomli_w


def example_network(
    hubs: int = 3,
    workers: int = 2,
    base_port: int = 9400,
    app: str | None = None,
    app_config: Mapping[str, Any] | None = None,
) -> str:
    """Return a network file with comments, for a first run on one machine.

    Parameters
    ----------
    hubs : int
        Number of hubs; each is linked to the next.
    workers : int
        Workers of each hub.
    base_port : int
        The first of two ports per hub.
    app, app_config : str and Mapping, optional
        Path of a Flower app of the user's own, and its run config with the defaults.
    """
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
    task = _OWN_TASK if app is None else _app_task(app, app_config or {})
    return _EXAMPLE.format(edges=edges) + task + tables


def _app_task(app: str, config: Mapping[str, Any]) -> str:
    """Return the lines that name an app, and its keys as comments."""
    defaults = "".join(f"# {line}\n" for line in tomli_w.dumps(dict(config)).splitlines())
    named = tomli_w.dumps({"app": app})
    return _APP_TASK.format(app=named, defaults=defaults)


_EXAMPLE = """\
# A network of hubs, each with its own workers. Every hub, worker and operator has this file.
name = "first-look"

# The algorithm: a round has tau slots; hubs mix after every q rounds.
tau = 10
q = 2
slot = 0.5               # seconds; a worker takes at most one step per slot
rounds = 6               # or slots = 60

# A round ends when all workers have answered, or when its time is up. In the first round, starting
# a worker takes some seconds of one core: six workers on two cores take about 25 s.
round-deadline = 60      # seconds; at least tau * slot
gossip-deadline = 120    # seconds that a hub waits for its neighbours at a mixing
absent = "keep"          # an absent worker's share stays with the hub's model; or "renormalise"
mixing = "metropolis"    # or the path of a file that holds H

certs = "certs"          # made by `mll-flower certs`

# Which hubs talk to each other; or graph = "path", "ring", "star", "complete", ...
edges = [{edges}]
"""

_OWN_TASK = """
# What the workers train; the keys are those of the app's run config.
[run-config]
dataset = "digits"
model = "mlp"
batch-size = 16
learning-rate = 0.1
"""

_APP_TASK = """
# The Flower app that hubs and workers run; the path starts at this file.
{app}
# The app's run config: its keys, here with their defaults. Remove a # to change one.
[run-config]
{defaults}"""

_HUB_EXAMPLE = """
[[hub]]
id = "{id}"
superlink = "127.0.0.1:{superlink}"   # its workers connect here
gossip = "127.0.0.1:{gossip}"      # its neighbours connect here
workers = {workers}
"""
