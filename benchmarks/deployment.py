"""What a deployed round costs beyond its training: Flower's own workers against warm ones.

Run with ``python -m benchmarks.deployment``. Two hubs with one worker each, all of them real
processes with TLS, started by ``mll-flower up`` with ``--cold`` and without, in turn. The hubs mix
after every round. Counted are

- the seconds from one round's record to the next, less ``tau * slot``, which is the training;
- the CPU seconds of a worker's processes (SuperNode, executor, ClientApp) per message, with the
  training of a small model;
- the seconds of a mixing, of the hub that comes last to it: the other one waits for that hub.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from sklearn.datasets import load_digits

from benchmarks.report import Spread, bars, console, options, plot_path, ratios, table, write
from mll_flower.deployment.certs import make_certs
from mll_flower.deployment.hub_state import ROUNDS_FILE, hub_directory
from mll_flower.deployment.network_file import NetworkFile, load_network
from mll_flower.processes.flower_environment import free_port
from mll_flower.processes.process_tree import Processes

STOCK, WARM = "Flower's own (--cold)", "warm"
UP = "mll-flower up"
TAU, SLOT = 10, 0.1
FIRST = 2  # rounds that are not counted: in the first ones, processes start and read their data
PATIENCE = 600.0  # seconds for a whole run
MOST_SECONDS, MOST_CPU, LEAST_GAIN = 1.5, 0.3, 10.0  # what is asked of warm workers

_NETWORK = """
name = "benchmark"
tau = {tau}
q = 1
slot = {slot}
rounds = {rounds}
round-deadline = {deadline}
gossip-deadline = 120
edges = [["a", "b"]]
[run-config]
dataset = "npz:digits.npz"
model = "{model}"
batch-size = 16
learning-rate = 0.1
evaluate-every = 1000000
[[hub]]
id = "a"
superlink = "127.0.0.1:{ports[0]}"
gossip = "127.0.0.1:{ports[1]}"
workers = 1
[[hub]]
id = "b"
superlink = "127.0.0.1:{ports[2]}"
gossip = "127.0.0.1:{ports[3]}"
workers = 1
"""


@dataclass
class Costs:
    """What rounds cost beyond their training, one value per round or per run.

    Parameters
    ----------
    seconds, mixing : list[float]
        Seconds of each round, and of each mixing.
    cpu : list[float]
        CPU seconds per message, one value per run.
    """

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    mixing: list[float] = field(default_factory=list)


def measure(cold: bool, model: str, rounds: int) -> Costs:
    """Run a network in a folder of its own and return what its rounds cost.

    Parameters
    ----------
    cold : bool
        Whether workers are run as Flower does it.
    model : str
        The model that is trained.
    rounds : int
        Rounds that are counted.
    """
    # Processes and folder are gone at the end, also if this process is killed.
    with Processes() as processes:
        network = prepare(processes.temporary_folder(), model, FIRST + rounds)
        pid = start(processes, network, *(["--cold"] if cold else []))
        _wait(processes, network, FIRST)
        begin = _worker_cpu(pid)
        counted = len(rows_of(network, "a"))
        _wait(processes, network, FIRST + rounds)
        used, messages = _worker_cpu(pid) - begin, FIRST + rounds - counted
        end = time.monotonic() + PATIENCE
        while processes.is_running(UP):
            if time.monotonic() > end:
                raise failure(network)
            time.sleep(0.02)
        hubs = [rows_of(network, hub)[FIRST - 1 :] for hub in ("a", "b")]
    costs = Costs(cpu=[used / (2 * messages)])  # two workers
    for rows in hubs:
        assert not any(row["absent"] or row["silent"] for row in rows), rows
        times = [row["time"] for row in rows]
        costs.seconds += [after - before - TAU * SLOT for before, after in pairwise(times)]
    waited = [[b - a for a, b in pairwise([row["gossip_seconds"] for row in r])] for r in hubs]
    costs.mixing += [min(pair) for pair in zip(*waited, strict=True)]
    return costs


def prepare(
    folder: Path, model: str, rounds: int, slot: float = SLOT, deadline: str = "120"
) -> NetworkFile:
    """Write the data, the network file and the certificates of a network of two hubs.

    Parameters
    ----------
    folder : Path
        Where they are written.
    model : str
        The model that is trained.
    rounds : int
        Rounds of the run.
    slot : float
        Seconds per slot.
    deadline : str
        Deadline of a round, as in a network file.
    """
    digits = load_digits()
    x, y = (digits.images / 16).astype(np.float32)[:, None], digits.target.astype(np.int64)
    arrays = {"x_train": x[:1500], "y_train": y[:1500], "x_test": x[1500:], "y_test": y[1500:]}
    np.savez(folder / "digits.npz", **arrays)
    ports = [free_port() for _ in range(4)]
    path = folder / "network.toml"
    values = {"tau": TAU, "slot": slot, "rounds": rounds, "model": model, "deadline": deadline}
    path.write_text(_NETWORK.format(**values, ports=ports))
    network = load_network(path)
    make_certs(network, network.certs)
    return network


def start(processes: Processes, network: NetworkFile, *options: str) -> int:
    """Start ``mll-flower up`` among these processes; return its id.

    Parameters
    ----------
    processes : Processes
        What it is started and ended with.
    network : NetworkFile
        The network that it runs.
    options : str
        Options of ``mll-flower up``.
    """
    command = [sys.executable, "-c", "from mll_flower.cli import app; app()"]
    command += ["up", str(network.path), *options]
    return processes.start(UP, command, os.environ, _log_of(network))


def failure(network: NetworkFile) -> RuntimeError:
    """Return the error of a network that has not run to its end, with its output."""
    return RuntimeError(f"the network did not run:\n{_log_of(network).read_text()}")


def _log_of(network: NetworkFile) -> Path:
    return network.path.parent / "up.log"


def rows_of(network: NetworkFile, hub: str) -> list[dict[str, Any]]:
    """Return the rows of a hub's rounds so far."""
    path = hub_directory(network, hub) / ROUNDS_FILE
    lines = path.read_text().splitlines() if path.exists() else []
    return [row for row in map(json.loads, lines) if "arrived" in row]


