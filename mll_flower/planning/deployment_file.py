"""The network file of a deployment with the recommended setting."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import tomli_w

from mll_flower.algorithm.mixing import mixing_matrix
from mll_flower.deployment.mixing_column import mixing_column
from mll_flower.deployment.network_file import ROUND_MARGIN, load_network
from mll_flower.deployment.run_config import hub_run_config
from mll_flower.planning.candidates import Candidate, Costs, network_of
from mll_flower.planning.plan_file import Plan
from mll_flower.timing.clock import FloatArray
from mll_flower.timing.tables import read_toml

NAME = "network.toml"
"""Name of the file."""

_FIRST_PORT = 9400
# Rounds of the deployment, by the mean number that the finals needed.
_SPARE = 1.25
# Deadlines leave this much more time than the links need by their figures.
_SLACK = 1.5

_HEAD = """\
# The setting that mll-flower plan recommends: {name}.
# {advice}
# Next: mll-flower certs {file}; docs/deployment.md explains the rest.
"""
_OWN_ADDRESSES = "Addresses are the plan's."
_EXAMPLE_ADDRESSES = "Put your own addresses in place of 127.0.0.1."


def write_deployment(
    folder: Path, plan: Plan, candidate: Candidate, costs: Costs, weights: FloatArray, rounds: float
) -> Path:
    """Write network.toml, and mixing.json if hubs cannot compute H themselves; return the former.

    Parameters
    ----------
    folder : Path
        Where to.
    plan, candidate, costs
        The plan, the setting, and what it costs.
    weights : ndarray
        The workers' weights.
    rounds : float
        Rounds that the finals needed.
    """
    clock, tau, q = costs.clock_of(candidate), candidate.tau, candidate.q
    # A deployment never waits; with the slot of the slowest worker, all take all their steps.
    slot = float(clock.step_seconds.max()) if candidate.waits else clock.slot
    transfer = float(clock.transfer(costs.model_bytes).max())
    period = tau * slot
    round_deadline = math.ceil(period + _SLACK * transfer + ROUND_MARGIN)
    exchange = clock.exchange(costs.model_bytes)
    slowest = max((float(exchange[i, j]) for i, j in candidate.edges), default=0.0)
    ids = [_id(name) for name in clock.names]
    values: dict[str, Any] = {
        "name": _id(plan.name),
        "tau": tau,
        "q": q,
        "slot": round(slot, 6),
        "rounds": q * math.ceil(_SPARE * rounds / q),
        "round-deadline": round_deadline,
        "gossip-deadline": math.ceil(
            q * (round_deadline - period) + _SLACK * slowest + ROUND_MARGIN
        ),
        "absent": plan.task.get("absent", "keep"),
        "mixing": "metropolis",
    }
    # Where data are is a matter of each machine, unless the plan's file says it.
    given = {key.replace("_", "-") for key in read_toml(plan.path, "a plan").get("task", {})}
    task = {k: v for k, v in plan.task.items() if k != "absent" and (k in given or k != "data-dir")}
    if candidate.mixing != "metropolis" and candidate.edges:
        network = network_of(candidate, costs, weights)
        h = mixing_matrix(network.graph, network.b, candidate.mixing)
        (folder / "mixing.json").write_text(json.dumps(h.tolist(), indent=1) + "\n")
        # H is valid for these weights only, so both are fixed.
        values["mixing"] = "mixing.json"
        task["weights"] = ",".join(f"{weight:g}" for weight in weights)
    hubs = [
        {"id": id, **_addresses(plan, clock.names[place], place), "workers": count}
        for place, (id, count) in enumerate(zip(ids, clock.worker_counts, strict=True))
    ]
    advice = (
        _OWN_ADDRESSES if all(len(entry) == 2 for entry in plan.addresses) else (_EXAMPLE_ADDRESSES)
    )
    path = folder / NAME
    head = _HEAD.format(name=candidate.name, advice=advice, file=NAME)
    edges = ", ".join(f'["{ids[i]}", "{ids[j]}"]' for i, j in candidate.edges)
    tables = "".join(f"\n[[hub]]\n{tomli_w.dumps(hub)}" for hub in hubs)
    top = f"{tomli_w.dumps(values)}edges = [{edges}]\n"
    path.write_text(f"{head}\n{top}\n{tomli_w.dumps({'run-config': task})}{tables}")
    check_deployment(path)
    return path


def check_deployment(path: Path) -> None:
    """Raise ValueError unless every hub of a network file could start from it."""
    network = load_network(path)
    for hub in network.hubs:
        hub_run_config(network, hub.id, path.parent, insecure=False)
        mixing_column(network, hub.id)


def _addresses(plan: Plan, name: str, place: int) -> dict[str, str]:
    given = plan.addresses[plan.clock.names.index(name)]
    port = _FIRST_PORT + 2 * place
    example = {"superlink": f"127.0.0.1:{port}", "gossip": f"127.0.0.1:{port + 1}"}
    return {**example, **given}


def _id(name: str) -> str:
    """Return a name as network files want it: lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50].strip("-") or "hub"
