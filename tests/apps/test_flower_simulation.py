"""Runs of the whole network on Flower's simulation engine: real SuperLink, Ray, SuperNodes, FAB.

The runs are small and share one SuperLink. Whatever needs no Flower runtime is tested in
test_network_run.py, on the same apps.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from mll_flower.cli import app as cli
from mll_flower.processes.flower_environment import app_directory
from mll_flower.processes.simulation import SuperLink, run_app, simulation_superlink
from mll_flower.results.files import COLUMNS
from tests.support.corrected import ALL_ON
from tests.support.own_work import write_user_files
from tests.support.simulated import (
    Results,
    config_of,
    play,
    reference_run,
    settings_of,
    task_and_shards,
)

pytestmark = pytest.mark.timeout(600)

SETTINGS = {"hubs": 2, "workers_per_hub": "2,1", "slots": 32, "learning_rate": 0.5}


@dataclass
class Shared:
    """The SuperLink of this file's runs."""

    superlink: SuperLink
    stack: ExitStack

    def run(
        self,
        output: Path,
        nodes: int,
        actors: int,
        on_line: Callable[[str], None] = lambda line: None,
        **settings: object,
    ) -> tuple[Results, list[str]]:
        """Run the app as `flwr run` does; return its results and its log."""
        lines: list[str] = []

        def on_log_line(line: str) -> None:
            lines.append(line)
            on_line(line)

        federation = {
            "num-supernodes": nodes,
            "client-resources-num-cpus": 1,
            "init-args-num-cpus": actors,
            "init-args-log-to-driver": False,
        }
        values = {**settings_of(settings), "output": str(output)}
        run_app(self.superlink, app_directory(), values, federation, on_log_line)
        return Results(output), lines


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with ExitStack() as stack:
        yield Shared(stack.enter_context(simulation_superlink()), stack)


@pytest.fixture(scope="module")
def by_worker(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """One node per worker, and one actor."""
    output = tmp_path_factory.mktemp("worker") / "run"
    return shared.run(output, nodes=3, actors=1, pool="worker", **SETTINGS)[0]


def test_a_run_on_flower_equals_algorithm_1(by_worker: Results):
    history = reference_run(config_of(**SETTINGS))
    assert np.abs(by_worker.vector() - history.average[-1]).max() <= 1e-6
    assert np.abs(history.average[-1]).max() > 0.1
    # Not only at the end: u at each evaluation, by its loss.
    task, _ = task_and_shards(by_worker.config)
    x = task.data.x_test.reshape(360, -1).astype(np.float64)
    sign = np.where(task.data.y_test < 5, 1.0, -1.0)
    for row in by_worker.evaluations:
        u = history.average[int(row["slot"])]
        loss = np.logaddexp(0, sign * (x @ u[:-1] + u[-1])).mean()
        assert float(row["test_loss"]) == pytest.approx(loss, abs=1e-6)


def test_all_results_are_written(by_worker: Results):
    assert tuple(by_worker.rows[0]) == COLUMNS
    assert len(by_worker.evaluations) == 5
    assert [row["hub"] for row in by_worker.rows].count("0") == 8
    assert by_worker.report["summary"]["slot"] == 32
    assert by_worker.report["absences"] == []
    assert by_worker.config.pool == "worker"
    task, _ = task_and_shards(by_worker.config)
    module = task.new_model()
    module.load_state_dict({k: torch.from_numpy(v) for k, v in by_worker.model.items()})
    _, accuracy = task.evaluate(module)
    assert accuracy == pytest.approx(by_worker.report["summary"]["accuracy"])
    plots = list((by_worker.folder / "plots").glob("*.png"))
    assert len(plots) >= 4
    assert all(plot.read_bytes().startswith(b"\x89PNG") for plot in plots)


def test_the_numbers_are_the_same_in_process(by_worker: Results, tmp_path: Path):
    in_process = play(tmp_path, pool="worker", **SETTINGS)
    assert in_process.same_model(by_worker)
    assert in_process.timeless == by_worker.timeless


def test_the_numbers_are_the_same_with_other_actors_nodes_and_pools(
    shared: Shared, by_worker: Results, tmp_path: Path
):
    """Two actors, one node per hub, and more nodes than needed, as `flwr run` has by default."""
    results, log = shared.run(tmp_path / "run", nodes=4, actors=2, pool="hub", **SETTINGS)
    assert results.same_model(by_worker)
    assert results.evaluations == by_worker.evaluations
    assert results.report["workers"] == by_worker.report["workers"]
    in_process = play(tmp_path / "here", pool="hub", **SETTINGS)
    assert in_process.same_model(results)
    assert in_process.timeless == results.timeless
    # `flwr run --stream` shows the progress.
    assert any("slot 32 of 32" in line for line in log)


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["worker", "hub"])
def test_corrections_give_the_same_numbers_on_flower(shared: Shared, tmp_path: Path, pool: str):
    settings = {**SETTINGS, **ALL_ON, "rates": "hub:0.4,0.9", "partition": "by-hub", "pool": pool}
    results, _ = shared.run(tmp_path / "run", nodes=3, actors=2, **settings)
    in_process = play(tmp_path / "here", **settings)
    assert results.same_model(in_process)
    assert results.timeless == in_process.timeless
    plain = {key: value for key, value in settings.items() if key not in ALL_ON}
    assert not results.same_model(play(tmp_path / "plain", **plain))


