"""What the tests of faults share: a small network, and the models that must come out of it."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mll_flower.models.checkpoint import FILE, load_checkpoint
from tests.support.deployment import COLD, Deployment
from tests.support.replay import Replay

DEADLINE = 45.0 if COLD else 20.0
"""Seconds of a round: far above what it takes on an idle machine."""

GOSSIP = DEADLINE + 4.0
"""Longer than a round: a hub waits for a neighbour whose frozen worker delays it to its deadline.
"""

SHORT = 30.0 if COLD else 12.0
"""The same where no worker fails, so that hubs are never far apart."""

LONG = 1000
"""Rounds of a network that is stopped when the test has seen enough."""

LATE = 2.0
"""Seconds after its deadline by which a round has ended."""


def network(folder: Path, hubs: Mapping[str, int], **values: object) -> Deployment:
    """Return a network that is not started yet: hubs on a path, with these numbers of workers.

    Parameters
    ----------
    folder : Path
        Where everything is kept.
    hubs : Mapping[str, int]
        Number of workers of each hub, by id.
    **values
        Further keys of the network file.
    """
    settings = {"tau": 10, "q": 1, "slot": 0.002, "rounds": 8, "gossip_deadline": GOSSIP}
    return Deployment(
        folder,
        hubs,
        edges=list(itertools.pairwise(hubs)),
        run_config={"model": "logistic", "node-timeout": 60.0},
        round_deadline=DEADLINE,
        **{**settings, **values},
    )


def wait_arrived(trial: Deployment, hub: str, worker: int, after: int | None = None) -> None:
    """Wait until a worker has arrived in a round of its hub, after so many rows."""
    first = len(trial.rows(hub)) if after is None else after
    trial.wait(
        f"worker {worker} arrives at hub {hub}",
        lambda: any(
            reply["worker"] == worker for row in trial.rows(hub)[first:] for reply in row["arrived"]
        ),
        6 * (DEADLINE + GOSSIP),
    )


def wait_mixed(trial: Deployment, hub: str, peer: str) -> None:
    """Wait until a hub has recorded a mixing with a neighbour, from now on."""
    first = len(trial.rows(hub))
    trial.wait(
        f"hub {hub} mixes with hub {peer}",
        lambda: any(peer in row["column"] for row in trial.rows(hub)[first:]),
        6 * (DEADLINE + GOSSIP),
    )


def check(trial: Deployment, hubs: Sequence[str]) -> Replay:
    """Check that rounds ended on time, links were used by both ends or none, models are right."""
    entries = {hub: trial.entries(hub) for hub in hubs}
    _check_rows(trial, entries)
    replay = Replay(trial.engine(), entries)
    for hub in hubs:
        np.testing.assert_array_equal(trial.model(hub)["float32"], replay.y[hub]["float32"])
    _check_average(entries, replay)
    return replay


def stop_and_check(trial: Deployment, hubs: Sequence[str], frozen: int = 0) -> Replay:
    """Stop hubs in the middle of their run, and check the models of their checkpoints.

    So many rounds may have ended late, as their hub was frozen.
    """
    for hub in hubs:
        trial.processes[f"hub-{hub}"].send_signal(signal.SIGTERM)
    for hub in hubs:
        trial.wait_ended(f"hub-{hub}", 0)
    entries = {hub: trial.entries(hub) for hub in hubs}
    saved = {hub: load_checkpoint(trial.state_of(hub) / FILE) for hub in hubs}
    for hub, theirs in entries.items():
        row = saved[hub].extra["row"]
        if theirs[-1].get("round") != row["round"] or "arrived" not in theirs[-1]:
            theirs.append(row)  # it was stopped between the two
    _check_rows(trial, entries, frozen)
    replay = Replay(trial.engine(), entries, unfinished=True)
    compared = 0
    for hub in hubs:
        expected = replay.after.get((hub, saved[hub].round))
        if expected is not None:  # else it has mixed with a model that its neighbour did not record
            np.testing.assert_array_equal(saved[hub].models[0]["float32"], expected["float32"])
            compared += 1
    assert compared
    _check_average(entries, replay)
    return replay


def _check_rows(
    trial: Deployment, entries: Mapping[str, list[dict[str, Any]]], frozen: int = 0
) -> None:
    for theirs in entries.values():
        for entry in theirs:
            if entry.get("event") == "joined":
                entry["mixing"] = entry["round"] // trial.network.q
    rows = {hub: [row for row in theirs if "arrived" in row] for hub, theirs in entries.items()}
    late = sorted(row["late"] for theirs in rows.values() for row in theirs)
    print(f"\nthe latest end of a round: {late[-1]:.2f} s after its deadline")
    assert late[-1 - frozen] <= LATE
    for hub, theirs in rows.items():
        numbers = [row["round"] for row in theirs]
        assert numbers == sorted(set(numbers)), f"hub {hub} counted a round twice: {numbers}"
    mixings = {(hub, row["mixing"]): row for hub, theirs in rows.items() for row in theirs}
    for (hub, number), row in mixings.items():
        assert sum(row["column"].values()) == pytest.approx(1.0, abs=1e-12) or number is None
        for peer, share in row["column"].items():
            if peer != hub and (peer, number) in mixings:
                # Detailed balance, with the weights that each of the two knew.
                other = mixings[peer, number]
                assert row["weight"] * share == pytest.approx(
                    other["weight"] * other["column"][hub], rel=1e-9
                )


def _check_average(entries: Mapping[str, list[dict[str, Any]]], replay: Replay) -> None:
    """Check that no mixing changed the weighted average of the hubs that took part."""
    rows = {
        (hub, row["mixing"]): row
        for hub, theirs in entries.items()
        for row in theirs
        if "arrived" in row
    }
    for number in {number for _, number in replay.mixed}:
        present = [hub for hub in entries if (hub, number) in replay.mixed]
        if any(set(rows[hub, number]["column"]) - set(present) for hub in present):
            continue  # a neighbour was stopped before it recorded this mixing
        w = np.array([rows[hub, number]["weight"] for hub in present])
        if not w.any():
            continue  # no worker had reported its weight yet
        before = w @ np.array([replay.z[hub, number]["float32"] for hub in present], dtype=float)
        after = w @ np.array([replay.mixed[hub, number]["float32"] for hub in present], dtype=float)
        np.testing.assert_allclose(after / w.sum(), before / w.sum(), atol=1e-6)