def _wait(processes: Processes, network: NetworkFile, rounds: int) -> None:
    end = time.monotonic() + PATIENCE
    while len(rows_of(network, "a")) < rounds:
        if not processes.is_running(UP) or time.monotonic() > end:
            raise failure(network)
        time.sleep(0.02)


def _worker_cpu(pid: int) -> float:
    """Return the CPU seconds so far of all workers below a process."""
    total = 0.0
    for node in psutil.Process(pid).children():
        if "warm.supernode" in " ".join(node.cmdline()):
            for process in (node, *node.children(recursive=True)):
                used = process.cpu_times()  # with those of children that have ended
                total += used.user + used.system + used.children_user + used.children_system
    return total


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the table."""
    parser = options("A deployed round, with Flower's own workers and with warm ones.", repeats=3)
    parser.add_argument("--rounds", type=int, default=10, help="rounds per run that are counted")
    parser.add_argument("--model", default="mlp", help="the model that is trained")
    choice = parser.parse_args(arguments)
    if choice.quick:
        choice.repeats, choice.rounds = 1, 2
    found = {STOCK: Costs(), WARM: Costs()}
    for repeat in range(choice.repeats):
        for name, costs in found.items():
            new = measure(name == STOCK, choice.model, choice.rounds)
            costs.seconds += new.seconds
            costs.cpu += new.cpu
            costs.mixing += new.mixing
            console.print(
                f"{repeat + 1}/{choice.repeats}  {name}: {statistics.median(new.seconds):.2f} s "
                f"per round beyond training, {new.cpu[0]:.2f} CPU s per message"
            )
    plot = plot_path(choice.docs, "deployment")
    bars(
        plot,
        {
            f"{name}, {what}": Spread.of(values)
            for name, costs in found.items()
            for what, values in (("s per round", costs.seconds), ("CPU s per message", costs.cpu))
        },
        "seconds (log)",
        log=True,
    )
    write(
        choice.docs, "deployment", f"{_text(found, choice)}\n\n![deployment](figures/{plot.name})"
    )


def _text(found: dict[str, Costs], choice: Any) -> str:
    headings = ["workers", "s per round beyond training", "CPU s per message", "ms per mixing"]
    rows = [
        [
            name,
            Spread.of(costs.seconds).text(),
            Spread.of(costs.cpu).text(),
            Spread.of([1e3 * value for value in costs.mixing]).text(),
        ]
        for name, costs in found.items()
    ]
    warm = found[WARM]
    gain = ratios(found[STOCK].cpu, warm.cpu)
    verdicts = {
        f"at most {MOST_SECONDS:g} s per round": statistics.median(warm.seconds) <= MOST_SECONDS,
        f"at most {MOST_CPU:g} CPU s per message": statistics.median(warm.cpu) <= MOST_CPU,
        f"at least {LEAST_GAIN:g} times less CPU": gain.median >= LEAST_GAIN,
    }
    asked = "; ".join(f"{what}: {'yes' if kept else '**no**'}" for what, kept in verdicts.items())
    return (
        f"{table(headings, rows)}\n\n"
        f"Median (range) over {choice.rounds} rounds in each of {choice.repeats} runs "
        f"(CPU: over the runs), model {choice.model}, tau * slot = {TAU * SLOT:g} s. Flower's own "
        f"workers use {gain.text()} times the CPU of warm ones. Asked of warm workers on an idle "
        f"machine: {asked}."
    )


if __name__ == "__main__":
    main()
