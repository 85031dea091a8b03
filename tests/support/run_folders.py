"""Output folders as a run could have left them, with made-up numbers."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from mll_flower.algorithm.mixing import mixing_matrix, zeta
from mll_flower.algorithm.network import HubNetwork
from mll_flower.deployment.hub_state import ROUNDS_FILE, Phase, write_now
from mll_flower.results.files import COLUMNS


def write_run(
    path: Path,
    hubs: int = 3,
    workers_per_hub: int = 2,
    graph: str = "ring",
    rounds: int = 8,
    tau: int = 4,
    q: int = 2,
    losses: list[float] | None = None,
    absences: list[dict[str, Any]] | None = None,
    evaluations: bool = True,
    **config: Any,
) -> Path:
    """Write the folder of a run in which every round was recorded.

    The training loss after round r is ``losses[r]``, by default 2 / (1 + r); the accuracy is
    r / (rounds + 1); hub d's distance is r * (d + 1) / 10; every worker of rate p has taken
    floor(p * slots) steps. The first two workers have the rate 0.5, all others 1.
    """
    path.mkdir(parents=True, exist_ok=True)
    rates = np.ones(hubs * workers_per_hub)
    rates[:2] = 0.5
    network = HubNetwork.build(hubs, workers_per_hub, graph, rates=rates)
    absences = absences or []
    full = {
        "preset": "mll-sgd",
        "hubs": hubs,
        "graph": graph,
        "tau": tau,
        "q": q,
        "slots": rounds * tau,
        "wait-for-all": False,
        "dataset": "digits",
        "model": "mlp",
        "learning-rate": 0.05,
        **{key.replace("_", "-"): value for key, value in config.items()},
    }
    data = full["dataset"]
    (path / "config.json").write_text(json.dumps(full))
    recorded: list[dict[str, Any]] = []
    with (path / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for r in range(rounds + 1):
            slot, sent, seconds = r * tau, r * 1000, r / 2
            for d in range(hubs) if r else ():
                absent_workers = sum(a["round"] == r and a["hub"] == d for a in absences)
                steps = workers_per_hub * tau
                distance = r * (d + 1) / 10
                measured = (steps, 1 / r, "", "", distance)
                writer.writerow([slot, r, d, *measured, sent, absent_workers, seconds])
            if evaluations:
                loss = losses[r] if losses else 2 / (1 + r)
                accuracy = r / (rounds + 1)
                steps = r * hubs * workers_per_hub * tau
                row = [slot, r, "all", steps, loss, accuracy, loss * 1.1, "", sent, 0, seconds]
                writer.writerow(row)
                keys = ("slot", "round", "steps", "loss", "accuracy", "test_loss")
                values = (slot, r, steps, loss, accuracy, loss * 1.1)
                recorded.append({**dict(zip(keys, values, strict=True)), "bytes": sent})
                recorded[-1].update(seconds=seconds, evaluation_seconds=0.1)
    matrix = mixing_matrix(network.graph, network.b, "auto")
    slots = rounds * tau
    result = {
        "config": full,
        "data": data,
        "parameters": 10,
        "network": {
            **network.to_dict(),
            "b": network.b.tolist(),
            "H": matrix.tolist(),
            "zeta": zeta(matrix),
        },
        "evaluations": recorded,
        "workers": [
            {
                "worker": i,
                "hub": int(network.hub_of[i]),
                "weight": 1.0,
                "rate": float(network.p[i]),
                "steps": math.floor(network.p[i] * slots),
                "absent": sum(a["worker"] == i for a in absences),
            }
            for i in range(network.workers)
        ],
        "absences": absences,
        "summary": {
            "slot": slots if recorded else None,
            "loss": recorded[-1]["loss"] if recorded else None,
            "rounds": rounds,
            "steps": int(network.p.sum() * slots),
            "absent": len(absences),
            "bytes": rounds * 1000,
            "seconds": rounds / 2,
        },
    }
    (path / "metrics.json").write_text(json.dumps(result))
    return path


def absent(worker: int, hub: int, round: int, cause: str = "late", why: str = "no reply") -> Any:
    """Return an absence as metrics.json has it."""
    return {"round": round, "hub": hub, "worker": worker, "cause": cause, "why": why}


def _hub_row(number: int, time: float, **more: Any) -> dict[str, Any]:
    arrived = [{"node": "1", "worker": 0, "steps": 5, "rate": 0.5, "loss": 1.0, "weight": 1.0}]
    return {
        "round": number,
        "mixing": number // 2 if number % 2 == 0 else None,
        "time": time,
        "arrived": arrived if number > 1 else [],
        "absent": [] if number > 1 else [{"node": "1"}],
        "silent": {"lyon": "no answer"} if number == 2 else {},
        "loss": 1.0 if number > 1 else None,
        "late": -1.5,
        "model_bytes": 100 * number,
        "gossip_sent": 10,
        "gossip_received": 1,
        **more,
    }


def write_hub(folder: Path) -> Path:
    """Write the folder of a deployed hub that is in its third round."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = [
        {"event": "begins", "time": 100.0, "round": 0},
        _hub_row(1, 107.5),
        _hub_row(2, 115.0, accuracy=0.5, test_loss=0.75),
    ]
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    (folder / ROUNDS_FILE).write_text(text + '{"round": 3, "arr')
    write_now(folder, {"run": "trial", "hub": "paris", "phase": Phase.TRAINING})
    return folder
