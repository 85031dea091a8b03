"""Read the results of a run from its folder: of a simulation, or of one hub of a deployment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mll_flower.deployment.hub_state import ROUNDS_FILE, Phase, read_now
from mll_flower.processes.log_rotation import parts
from mll_flower.results.run_result import RunResult
from mll_flower.results.runs import load_run as load_simulated_run
from mll_flower.results.runs import metric_name


def load_run(path: str | Path) -> RunResult:
    """Return the results of a run on disk, also of one that has not finished.

    Parameters
    ----------
    path : str or Path
        The output folder of a simulated run, or the folder in which a deployed hub keeps its
        state (``state/hub-NAME`` beside the network file).

    Raises
    ------
    ValueError
        If it is neither, or a file in it cannot be read; the message names it.
    """
    path = Path(path)
    if (path / ROUNDS_FILE).is_file():
        return _load_hub(path)
    return RunResult.from_run(load_simulated_run(path))


def _load_hub(folder: Path) -> RunResult:
    rounds: list[dict[str, Any]] = []
    evaluations: list[dict[str, Any]] = []
    now = read_now(folder)
    start: float | None = None
    steps = 0
    for row in [row for part in parts(folder / ROUNDS_FILE) for row in _entries(part)]:
        start = row["time"] if start is None else start
        if "arrived" not in row:
            continue  # an event
        # An app of the user's own may not tell its workers' steps.
        taken = sum(reply["steps"] or 0 for reply in row["arrived"])
        steps += taken
        since_start = {
            "bytes": row["model_bytes"] + row["gossip_sent"] + row["gossip_received"],
            "seconds": round(row["time"] - start, 3),
        }
        rounds.append(
            {
                "round": row["round"],
                "hub": now.get("hub"),
                "mixed": row["mixing"] is not None,
                "steps": taken,
                "loss": row["loss"],
                "arrived": len(row["arrived"]),
                "absent": len(row["absent"]),
                "silent": len(row["silent"]),
                "late": row["late"],
                **since_start,
            }
        )
        metric = row.get("metric", "accuracy")
        if metric in row or "test_loss" in row:
            measured = {key: row.get(key) for key in ("loss", "test_loss", metric)}
            evaluations.append({"round": row["round"], "steps": steps, **measured, **since_start})
    last_round, last = (records[-1] if records else {} for records in (rounds, evaluations))
    summary = {
        "rounds": last_round.get("round", 0),
        **{key: last.get(key) for key in ("loss", "test_loss", metric_name(last))},
        "steps": steps,
        "absent": sum(record["absent"] for record in rounds),
        "silent": sum(record["silent"] for record in rounds),
        **{key: last_round.get(key, 0) for key in ("bytes", "seconds")},
    }
    return RunResult(
        path=folder.absolute(),
        finished=now.get("phase") == Phase.FINISHED,
        config={},
        evaluations=evaluations,
        rounds=rounds,
        summary=summary,
        title=f"hub {now.get('hub', folder.name)} of {now.get('run', 'a deployment')}",
    )


def _entries(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a hub's record; the last may be half written."""
    lines = path.read_bytes().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        del lines[-1]
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entries.append(json.loads(line))
        except ValueError:
            raise ValueError(f"{path}, line {number}: not a JSON object") from None
    return entries
