"""A run decides once what computes its gradients, records it, and tells all its processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mll_flower.apps import simulated_worker
from mll_flower.config import RunConfig
from mll_flower.native.machine_code import why_unavailable
from mll_flower.training.engine import Engine
from tests.apps.test_resume import interrupted
from tests.support.simulated import play

needs_compiler = pytest.mark.skipif(
    why_unavailable() is not None, reason=f"nothing can be compiled here: {why_unavailable()}"
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The engines with which workers were trained."""
    seen: list[str] = []
    inner = simulated_worker.run_engine

    def run_engine(config: RunConfig) -> Engine:
        seen.append(config.engine)
        return inner(config)

    monkeypatch.setattr(simulated_worker, "run_engine", run_engine)
    return seen


@needs_compiler
@pytest.mark.parametrize("pool", ["hub", "worker"])
def test_auto_is_resolved_by_the_server_side(tmp_path: Path, asked: list[str], pool: str) -> None:
    results = play(tmp_path / "run", model="cnn", pool=pool, slots=8)
    assert results.report["config"]["engine"] == "compiled"
    # A node that says whom it hosts trains nobody yet.
    assert set(asked) == {"auto", "compiled"}
    assert asked[-1] == "compiled"


def test_logistic_regression_has_one_engine(tmp_path: Path) -> None:
    assert play(tmp_path / "run", slots=8).report["config"]["engine"] == "autograd"


@needs_compiler
def test_the_engines_differ_in_the_last_bits_alone(tmp_path: Path) -> None:
    one, other = (
        play(tmp_path / name, model="cnn", pool="hub", slots=8, engine=name)
        for name in ("compiled", "autograd")
    )
    assert not one.same_model(other)
    losses = [run.report["summary"]["loss"] for run in (one, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_an_engine_that_is_not_possible_is_an_error_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="engine='compiled' is not possible for model='logistic'"):
        play(tmp_path / "run", engine="compiled")
    assert not (tmp_path / "run").exists()


@needs_compiler
def test_a_run_is_not_resumed_with_another_engine(tmp_path: Path) -> None:
    settings = {"model": "mlp", "checkpoint_every": 1, "slots": 32}
    part = interrupted(tmp_path / "part", 5, engine="autograd", **settings)
    with pytest.raises(ValueError, match="made with engine='autograd', this run has 'compiled'"):
        play(tmp_path / "rest", resume=str(part), **settings)
