"""The whole network in one run: rounds, presets, results. In process, on the real app."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from mll_flower.algorithm.coins import slots_until
from mll_flower.algorithm.mixing import mixing_matrix, zeta
from mll_flower.config import PRESETS
from mll_flower.grids.in_process import InProcessGrid
from mll_flower.results.files import COLUMNS
from tests.support.simulated import (
    Batches,
    Results,
    config_of,
    engine,
    network_of,
    play,
    reference_run,
    replay,
    task_and_shards,
)


def close(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-6) -> bool:
    return bool(np.max(np.abs(a - b)) <= tolerance)


class Gathering(InProcessGrid):
    """Nodes that come one by one, those that are needed last."""

    there = 0

    def get_node_ids(self) -> list[int]:
        self.there += 1
        return list(super().get_node_ids())[-self.there :]


class TestTime:
    """Rounds by slots (rules 1, 6 and 7)."""

    def test_a_round_of_slow_workers_costs_tau_slots(self, tmp_path):
        run = play(tmp_path, rates="0.1", slots=40)
        for d in range(3):
            rows = run.hub_rows(d)
            assert [int(row["slot"]) for row in rows] == [4 * r for r in range(1, 11)]
        taken = sum(int(row["steps"]) for row in run.lasting if row["hub"] != "all")
        # Binomial(240, 0.1): the steps are those of the coins, far from all.
        assert taken == run.report["summary"]["steps"]
        assert 5 < taken < 60

    @pytest.mark.parametrize("pool", ["worker", "hub"])
    @pytest.mark.parametrize(
        "preset", [{"preset": "local-sgd"}, {"preset": "hl-sgd", "graph": "star"}]
    )
    def test_waiting_for_all_costs_what_the_slowest_needs(self, tmp_path, preset, pool):
        rates = [0.1, 0.5, 1.0, 0.3, 0.9, 0.6]
        settings = {**preset, "pool": pool, "slots": 360, "rates": ",".join(map(str, rates))}
        run = play(tmp_path, **settings)
        config = config_of(**settings)
        q = config.q
        members = [[0, 1], [2, 3, 4], [5]]
        now = [0, 0, 0]
        expected: list[tuple[int, list[int]]] = []
        number = 0
        while True:
            number += 1
            needed = [max(slots_until(5, i, number, 4, rates[i]) for i in hub) for hub in members]
            now = [t + n for t, n in zip(now, needed, strict=True)]
            if max(now) > 360:
                break
            expected.append((number, list(now)))
            if number % q == 0:
                now = [max(now)] * 3
        if q > 1:  # rounds that no mixing follows are left out
            assert len(expected) % q
            expected = expected[: -(len(expected) % q)]
        seen = dict.fromkeys(int(row["round"]) for row in run.hub_rows(0))
        assert list(seen) == [n for n, _ in expected if pool == "worker" or n % q == 0]
        for number, ends in expected:
            if number in seen:
                rows = [r for r in run.lasting if r["hub"] != "all" and int(r["round"]) == number]
                assert [int(row["slot"]) for row in rows] == ends
        # Everybody has taken all steps: nobody's slowness costs the others a step.
        assert {w["steps"] for w in run.report["workers"]} == {4 * len(expected)}
        assert expected[-1][1] > [4 * len(expected)] * 3

    def test_slots_that_are_no_whole_number_of_mixings_are_used(self, tmp_path):
        run = play(tmp_path, slots=27)  # six rounds of four, three mixings
        again = play(tmp_path / "hub", slots=21, pool="hub")  # five rounds, two mixings
        assert [int(row["slot"]) for row in run.evaluations] == [0, 8, 16, 24]
        assert [int(row["slot"]) for row in again.evaluations] == [0, 8, 16, 20]
        assert again.same_model(replay(config_of(slots=21))[-1][1])

    def test_evaluations_are_made_when_asked_for(self, tmp_path):
        run = play(tmp_path, slots=32, evaluate_every=12)
        assert [int(row["slot"]) for row in run.evaluations] == [0, 12, 24, 32]
        rare = play(tmp_path / "rare", slots=32, evaluate_every=400)
        assert [int(row["slot"]) for row in rare.evaluations] == [0, 32]


class TestNumbers:
    """A run equals the paper's algorithm, and its parts to the bit."""

    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"weights": "equal", "rates": "0.4", "slots": 24},
            {"weights": "1,2,0.5,3,1.25,0.1", "mixing": "diffusion"},
            {"hubs": 1, "workers_per_hub": "4"},
            {"graph": "complete", "mixing": "complete", "partition": "by-hub"},
            {"lr_milestones": "0.25,0.75", "lr_factor": 0.5, "slots": 32},
            {"preset": "local-sgd", "rates": "0.5", "slots": 60},
            {"preset": "hl-sgd", "graph": "star", "rates": "0.5", "slots": 60},
            {"preset": "distributed-sgd"},
            {"preset": "cooperative-sgd"},
            {"preset": "fedavg", "partition": "sized"},
        ],
        ids=str,
    )
    def test_it_is_algorithm_1(self, tmp_path, settings):
        config = config_of(**settings)
        history = reference_run(config)
        assert not close(history.average[0], history.average[-1], 1e-2)
        for pool in ("worker", "hub"):
            run = play(tmp_path / pool, pool=pool, **settings)
            assert close(run.vector(), history.average[-1])

    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"weights": "equal", "rates": "1"},
            {"weights": "1,2,0.5,3,1.25,0.1", "slots": 32},
            {"weights": "0.1,0.7,1e-3,11,3.3,2.2", "absent": "renormalise"},
            {"evaluate_every": 4},
            {"evaluate_every": 12, "slots": 24},
            {"q": 6, "slots": 48, "evaluate_every": 8},
            {"q": 3, "slots": 20},
            {"preset": "hl-sgd", "graph": "star", "slots": 300},
            {"preset": "hl-sgd", "graph": "star", "slots": 300, "lr_milestones": "0.3"},
            {"preset": "local-sgd", "hubs": 1, "workers_per_hub": "6", "slots": 200},
            {"hubs": 1, "workers_per_hub": "5", "evaluate_every": 12, "slots": 24},
            {"momentum": 0.9, "weight_decay": 0.01},
            {"model": "mlp"},
            {"model": "mlp", "momentum": 0.5, "partition": "dirichlet(0.5)"},
            {"model": "cnn", "slots": 8},
            {"partition": "shards(2)", "mixing": "optimal"},
        ],
        ids=str,
    )
    def test_pools_and_parts_agree_to_the_bit(self, tmp_path, settings):
        expected = replay(config_of(**settings))
        one = play(tmp_path / "worker", pool="worker", **settings)
        pooled = play(tmp_path / "hub", pool="hub", **settings)
        assert one.same_model(expected[-1][1])
        assert pooled.same_model(expected[-1][1])
        assert one.evaluations == pooled.evaluations
        for row in pooled.rows:  # a pooled hub tells of fewer rounds, and the same of them
            if row["hub"] != "all":
                [same] = [r for r in one.hub_rows(int(row["hub"])) if r["round"] == row["round"]]
                assert [row[k] for k in ("slot", "distance", "bytes", "absent")] == [
                    same[k] for k in ("slot", "distance", "bytes", "absent")
                ]
        for a, b in zip(one.report["workers"], pooled.report["workers"], strict=True):
            assert a == b

    def test_batch_norm_survives_pools_to_the_bit(self, tmp_path):
        data = tmp_path / "tiny.npz"
        rng = np.random.default_rng(0)
        x, y = rng.random((24, 8, 8, 3), dtype=np.float32), np.arange(24) % 2
        np.savez(data, x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
        settings = {
            "dataset": f"npz:{data}",
            "model": "resnet18",
            "hubs": 2,
            "workers_per_hub": "2,1",
            "tau": 1,
            "q": 2,
            "slots": 2,
            "rates": "1",
            "batch_size": 2,
            "learning_rate": 0.01,
        }
        one = play(tmp_path / "worker", **settings)
        pooled = play(tmp_path / "hub", **{**settings, "pool": "hub"})
        assert one.same_model(pooled)
        counter = one.model["bn1.num_batches_tracked"]
        assert (counter.dtype, counter.shape, counter) == (np.int64, (), 2)
        assert one.model["bn1.running_mean"].any()

    def test_nodes_that_host_nothing_do_no_harm(self, tmp_path):
        run = play(tmp_path / "more", grid=Gathering, extra_nodes=4, pool="hub")
        assert run.same_model(play(tmp_path / "exact", pool="hub"))

    def test_too_few_nodes_are_told_with_the_remedy(self, tmp_path):
        for pool, needed in (("hub", 3), ("worker", 6)):
            remedy = f"use --federation-config 'num-supernodes={needed}'"
            with pytest.raises(RuntimeError, match=remedy):
                play(tmp_path / "run", extra_nodes=-1, pool=pool)
        assert not (tmp_path / "run").exists()

    def test_another_seed_is_another_run(self, tmp_path):
        assert not play(tmp_path / "a", seed=1).same_model(play(tmp_path / "b", seed=2))

    def test_what_is_evaluated_is_the_averaged_model(self, tmp_path):
        settings = {"model": "mlp", "evaluate_every": 4, "evaluate_limit": 100}
        run, config = play(tmp_path, **settings), config_of(**settings)
        judge, history = engine(config), replay(config)
        network = network_of(config)
        reported = run.report["evaluations"]
        assert [e["round"] for e in reported] == [0, 1, 2, 3, 4]
        for entry in reported[1:]:
            models, average = history[entry["round"] - 1]
            u = sum(
                b * model["float32"].astype(np.float64)
                for b, model in zip(network.b, models, strict=True)
            )
            assert close(u, average["float32"])
            loss, accuracy = judge.evaluate(average, "test", threads=None)
            train, _ = judge.evaluate(average, "train", limit=100, threads=None)
            assert (entry["test_loss"], entry["accuracy"]) == (loss, accuracy)
            assert entry["loss"] == train

    def test_hub_rows_tell_the_distance_between_hubs(self, tmp_path):
        run, history = play(tmp_path, slots=8), replay(config_of(slots=8))
        models, average = history[0]  # before the first mixing
        for d, model in enumerate(models):
            apart = np.linalg.norm(model["float32"].astype(np.float64) - average["float32"])
            assert float(run.hub_rows(d)[0]["distance"]) == pytest.approx(apart, rel=1e-6)
        assert apart > 1e-3


class TestPresets:
    """Rule 8: each preset is its known algorithm."""

    def test_distributed_sgd_is_sgd_on_all_workers_batches(self, tmp_path):
        settings = {"preset": "distributed-sgd", "slots": 12, "partition": "sized"}
        run, config = play(tmp_path, **settings), config_of(**settings)
        batches = Batches(config)
        examples = [len(shard) for shard in batches.shards]
        w = np.zeros(65)
        for round in range(1, 13):
            gradients = [batches.gradient(i, round, 0, w) for i in range(6)]
            w = w - config.learning_rate * np.average(gradients, axis=0, weights=examples)
        assert len(set(examples)) > 1
        assert close(run.vector(), w)
        assert {row["hub"] for row in run.rows} == {"0", "all"}

    def test_local_sgd_on_one_hub_is_that_on_a_complete_graph(self, tmp_path):
        settings = {"preset": "local-sgd", "slots": 100, "rates": "0.5"}
        complete = play(tmp_path / "complete", hubs=3, workers_per_hub="2", **settings)
        one = play(tmp_path / "one", hubs=1, workers_per_hub="6", **settings)
        assert close(one.vector(), complete.vector())
        assert [e["slot"] for e in one.evaluations] == [e["slot"] for e in complete.evaluations]
        assert complete.report["network"]["zeta"] == pytest.approx(0, abs=1e-9)

    def test_fedavg_weighs_by_examples(self, tmp_path):
        settings = {"preset": "fedavg", "partition": "sized", "weights": "equal", "tau": 3}
        run, config = play(tmp_path, slots=3, rates="1", **settings), config_of(**settings)
        batches = Batches(config)
        examples = [len(shard) for shard in batches.shards]
        local = []
        for i in range(6):
            w = np.zeros(65)
            for step in range(3):
                w = w - config.learning_rate * batches.gradient(i, 1, step, w)
            local.append(w)
        assert len(set(examples)) > 1
        assert [w["weight"] for w in run.report["workers"]] == examples
        assert close(run.vector(), np.average(local, axis=0, weights=examples))

    def test_cooperative_sgd_is_a_step_each_and_a_mix(self, tmp_path):
        settings = {"preset": "cooperative-sgd", "tau": 1, "slots": 10, "partition": "sized"}
        run, config = play(tmp_path, **settings), config_of(**settings)
        network, batches = network_of(config), Batches(config)
        h = mixing_matrix(network.graph, np.full(6, 1 / 6), "metropolis")
        x = np.zeros((6, 65))
        for k in range(1, 11):
            x -= config.learning_rate * np.array(
                [batches.gradient(i, k, 0, x[i]) for i in range(6)]
            )
            x = h.T @ x
        assert run.report["network"]["b"] == pytest.approx([1 / 6] * 6)
        assert run.report["network"]["zeta"] == pytest.approx(zeta(h))
        assert close(run.vector(), x.mean(axis=0))
        assert not close(x[0], x[5], 1e-3)

    def test_mll_sgd_changes_nothing(self):
        assert PRESETS["mll-sgd"] == {}


class TestData:
    @pytest.mark.parametrize("split", ["iid", "sized", "dirichlet(0.5)", "shards", "by-hub"])
    def test_workers_hold_what_the_partition_says(self, tmp_path, split):
        run = play(tmp_path, partition=split, slots=8, weights="examples")
        task, shards = task_and_shards(config_of(partition=split))
        sizes = [len(shard) for shard in shards]
        assert run.report["network"]["examples"] == sizes
        assert run.report["network"]["weights"] == sizes
        assert sum(sizes) == len(task.data.x_train)

    def test_ones_own_arrays(self, tmp_path):
        data = tmp_path / "mine.npz"
        rng = np.random.default_rng(1)
        x = rng.normal(size=(60, 7)).astype(np.float32)
        y = (x[:, 0] > 0).astype(np.int64)
        np.savez(data, x_train=x, y_train=y, x_test=x, y_test=y)
        settings = {"dataset": f"npz:{data}", "slots": 40, "rates": "1", "learning_rate": 1.0}
        run = play(tmp_path / "run", **settings)
        assert run.report["data"] == "mine.npz"
        assert run.report["parameters"] == 8
        assert run.report["summary"]["accuracy"] > 0.8
        assert close(run.vector(), reference_run(config_of(**settings)).average[-1], 1e-5)

    @pytest.mark.parametrize("pool", ["worker", "hub"])
    @pytest.mark.parametrize("rule", ["keep", "renormalise"])
    def test_a_worker_that_diverges_is_absent_and_named(self, tmp_path, caplog, pool, rule):
        data = tmp_path / "vast.npz"
        rng = np.random.default_rng(2)
        y = np.repeat(np.arange(6), 10)
        x = rng.normal(size=(60, 5)).astype(np.float32)
        good = x.copy()
        x[y == 4] = 3e38  # finite; what is learnt from it is not
        np.savez(data, x_train=x, y_train=y, x_test=good, y_test=y)
        settings = {
            "dataset": f"npz:{data}",
            "model": "mlp",
            "partition": "shards(1)",
            "rates": "0.6",
            "absent": rule,
            "pool": pool,
        }
        logging.getLogger("flwr").addHandler(caplog.handler)
        try:
            run = play(tmp_path / "run", **settings)
        finally:
            logging.getLogger("flwr").removeHandler(caplog.handler)
        config = config_of(**settings)
        _, shards = task_and_shards(config)
        [worker] = [i for i, shard in enumerate(shards) if (y[shard] == 4).all()]
        hub = int(config.network().hub_of[worker])
        absences = run.report["absences"]
        # All four rounds but those in which its coins gave it no step.
        assert {a["worker"] for a in absences} == {worker}
        gone = [a["round"] for a in absences]
        assert gone
        for a in absences:
            assert (a["hub"], a["cause"]) == (hub, "raised")
            assert "its model has a NaN or an infinity" in a["why"]
            assert f"Round {a['round']}, hub {hub}: worker {worker} " in caplog.text
        assert run.report["workers"][worker]["absent"] == len(gone)
        assert run.report["workers"][worker]["steps"] == 0
        assert run.report["summary"]["absent"] == len(gone)
        assert sum(int(row["absent"]) for row in run.rows if row["hub"] != "all") == len(gone)
        assert run.same_model(replay(config, lambda i, r: i == worker and r in gone)[-1][1])
        assert math.isfinite(run.report["summary"]["test_loss"])


class TestResults:
    def test_all_results_are_there(self, tmp_path):
        run = play(tmp_path / "new" / "folder", plots=True, model="mlp")
        names = {str(p.relative_to(run.folder)) for p in run.folder.rglob("*") if p.is_file()}
        assert {"config.json", "metrics.csv", "metrics.json", "model.safetensors"} <= names
        for plot in ("disagreement", "graph", "learning", "steps"):
            start = (run.folder / "plots" / f"{plot}.png").read_bytes()[:8]
            assert start == b"\x89PNG\r\n\x1a\n"
        assert not [name for name in names if name.endswith(".part")]
        assert tuple(run.rows[0]) == COLUMNS
        config = json.loads((run.folder / "config.json").read_text())
        assert config == run.report["config"] == run.config.to_run_config()
        assert config["workers-per-hub"] == "2,3,1"

    def test_the_model_loads_into_its_module(self, tmp_path):
        run = play(tmp_path, model="mlp", slots=8)
        task, _ = task_and_shards(run.config)
        module = task.new_model()
        module.load_state_dict({k: torch.from_numpy(v) for k, v in run.model.items()})
        loss, accuracy = task.evaluate(module)
        summary = run.report["summary"]
        assert loss == pytest.approx(summary["test_loss"], rel=1e-5)
        assert accuracy == pytest.approx(summary["accuracy"])

    def test_rows_and_report_agree(self, tmp_path):
        run = play(tmp_path, slots=32)
        report, hub_rows = run.report, [r for r in run.lasting if r["hub"] != "all"]
        assert len(hub_rows) == 3 * 8
        steps = sum(int(row["steps"]) for row in hub_rows)
        assert steps == report["summary"]["steps"] == sum(w["steps"] for w in report["workers"])
        assert int(run.evaluations[-1]["steps"]) == steps
        for row, entry in zip(run.evaluations, report["evaluations"], strict=True):
            for key in ("slot", "round", "loss", "test_loss", "accuracy", "bytes"):
                assert float(row[key]) == pytest.approx(entry[key], rel=1e-5)
        losses = [float(row["loss"]) for row in run.evaluations]
        assert losses[-1] < losses[0]
        assert report["summary"]["rounds"] == 8
        assert report["summary"]["slot"] == 32

    @pytest.mark.parametrize("pool", ["worker", "hub"])
    def test_bytes_are_what_the_algorithm_sends(self, tmp_path, pool):
        run = play(tmp_path, slots=24, pool=pool)
        model = 65 * 4
        # Six rounds: a model down and up for each of six workers. Three mixings: a model
        # each way over each of the path's two links.
        assert run.report["summary"]["bytes"] == model * (6 * 2 * 6 + 3 * 2 * 2)
        second = [int(row["bytes"]) for row in run.rows if row["round"] == "2"]
        assert set(second) == {model * (2 * 2 * 6 + 2 * 2)}

    def test_a_run_again_is_the_same(self, tmp_path):
        first, again = (play(tmp_path / name, model="cnn", slots=8) for name in "ab")
        assert first.same_model(again)
        assert first.lasting == again.lasting

    def test_progress_is_left_for_whoever_watches(self, tmp_path):
        seen = []

        def look() -> None:
            file = Path(tmp_path / "progress.json")
            seen.append(json.loads(file.read_text())["total"] if file.exists() else None)

        play(tmp_path, on_message=look)
        assert seen == [16] * 4
        last = json.loads((tmp_path / "progress.json").read_text())
        assert (last["slot"], last["total"], last["done"]) == (16, 16, True)


def test_the_output_has_a_name_of_its_own_if_none_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run: Results = play("", slots=4)
    assert run.folder.parent == tmp_path / "runs"
    assert run.rows
