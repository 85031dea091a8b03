"""What a simulated run reads and writes: its data, its absences, its files."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from mll_flower.results.files import COLUMNS
from tests.support.simulated import (
    Results,
    close,
    config_of,
    play,
    reference_run,
    replay,
    task_and_shards,
)


class TestData:
    @pytest.mark.parametrize("split", ["iid", "sized", "dirichlet(0.5)", "shards", "by-hub"])
    def test_workers_hold_their_part_of_the_partition(self, tmp_path, split):
        run = play(tmp_path, partition=split, slots=8, weights="examples")
        task, shards = task_and_shards(config_of(partition=split))
        sizes = [len(shard) for shard in shards]
        assert run.report["network"]["examples"] == sizes
        assert run.report["network"]["weights"] == sizes
        assert sum(sizes) == len(task.data.x_train)

    def test_arrays_from_a_file_of_the_user(self, tmp_path):
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
        x[y == 4] = 3e38  # finite, but a model trained on it is not
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
        # In all four rounds, except those in which it takes no step.
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
    def test_all_files_are_written(self, tmp_path):
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
        report, hub_rows = run.report, [r for r in run.timeless if r["hub"] != "all"]
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
        # In each of six rounds, one model to and from each of six workers. In each of three
        # mixings, one model in each direction of the path's two links.
        assert run.report["summary"]["bytes"] == model * (6 * 2 * 6 + 3 * 2 * 2)
        second = [int(row["bytes"]) for row in run.rows if row["round"] == "2"]
        assert set(second) == {model * (2 * 2 * 6 + 2 * 2)}

    def test_a_repeated_run_is_the_same(self, tmp_path):
        first, again = (play(tmp_path / name, model="cnn", slots=8) for name in "ab")
        assert first.same_model(again)
        assert first.timeless == again.timeless

    def test_progress_is_written_during_the_run(self, tmp_path):
        seen = []

        def after_message() -> None:
            file = Path(tmp_path / "progress.json")
            seen.append(json.loads(file.read_text())["total"] if file.exists() else None)

        play(tmp_path, on_message=after_message)
        assert seen == [16] * 4
        last = json.loads((tmp_path / "progress.json").read_text())
        assert (last["slot"], last["total"], last["done"]) == (16, 16, True)


def test_the_default_output_is_a_new_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run: Results = play("", slots=4)
    assert run.folder.parent == tmp_path / "runs"
    assert run.rows