def invoke_run(shared: Shared, output: Path, settings: dict) -> Result:
    """Call `mll-flower run` on the shared SuperLink."""
    values = {**settings_of(settings), "output": output}
    options = [text for key, value in values.items() for text in (f"--{key}", str(value))]
    with patch(
        "mll_flower.processes.simulation.simulation_superlink",
        lambda *given: nullcontext(shared.superlink),
    ):
        return CliRunner().invoke(cli, ["run", "--actors", "2", *options])


def test_the_command_runs_through_flower(shared: Shared, tmp_path: Path):
    settings = {**SETTINGS, "model": "cnn", "slots": 8, "momentum": 0.5, "pool": "hub"}
    result = invoke_run(shared, tmp_path / "run", settings)
    assert result.exit_code == 0, result.output
    assert "test accuracy" in result.output
    # torch's results too are the same to the bit in Ray's actors and here.
    assert Results(tmp_path / "run").same_model(play(tmp_path / "here", **settings))


def test_a_users_file_trains_in_flowers_processes(
    shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The file is in the working folder, which is not on the path of Flower's processes."""
    monkeypatch.chdir(write_user_files(tmp_path / "user"))
    own = {"model": "mine.py:Awkward", "dataset": "mine.py:classes", "loss": "mine.py:smooth"}
    own |= {"partition": "mine.py:unequal", "optimiser": "adamw", "learning_rate": 0.02}
    settings = {**SETTINGS, **own, "slots": 16, "pool": "hub"}
    result = invoke_run(shared, tmp_path / "run", settings)
    assert result.exit_code == 0, result.output
    ours = play(tmp_path / "here", code_dir=str(tmp_path / "user"), **settings)
    assert Results(tmp_path / "run").same_model(ours)


def test_too_few_nodes_fail_the_run_with_the_remedy(shared: Shared, tmp_path: Path):
    def with_two(superlink, app, values, federation, *others) -> None:
        run_app(superlink, app, values, {**federation, "num-supernodes": 2}, *others)

    with patch("mll_flower.processes.simulation.run_app", with_two):
        result = invoke_run(shared, tmp_path / "run", {**SETTINGS, "pool": "worker"})
    assert result.exit_code == 1  # `flwr run` itself ends with 0
    assert "there are 2 SuperNodes; pool='worker' with 2 hubs and 3 workers" in result.output
    assert "needs 3: use --federation-config 'num-supernodes=3'" in result.output
    assert "the run ended as 'finished:failed'" in result.output
    assert not (tmp_path / "run").exists()


def processes_of(home: Path) -> list[str]:
    """Return the commands of all processes that were started with this FLWR_HOME."""
    return [
        " ".join(process.info["cmdline"] or [])
        for process in psutil.process_iter(["environ", "cmdline"])
        if (process.info["environ"] or {}).get("FLWR_HOME") == str(home)
    ]


class Interrupted(Exception):
    """Raised in the middle of a run, like a Ctrl-C."""


def test_an_interrupted_run_leaves_no_process_behind(shared: Shared, tmp_path: Path):
    """Must be the last test, because it ends the SuperLink."""
    home, port = shared.superlink.home, shared.superlink.port

    def interrupt(line: str) -> None:
        if "results go to" in line:
            raise Interrupted

    with pytest.raises(Interrupted):
        shared.run(tmp_path, 3, 1, on_line=interrupt, pool="worker", **{**SETTINGS, "slots": 10**5})
    commands = " ".join(processes_of(home))
    assert "flower-superlink" in commands
    assert "raylet" in commands
    shared.stack.close()
    assert processes_of(home) == []
    assert not home.exists()
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
