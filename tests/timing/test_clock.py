"""The clock, against numbers worked out by hand."""

from __future__ import annotations

import csv
from itertools import islice
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from mll_flower.apps.launch import run_in_process
from mll_flower.config import RunConfig
from mll_flower.timing.clock import Clock, fits
from mll_flower.timing.clock_file import load_clock

MB = 1_000_000

# 8 Mbit/s is 1 MB per second. For 1 MB, worker 0 needs 1 s down, 2 s up and 2 x 0.05 s; worker 2
# needs 1 + 1 s; the hubs exchange their models in 0.1 + 0.5 s.
TWO = """
[clock]
model-megabytes = 1
[[region]]
name = "north"
workers = 2
seconds-per-step = [0.5, 1.0]
down-mbit = 8
up-mbit = 4
latency-ms = 50
[[region]]
name = "south"
workers = 1
seconds-per-step = 2
down-mbit = 8
up-mbit = 8
[links]
mbit = 16
latency-ms = 100
"""


def write(folder: Path, text: str = TWO, name: str = "clock.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def seconds(clock: Clock, graph: nx.Graph[int], rounds: int, **how: object) -> np.ndarray:
    settings = {"tau": 4, "q": 2, "waits": False, "model_bytes": MB, **how}
    return np.array(list(islice(clock.ends(graph, **settings), rounds)))  # type: ignore[arg-type]


def test_rates_are_slots_over_seconds_per_step(tmp_path: Path) -> None:
    clock = load_clock(write(tmp_path))
    assert clock.slot == 0.5  # the fastest worker's step
    assert clock.rates().tolist() == [1.0, 0.5, 0.25]
    slower = write(tmp_path, TWO.replace("[clock]", "[clock]\nslot = 1.0"), "slower.toml")
    assert load_clock(slower).rates().tolist() == [1.0, 1.0, 0.5]


def test_rounds_that_do_not_wait(tmp_path: Path) -> None:
    clock = load_clock(write(tmp_path))
    assert clock.transfer(MB) == pytest.approx([3.1, 3.1, 2.0])
    ends = seconds(clock, nx.path_graph(2), 4)
    # A round: 4 slots of 0.5 s and the slowest transfer: 5.1 s in the north, 4 s in the south. The
    # second ends with a mixing, which both begin at 10.2 s and which takes 0.6 s.
    assert ends == pytest.approx(np.array([[5.1, 4.0], [10.8, 10.8], [15.9, 14.8], [21.6, 21.6]]))


def test_rounds_that_wait(tmp_path: Path) -> None:
    ends = seconds(load_clock(write(tmp_path)), nx.path_graph(2), 3, waits=True)
    # North: 3.1 + 4 x 1 s. South: 2 + 4 x 2 s.
    assert ends == pytest.approx(np.array([[7.1, 10.0], [20.6, 20.6], [27.7, 30.6]]))


def three(**arrays: object) -> Clock:
    """Three hubs of one worker each, whose steps take 1, 2 and 3 s, and whose links take 1 s."""
    values = {
        "names": ("a", "b", "c"),
        "hub_of": np.arange(3),
        "slot": 1.0,
        "step_seconds": np.array([[1.0, 2.0, 3.0]]),
        "latency": np.zeros(3),
        "per_byte": np.zeros(3),
        "link_latency": np.where(np.eye(3) == 1, np.inf, 1.0),
        "link_per_byte": np.where(np.eye(3) == 1, np.inf, 0.0),
        "hub_per_byte": np.zeros(3),
        **arrays,
    }
    return Clock(**values)  # type: ignore[arg-type]


def test_a_hub_waits_only_for_its_neighbours() -> None:
    # On the path a - b - c with tau = 1: a ends at 1, b at 2, c at 3.
    ends = seconds(three(), nx.path_graph(3), 2, tau=1, q=1, waits=True)
    assert ends[0].tolist() == [2 + 1, 3 + 1, 3 + 1]
    # Then a ends at 4, b at 6, c at 7.
    assert ends[1].tolist() == [6 + 1, 7 + 1, 7 + 1]


def test_a_hubs_own_link_carries_all_its_copies() -> None:
    # At a star's centre two copies of a model of 10 bytes at 0.2 s each byte: 4 s, more than 1 s.
    clock = three(hub_per_byte=np.array([0.2, 0.0, 0.0]))
    ends = seconds(clock, nx.star_graph(2), 1, tau=1, q=1, model_bytes=10)
    assert ends[0].tolist() == [1 + 4, 1 + 1, 1 + 1]


def test_one_server_for_all(tmp_path: Path) -> None:
    clock = load_clock(write(tmp_path))
    server = clock.central(MB)
    # In the north, the one worker of the south has 2 x 0.6 s more; in the south, the two of the
    # north would share the link: 2 x (0.1 + 2 x 0.5) s more.
    assert server.names == ("north",)
    assert server.transfer(MB) == pytest.approx([3.1, 3.1, 3.2])
    assert server.worker_counts == [3]
    assert fits(clock, [2, 1])
    assert fits(clock, [3])
    assert not fits(clock, [1, 2])


def test_a_trace_decides_steps_and_waiting(tmp_path: Path) -> None:
    rows = ["worker,round,seconds"]
    arrivals = {1: (5.1, 7.1, 10.0), 2: (5.1, 11.1, 42.0)}  # transfers and 4 steps
    for number, values in arrivals.items():
        rows += [f"{worker},{number},{value}" for worker, value in enumerate(values)]
    (tmp_path / "arrivals.csv").write_text("\n".join(rows) + "\n")
    traced = '[clock]\nslot = 0.5\ntrace = "arrivals.csv"\ntrace-steps = 4'
    path = write(tmp_path, TWO.replace("[clock]", traced))
    clock = load_clock(path)
    assert clock.step_seconds == pytest.approx(np.array([[0.5, 1.0, 2.0], [0.5, 2.0, 10.0]]))
    assert clock.rates() == pytest.approx([1.0, (0.5 + 0.25) / 2, (0.25 + 0.05) / 2])
    # Round 3 is the trace's first again.
    assert [[clock.steps(i, n, 8) for i in range(3)] for n in (1, 2, 3)] == [
        [8, 4, 2],
        [8, 2, 0],
        [8, 4, 2],
    ]
    assert clock.slots_until(2, 2, 8) == 160
    ends = seconds(clock, nx.path_graph(2), 2, q=9, waits=True)
    assert ends == pytest.approx(np.array([[7.1, 10.0], [7.1 + 11.1, 52.0]]))
    # And a run takes these steps.
    values = {"clock": str(path), "slots": 16, "tau": 8, "q": 1, "model": "mlp"}
    output = run_in_process({**values, "output": str(tmp_path / "run")}, plots=False, lines=False)
    with (output / "metrics.csv").open() as file:
        taken = [row["steps"] for row in csv.DictReader(file) if row["hub"] != "all"]
    assert taken == ["12", "2", "10", "0"]


def test_the_seconds_of_a_run_are_the_clocks(tmp_path: Path) -> None:
    values = {"clock": str(write(tmp_path)), "slots": 16, "tau": 4, "q": 2, "model": "mlp"}
    output = run_in_process({**values, "output": str(tmp_path / "run")}, plots=False, lines=False)
    with (output / "metrics.csv").open() as file:
        rows = [(row["hub"], float(row["seconds"])) for row in csv.DictReader(file)]
    assert rows == [
        ("all", 0.0),
        *[(hub, 10.8) for hub in ("0", "1", "all")],
        *[(hub, 21.6) for hub in ("0", "1", "all")],
    ]


def test_slots_of_a_round_that_waits(tmp_path: Path) -> None:
    values = {"clock": str(write(tmp_path)), "slots": 40, "tau": 4, "q": 1, "wait-for-all": True}
    # The slowest worker needs 4 x 2 s, which are 16 slots of 0.5 s.
    assert [r.slot for r in RunConfig.from_run_config(values).schedule()] == [16, 32]
