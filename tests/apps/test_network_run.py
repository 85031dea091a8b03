"""A simulated run of the whole network, in process, on the real apps: time and numbers."""

from __future__ import annotations

import numpy as np
import pytest

from mll_flower.algorithm.coins import slots_until
from mll_flower.grids.in_process import InProcessGrid
from tests.support.simulated import (
    close,
    config_of,
    engine,
    network_of,
    play,
    reference_run,
    replay,
)


class GatheringGrid(InProcessGrid):
    """Nodes that connect one by one, those that host workers last."""

    connected = 0

    def get_node_ids(self) -> list[int]:
        self.connected += 1
        return list(super().get_node_ids())[-self.connected :]


class TestTime:
    """When rounds end, in slots."""

    def test_a_round_of_slow_workers_costs_tau_slots(self, tmp_path):
        run = play(tmp_path, rates="0.1", slots=40)
        for d in range(3):
            rows = run.hub_rows(d)
            assert [int(row["slot"]) for row in rows] == [4 * r for r in range(1, 11)]
        taken = sum(int(row["steps"]) for row in run.timeless if row["hub"] != "all")
        # Binomial(240, 0.1): a step in about every tenth slot.
        assert taken == run.report["summary"]["steps"]
        assert 5 < taken < 60

    @pytest.mark.parametrize("pool", ["worker", "hub"])
    @pytest.mark.parametrize(
        "preset", [{"preset": "local-sgd"}, {"preset": "hl-sgd", "graph": "star"}]
    )
    def test_waiting_for_all_costs_the_slots_that_the_slowest_needs(self, tmp_path, preset, pool):
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
                rows = [r for r in run.timeless if r["hub"] != "all" and int(r["round"]) == number]
                assert [int(row["slot"]) for row in rows] == ends
        # Every worker has taken all its steps, however slow it is.
        assert {w["steps"] for w in run.report["workers"]} == {4 * len(expected)}
        assert expected[-1][1] > [4 * len(expected)] * 3

    def test_slots_after_the_last_mixing_are_used(self, tmp_path):
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
            {"preset": "fedavg-deadline", "partition": "sized"},
            {"preset": "fedavg", "partition": "sized", "rates": "0.5", "slots": 60},
        ],
        ids=str,
    )
    def test_a_run_equals_algorithm_1(self, tmp_path, settings):
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
    def test_pools_and_single_workers_agree_to_the_bit(self, tmp_path, settings):
        expected = replay(config_of(**settings))
        one = play(tmp_path / "worker", pool="worker", **settings)
        pooled = play(tmp_path / "hub", pool="hub", **settings)
        assert one.same_model(expected[-1][1])
        assert pooled.same_model(expected[-1][1])
        assert one.evaluations == pooled.evaluations
        for row in pooled.rows:  # one row per message, equal to that of the message's last round
            if row["hub"] != "all":
                [same] = [r for r in one.hub_rows(int(row["hub"])) if r["round"] == row["round"]]
                assert [row[k] for k in ("slot", "distance", "bytes", "absent")] == [
                    same[k] for k in ("slot", "distance", "bytes", "absent")
                ]
        for a, b in zip(one.report["workers"], pooled.report["workers"], strict=True):
            assert a == b

    def test_batch_norm_is_the_same_to_the_bit_in_pools(self, tmp_path):
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
        run = play(tmp_path / "more", grid=GatheringGrid, extra_nodes=4, pool="hub")
        assert run.same_model(play(tmp_path / "exact", pool="hub"))

    def test_too_few_nodes_are_an_error_with_the_remedy(self, tmp_path):
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
        evaluator, history = engine(config), replay(config)
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
            loss, accuracy = evaluator.evaluate(average, "test", threads=None)
            train, _ = evaluator.evaluate(average, "train", limit=100, threads=None)
            assert (entry["test_loss"], entry["accuracy"]) == (loss, accuracy)
            assert entry["loss"] == train

    def test_hub_rows_have_the_distance_to_the_averaged_model(self, tmp_path):
        run, history = play(tmp_path, slots=8), replay(config_of(slots=8))
        models, average = history[0]  # before the first mixing
        for d, model in enumerate(models):
            apart = np.linalg.norm(model["float32"].astype(np.float64) - average["float32"])
            assert float(run.hub_rows(d)[0]["distance"]) == pytest.approx(apart, rel=1e-6)
        assert apart > 1e-3
