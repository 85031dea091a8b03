"""Runs with everything of a user's own: same bits however they are hosted."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mll_flower.results.html_report import write_report
from mll_flower.results.runs import load_run
from mll_flower.tasks import own_code
from mll_flower.training.run_engine import forget_engines, run_engine
from tests.support.own_work import FILE, write_user_files
from tests.support.simulated import Results, config_of, play

OWN: dict[str, Any] = {
    "model": "mine.py:Awkward",
    "dataset": "mine.py:classes",
    "augment": "mine.py:noisy",
    "loss": "mine.py:smooth",
    "metric": "mine.py:share_right",
    "partition": "mine.py:unequal",
    "optimiser": "adamw",
    "learning-rate": 0.02,
}


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    yield
    forget_engines()
    own_code._executed.clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_user_files(tmp_path / "user")


def run(folder: Path, name: str, **settings: Any) -> Results:
    return play(folder.parent / name, **{**OWN, "code-dir": str(folder), **settings})


def test_an_awkward_model_gives_the_same_bits_in_both_pools(folder: Path) -> None:
    by_worker = run(folder, "worker", pool="worker")
    by_hub = run(folder, "hub", pool="hub")
    assert by_hub.same_model(by_worker)
    assert by_hub.report["absences"] == by_worker.report["absences"] == []
    assert by_hub.report["evaluations"][-1]["loss"] == by_worker.report["evaluations"][-1]["loss"]
    model = by_hub.model
    assert model["norm.num_batches_tracked"].dtype == np.int64
    assert model["norm.num_batches_tracked"] > 0
    np.testing.assert_array_equal(model["second.weight"], model["third.weight"])  # tied
    start = run_engine(by_hub.config).layout.arrays(run_engine(by_hub.config).initial())
    np.testing.assert_allclose(model["scale"], start["scale"], rtol=1e-6)  # it is not trained
    assert not np.array_equal(model["out.weight"], start["out.weight"])


def test_the_users_rows_are_those_of_the_workers(folder: Path) -> None:
    engine = run_engine(config_of(**OWN, **{"code-dir": str(folder)}))
    assert [engine.examples(i) for i in range(6)] == [11, 23, 34, 46, 57, 69]
    (folder / "rows.json").write_text(json.dumps([[i] for i in range(6)]))
    values = {**OWN, "partition": "rows.json", "code-dir": str(folder)}
    assert [run_engine(config_of(**values)).examples(i) for i in range(6)] == [1] * 6


def test_results_have_the_metrics_own_name(folder: Path) -> None:
    results = run(folder, "own")
    assert results.report["metric"] == "share_right"
    assert "share_right" in results.report["summary"]
    assert "share_right" in results.rows[0]
    assert "accuracy" not in results.rows[0]


def test_numbers_are_learnt(folder: Path) -> None:
    settings = {"dataset": "mine.py:numbers", "model": "mine.py:plain", "loss": "auto"}
    settings |= {"metric": "auto", "slots": 200, "partition": "iid", "optimiser": "sgd"}
    results = run(folder, "numbers", **settings)
    first, last = results.report["evaluations"][0], results.report["evaluations"][-1]
    assert first["mse"] > 50  # the targets are about 10
    assert last["mse"] < 5
    assert last["mse"] == pytest.approx(last["test_loss"], rel=1e-5)
    read = load_run(results.folder)
    assert read.metric == "mse"
    assert read.best("accuracy") == min(e["mse"] for e in results.report["evaluations"])
    assert read.reached(last["mse"]) is not None
    assert read.reached(0.0) is None
    page = write_report(read).read_text()
    assert "final mse" in page
    assert "Mse of the averaged model" in page
    assert "final accuracy" not in page
    (results.folder / "metrics.json").unlink()  # as it is while a run goes on
    partial = load_run(results.folder)
    assert partial.metric == "mse"
    assert partial.final("accuracy") == pytest.approx(last["mse"], rel=1e-5)


UNUSUAL = """
class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(5, 8), nn.Linear(8, 5)

    def forward(self, x):
        return {"scores": self.out(self.table(x)).permute(0, 2, 1)}


def sequences():
    x = np.random.default_rng(0).integers(5, size=(80, 7))
    return x[:60], (x[:60] + 1) % 5, x[60:], (x[60:] + 1) % 5


def token_loss(output, target):
    return nn.functional.cross_entropy(output["scores"], target)


def tokens_right(output, target):
    return (output["scores"].argmax(1) == target).float().mean()
"""


def test_whole_numbers_a_target_per_token_and_an_output_that_is_a_dict(folder: Path) -> None:
    (folder / "mine.py").write_text(FILE + UNUSUAL)
    names = {"model": "Tokens", "dataset": "sequences", "loss": "token_loss"}
    names["metric"] = "tokens_right"
    own = {key: f"mine.py:{name}" for key, name in names.items()}
    own |= {"augment": "none", "partition": "iid"}
    results = run(folder, "tokens", **own, learning_rate=0.1, slots=80)
    assert results.report["summary"]["tokens_right"] > 0.9


def test_a_file_that_has_changed_is_read_again(folder: Path) -> None:
    before = run(folder, "before")
    (folder / "mine.py").write_text(FILE.replace("nn.Dropout(0.3)", "nn.Dropout(0.0)"))
    os.utime(folder / "mine.py", ns=(1, 1))
    assert not run(folder, "after").same_model(before)


def test_a_mistake_ends_the_run_before_it_starts(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"model='mine.py:none': mine.py has no 'none'"):
        run(folder, "none", model="mine.py:none")
    assert not (folder.parent / "none").exists()


def test_a_resumed_run_may_have_its_code_elsewhere(folder: Path) -> None:
    whole = run(folder, "whole", checkpoint_every=1)
    other = write_user_files(folder.parent / "other")
    resumed = run(other, "resumed", checkpoint_every=1, resume=str(whole.folder))
    assert resumed.same_model(whole)
