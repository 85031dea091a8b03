"""A simulation on a Ray cluster: the same bits, and a node that dies costs absences alone."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from mll_flower.apps.launch import absolute_paths, run_in_process, run_on_flower
from mll_flower.processes.ray_cluster import Resources
from mll_flower.results import files
from tests.support.ray_nodes import ray_nodes

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "hubs": 4,
    "workers-per-hub": "2",
    "model": "logistic",
    "tau": 2,
    "q": 2,
    "slots": 32,
    "rates": "1",
}


def report_of(output: Path) -> Any:
    return json.loads((output / files.METRICS).read_text())


def test_two_nodes_give_the_bits_of_one_process(tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    run_in_process(absolute_paths({**SETTINGS, "output": str(alone)}))
    cluster_output = tmp_path / "cluster"
    values = absolute_paths({**SETTINGS, "output": str(cluster_output)})
    with ray_nodes(2) as cluster:
        resources = Resources.found(address=cluster.address)
        run_on_flower(values, lambda line: None, resources=resources)
    expected, found = (load_file(p / files.MODEL) for p in (alone, cluster_output))
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    assert report_of(cluster_output)["summary"]["absent"] == 0


def test_a_node_that_dies_costs_absences_and_not_the_run(tmp_path: Path) -> None:
    output = tmp_path / "out"
    values = absolute_paths(
        {**SETTINGS, "slots": 480, "evaluate-every": 240, "output": str(output)}
    )
    killed = threading.Event()
    with ray_nodes(2) as cluster:

        def kill_when_it_trains() -> None:
            rows = output / files.ROWS
            if not killed.is_set() and rows.is_file() and len(rows.read_text().splitlines()) > 20:
                killed.set()
                cluster.kill(1)

        resources = Resources.found(address=cluster.address)
        run_on_flower(values, lambda line: None, kill_when_it_trains, resources=resources)
    summary = report_of(output)["summary"]
    assert killed.is_set()
    assert summary["slot"] == 480
    # Of 480 messages to hubs, those that were at the node; not all that came later.
    assert 0 < summary["absent"] <= 24
