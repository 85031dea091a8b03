"""multi_level: one app, simulated and at hubs; what a hub records of an app that is not ours."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result

import mll_flower
from mll_flower import HubNetwork, MultiLevelStrategy, RoundReport, multi_level
from mll_flower.algorithm.graphs import hub_graph
from mll_flower.deployment.hub_place import VARIABLE, HubPlace
from mll_flower.deployment.hub_state import HUB_LOG, MODEL_FILE, ROUNDS_FILE, Phase, read_now
from mll_flower.grids.in_process import InProcessGrid
from tests.support.arrays import record
from tests.support.deployment import free_ports
from tests.support.flower_grid import client_app, unpack

WORKERS = {"a": (0, 1), "b": (2,)}
START = record({"x": np.zeros(4), "steps": np.array([0])})


def moved(worker: int, arrays: Any) -> dict[str, np.ndarray]:
    """What worker i makes of a model: deterministic, and different for each."""
    return {
        "x": 0.75 * arrays["x"] + (worker + 1) ** 2 / 3 * np.array([1.0, 0.1, 7.0, -2.0]),
        "steps": arrays["steps"] + 4,
    }


def grid_of(first: int, count: int, **metrics: Any) -> InProcessGrid:
    """A grid of some of the workers, whose replies have these metrics besides their weight."""

    def train(partition: int, arrays: Any, config: Any) -> Any:
        worker = first + partition
        return moved(worker, arrays), {"num-examples": 10 + worker, **metrics}

    def evaluate(partition: int, arrays: Any, config: Any) -> Any:
        return {}, {"num-examples": 1, "mean": float(arrays["x"].mean())}

    return InProcessGrid(client_app(train, evaluate), count, {})


def context(**run_config: Any) -> Context:
    return Context(1, 1, {}, RecordDict(), run_config)


class Deployment:
    """Two hubs with their workers, all in this process; gossip over gRPC."""

    def __init__(self, folder: Path, hubs: str = "ab", rounds: int = 4, more: str = "") -> None:
        ports = free_ports(2 * len(hubs))
        tables = "".join(
            f'[[hub]]\nid = "{hub}"\nworkers = {len(WORKERS[hub])}\n'
            f'superlink = "127.0.0.1:{ports[2 * n]}"\ngossip = "127.0.0.1:{ports[2 * n + 1]}"\n'
            for n, hub in enumerate(hubs)
        )
        folder.mkdir(exist_ok=True)
        self.folder, self.path = folder, folder / "network.toml"
        self.ports = ports
        graph = 'graph = "path"\n' if len(hubs) > 1 else ""
        self.path.write_text(
            f'name = "trial"\ntau = 5\nq = 2\nslot = 0.01\nrounds = {rounds}\n'
            f"round-deadline = 30\ngossip-deadline = 20\n{graph}"
            f"[run-config]\nnode-timeout = 20.0\n{more}{tables}"
        )

    def context(self, hub: str) -> Context:
        return context(role="hub", network=str(self.path), hub=hub, insecure=True)

    def state(self, hub: str) -> Path:
        return self.folder / "state" / f"hub-{hub}"

    def entries(self, hub: str) -> list[dict[str, Any]]:
        return [json.loads(x) for x in (self.state(hub) / ROUNDS_FILE).read_text().splitlines()]

    def rows(self, hub: str) -> list[dict[str, Any]]:
        return [entry for entry in self.entries(hub) if "arrived" in entry]

    def run(self, main: Callable[[Any, Context], Result]) -> dict[str, Result]:
        """Run the ServerApp of each hub in a thread."""
        results: dict[str, Result] = {}

        def play(hub: str) -> None:
            workers = WORKERS[hub]
            results[hub] = main(grid_of(workers[0], len(workers)), self.context(hub))

        threads = [threading.Thread(target=play, args=(hub,)) for hub in WORKERS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert set(results) == set(WORKERS)
        return results


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"accuracy": float(arrays["x"].numpy().mean()), "loss": 2.0, "f1": 0.5})


def test_in_a_simulation_it_is_the_multi_level_strategy() -> None:
    with multi_level(context(), hubs=2, graph="path", q=3) as strategy:
        assert type(strategy) is MultiLevelStrategy
        assert (strategy.number_of_hubs, strategy.q) == (2, 3)
        result = strategy.start(grid_of(0, 4), START, num_rounds=1, evaluate_fn=evaluate)
    assert set(result.evaluate_metrics_serverapp) == {0, 1}
    with pytest.raises(ValueError, match="q=0"), multi_level(context(), hubs=2, q=0):
        pass


def test_two_hubs_have_the_models_of_the_simulated_network(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)

    def main(grid: Any, context: Context) -> Result:
        with multi_level(context, hubs=2, graph="path", q=2, fraction_evaluate=0.0) as strategy:
            return strategy.start(grid, START, num_rounds=4)

    results = deployment.run(main)
    network = HubNetwork.build(
        workers_per_hub=[2, 1], graph=hub_graph("path", 2), weights=[10, 11, 12]
    )
    simulated = MultiLevelStrategy(network, q=2, mixing="metropolis", fraction_evaluate=0.0)
    simulated.start(grid_of(0, 3), START, num_rounds=4)
    for d, hub in enumerate(WORKERS):
        expected = simulated.hubs[d].layout.arrays(simulated.hubs[d].model)
        found = unpack(results[hub].arrays)
        np.testing.assert_allclose(found["x"], expected["x"], rtol=1e-13)
        np.testing.assert_array_equal(found["steps"], expected["steps"])
        assert [row["round"] for row in deployment.rows(hub)] == [1, 2, 3, 4]
        assert all(set(row["column"]) == {"a", "b"} for row in deployment.rows(hub)[1::2])
        assert read_now(deployment.state(hub))["phase"] == Phase.FINISHED
        assert (deployment.state(hub) / MODEL_FILE).is_file()


def play(deployment: Deployment, hub: str = "a", **arguments: Any) -> Result:
    """Run the only hub of a deployment."""
    more = {
        name: arguments.pop(name)
        for name in ("num_rounds", "evaluate_fn", "metrics")
        if name in arguments
    }
    grid = grid_of(0, 2, **more.pop("metrics", {}))
    settings = {"hubs": 1, "fraction_evaluate": 0.0, **arguments}
    with multi_level(deployment.context(hub), **settings) as strategy:
        return strategy.start(grid=grid, initial_arrays=START, **{"num_rounds": 4, **more})


def test_the_hub_s_own_model_is_evaluated_and_recorded(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, "a", rounds=2)
    asked: list[int] = []

    def counted(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        asked.append(server_round)
        return evaluate(server_round, arrays) if server_round != 1 else None

    result = play(deployment, num_rounds=2, evaluate_fn=counted)
    first, second = deployment.rows("a")
    assert asked == [0, 1, 2]
    assert set(result.evaluate_metrics_serverapp) == {0, 2}
    assert "accuracy" not in first
    accuracy = result.evaluate_metrics_serverapp[2]["accuracy"]
    assert accuracy == pytest.approx(float(unpack(result.arrays)["x"].mean()))
    assert (second["accuracy"], second["test_loss"]) == (accuracy, 2.0)
    assert second["evaluation"] == {"f1": 0.5}
    assert read_now(deployment.state("a"))["accuracy"] == accuracy
    (before,) = [e for e in deployment.entries("a") if e.get("event") == "evaluated"]
    assert (before["round"], before["metrics"]["accuracy"]) == (0, 0.0)


def test_workers_evaluate_if_the_app_asks_for_it(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, "a", rounds=2)
    result = play(deployment, num_rounds=2, fraction_evaluate=1.0)
    events = [e for e in deployment.entries("a") if e.get("event") == "evaluated by workers"]
    assert [event["round"] for event in events] == [1, 2]
    mean = float(unpack(result.arrays)["x"].mean())
    assert events[1]["metrics"]["mean"] == pytest.approx(mean)


def test_the_network_file_decides_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deployment = Deployment(tmp_path, "a", rounds=2)
    play(deployment, hubs=3, graph="ring", q=7, tau=5, deadline=4.0, num_rounds=9)
    said = [r.getMessage() for r in caplog.records if "network file decides" in r.getMessage()]
    names = [text.partition("=")[0] for text in said]
    assert names == ["hubs", "q", "deadline", "graph", "num_rounds"]
    assert "q=7 in the app: the network file decides, 2" in said
    assert [row["round"] for row in deployment.rows("a")] == [1, 2]
    assert [row["mixing"] for row in deployment.rows("a")] == [None, 1]


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        {"train_loss": 1.5},
        {"loss": float("nan"), "steps": 1.0, "worker": [1, 2], "rate": float("inf")},
        {"loss": [1.0], "steps": [3], "worker": 2.0, "accuracy": 0.5},
    ],
    ids=["none", "flower's", "odd", "lists"],
)
def test_no_metric_of_a_worker_ends_the_run(tmp_path: Path, metrics: dict[str, Any]) -> None:
    deployment = Deployment(tmp_path, "a", rounds=2)
    play(deployment, num_rounds=2, metrics=metrics)
    rows = deployment.rows("a")
    assert [len(row["arrived"]) for row in rows] == [2, 2]
    assert rows[1]["loss"] == metrics.get("train_loss")
    assert [reply["weight"] for reply in rows[1]["arrived"]] == [10, 11]
    text = (deployment.state("a") / ROUNDS_FILE).read_text()
    assert "NaN" not in text
    assert "Infinity" not in text


def test_what_on_round_returns_is_in_the_row(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, "a", rounds=2)
    seen: list[RoundReport] = []

    def on_round(report: RoundReport) -> dict[str, Any] | None:
        seen.append(report)
        return {"temperature": np.float32(0.5), "note": Path("x")} if report.number == 2 else None

    play(deployment, num_rounds=2, on_round=on_round)
    first, second = deployment.rows("a")
    assert [report.number for report in seen] == [1, 2]
    assert "temperature" not in first
    assert (second["temperature"], second["note"]) == (0.5, "x")


def test_a_hub_that_is_started_again_goes_on(tmp_path: Path) -> None:
    whole, parts = Deployment(tmp_path / "whole", "a"), Deployment(tmp_path / "parts", "a", 2)
    expected = play(whole)
    play(parts, num_rounds=2, evaluate_fn=evaluate)
    parts.path.write_text(parts.path.read_text().replace("rounds = 2", "rounds = 4"))
    asked: list[int] = []

    def counted(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        asked.append(server_round)
        return evaluate(server_round, arrays)

    result = play(parts, evaluate_fn=counted)
    assert asked == [3, 4]  # rounds of the whole run; the model before them was evaluated before
    np.testing.assert_array_equal(unpack(result.arrays)["x"], unpack(expected.arrays)["x"])
    assert [row["round"] for row in parts.rows("a")] == [1, 2, 3, 4]
    again = play(parts)  # nothing is left to do
    np.testing.assert_array_equal(unpack(again.arrays)["x"], unpack(expected.arrays)["x"])
    assert len(parts.rows("a")) == 4


def test_an_error_in_the_block_is_a_hub_that_failed(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, "a", rounds=2)
    with pytest.raises(ZeroDivisionError), multi_level(deployment.context("a"), hubs=1):
        1 / 0  # noqa: B018
    now = read_now(deployment.state("a"))
    assert now["phase"] == Phase.FAILED
    assert now["error"] == "ZeroDivisionError: division by zero"
    assert "ZeroDivisionError" in (deployment.state("a") / HUB_LOG).read_text()
    with (
        pytest.raises(RuntimeError, match=r"never called strategy\.start"),
        multi_level(deployment.context("a"), hubs=1),
    ):
        pass
    assert read_now(deployment.state("a"))["phase"] == Phase.FAILED
    play(deployment, num_rounds=2)  # its port is free again


def test_equal_weights_are_a_setting_of_the_network(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, "a", rounds=2, more='weights = "equal"\n')
    result = play(deployment, num_rounds=2)
    y: Any = unpack(START)
    for _ in range(2):
        a, b = (moved(worker, y) for worker in (0, 1))
        y = {name: (a[name] + b[name]) / 2 for name in a}
    np.testing.assert_allclose(unpack(result.arrays)["x"], y["x"], rtol=1e-13)


class TestPlace:
    """How a ServerApp learns which hub it is."""

    def test_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(VARIABLE, raising=False)
        assert HubPlace.find({"title": "x"}) is None
        place = HubPlace("/net.toml", "lyon", "/state", "trial", True)
        ((name, text),) = place.environment().items()
        monkeypatch.setenv(name, text)
        assert HubPlace.find({"title": "x"}) == place

    def test_the_run_config(self) -> None:
        values = {
            "role": "hub",
            "network": "net.toml",
            "hub": "ulm",
            "output": "",
            "insecure": True,
        }
        assert HubPlace.find(values) == HubPlace("net.toml", "ulm", insecure=True)
        assert HubPlace.find({**values, "role": "network"}) is None

    @pytest.mark.parametrize("text", ["lyon", "[]", '{"hub": "lyon"}', '{"network": 1, "x": 2}'])
    def test_nonsense(self, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        monkeypatch.setenv(VARIABLE, text)
        with pytest.raises(ValueError, match="is not a hub's place"):
            HubPlace.find({})


def test_it_is_a_name_of_the_library() -> None:
    assert mll_flower.multi_level is multi_level
    with pytest.raises(AttributeError, match="multi_lvel"):
        mll_flower.multi_lvel  # noqa: B018
