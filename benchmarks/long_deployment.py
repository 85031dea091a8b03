"""What grows in a deployment from round to round: memory, descriptors, disk.

Run with ``python -m benchmarks.long_deployment --rounds 500``. Two hubs with one worker each, real
processes with TLS, short rounds and deadlines that the hubs learn. It prints what the processes
and the files have in the course of the rounds, how much each grows per round (a line fitted to the
second half, by when everything is loaded), and the rows of the tables of a SuperLink's database.
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import time

import numpy as np
import psutil

from benchmarks.deployment import UP, failure, prepare, rows_of, start
from benchmarks.report import console
from mll_flower.deployment.hub_state import (
    HUB_LOG,
    ROUNDS_FILE,
    SUPERLINK_DATABASE,
    SUPERLINK_LOG,
    SUPERNODE_LOG,
    hub_directory,
    worker_directory,
)
from mll_flower.deployment.network_file import NetworkFile
from mll_flower.processes.process_tree import Processes

SLOT = 0.02  # rounds of 0.2 s of training
PATIENCE = 300.0  # seconds without a new round
_MEGABYTE = 1 << 20


def measure(network: NetworkFile, process: psutil.Process) -> dict[str, float]:
    """Return memory, descriptors and files of a running network, by name.

    Parameters
    ----------
    network : NetworkFile
        The network.
    process : psutil.Process
        ``mll-flower up``.
    """
    found: dict[str, float] = {}
    for root in process.children():
        with contextlib.suppress(psutil.Error):
            kind = "worker" if "warm.supernode" in " ".join(root.cmdline()) else "hub"
            for one in (root, *root.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    memory, descriptors = f"{kind}s, MB", f"{kind}s, descriptors"
                    found[memory] = found.get(memory, 0.0) + one.memory_info().rss / _MEGABYTE
                    found[descriptors] = found.get(descriptors, 0.0) + one.num_fds()
    hub, worker = hub_directory(network, "a"), worker_directory(network, "a", 0)
    for folder, name in (
        (hub, SUPERLINK_DATABASE),
        (hub, SUPERLINK_LOG),
        (hub, HUB_LOG),
        (hub, ROUNDS_FILE),
        (worker, SUPERNODE_LOG),
    ):
        # With its parts, and a database with what it has written ahead.
        sizes = [path.stat().st_size for path in folder.glob(f"{name}*")]
        found[f"{name}, KB"] = sum(sizes) / 1024
    for folder in (hub, worker):
        sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
        found[f"all of {folder.name}, KB"] = sum(sizes) / 1024
    return found


def growth(rounds: list[int], values: list[float]) -> float:
    """Return how much a value grows per round, in the second half of what was seen."""
    half = len(rounds) // 2
    if len(rounds) - half < 2:
        return float("nan")
    return float(np.polyfit(rounds[half:], values[half:], 1)[0])


def watch(rounds: int, every: int) -> None:
    """Run a network and print what it needs.

    Parameters
    ----------
    rounds : int
        Rounds of the run.
    every : int
        Rounds between two measurements.
    """
    # Processes and folder are gone at the end, also if this process is killed.
    with Processes() as processes:
        network = prepare(processes.temporary_folder(), "mlp", rounds, SLOT, '"auto"')
        up = psutil.Process(start(processes, network))
        seen: list[int] = []
        values: list[dict[str, float]] = []
        last, end = 0, time.monotonic() + PATIENCE
        while processes.is_running(UP) and time.monotonic() < end:
            done = len(rows_of(network, "a"))
            if done > last:
                last, end = done, time.monotonic() + PATIENCE
            if done and (not seen or done >= seen[-1] + every):
                seen.append(done)
                values.append(measure(network, up))
                shown = "  ".join(f"{name}: {value:.0f}" for name, value in values[-1].items())
                console.print(f"round {done}  {shown}", soft_wrap=True)
            time.sleep(0.2)
        if [one.code for one in processes.ended()] != [0] or len(rows_of(network, "a")) < rounds:
            raise failure(network)
        _report(network, seen, values)


def _report(network: NetworkFile, seen: list[int], values: list[dict[str, float]]) -> None:
    rows = rows_of(network, "a")
    took = (rows[-1]["time"] - rows[0]["time"]) / max(1, len(rows) - 1)
    console.print(
        f"\n{len(rows)} rounds, {took:.2f} s each; deadlines learnt: "
        f"{rows[0]['deadline']:.1f} s at first, {rows[-1]['deadline']:.1f} s at the end"
    )
    console.print(f"absent: {sum(len(row['absent']) for row in rows)}")
    for name in values[0]:
        per_round = growth(seen, [value.get(name, 0.0) for value in values])
        console.print(f"{name}: {values[-1].get(name, 0.0):.0f}, {per_round:+.3f} per round")
    database = hub_directory(network, "a") / SUPERLINK_DATABASE
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        tables = [
            name
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
            )
        ]
        counts = {
            t: connection.execute(f'SELECT count(*) FROM "{t}"').fetchone()[0] for t in tables
        }
    filled = ", ".join(f"{table} {count}" for table, count in counts.items() if count)
    console.print(f"rows in {SUPERLINK_DATABASE}: {filled}")


def main(arguments: list[str] | None = None) -> None:
    """Run a network for many rounds, and print what it needs."""
    parser = argparse.ArgumentParser(description="What grows in a deployment.")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--every", type=int, help="rounds between two measurements")
    choice = parser.parse_args(arguments)
    every = choice.every or max(1, choice.rounds // 20)
    watch(choice.rounds, every)


if __name__ == "__main__":
    main()
