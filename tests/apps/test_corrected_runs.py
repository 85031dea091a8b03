"""Simulated runs with corrections: they equal the readable algorithm, in both pools."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from mll_flower.models.checkpoint import load_checkpoint
from tests.apps.test_resume import assert_same_end, interrupted
from tests.support.corrected import ALL_ON, corrected_run
from tests.support.faulty_workers import Fault, faulty
from tests.support.simulated import close, config_of, play, reference_run

CASES = [
    {"rate_correction": "inverse"},
    {"rate_correction": "inverse", "rate_cap": 1.5},
    {"hub_correction": "exact-diffusion"},
    {"hub_correction": "exact-diffusion", "rate_correction": "inverse", "weights": "equal"},
    {"worker_correction": "mtgc"},
    {"worker_correction": "mtgc", "hub_correction": "exact-diffusion"},
    {"outer": "slowmo"},
    {"outer": "slowmo", "hubs": 1, "workers_per_hub": "3"},
    {"hub_correction": "exact-diffusion", "graph": "star", "hubs": 6, "workers_per_hub": "1"},
    {"worker_correction": "mtgc", "preset": "fedavg", "slots": 120},
    ALL_ON,
]


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_a_run_equals_the_readable_algorithm(tmp_path, settings) -> None:
    settings = {"slots": 32, "rates": "hub:0.3,0.6,0.9", "partition": "by-hub", **settings}
    if settings.get("hubs", 3) != 3:
        settings["rates"] = "0.5"
    if "preset" in settings:
        del settings["rates"]
    config = config_of(**settings)
    history = corrected_run(config)
    # Half precision rounds models that differ in the last bits of single precision: the two may
    # round to neighbouring numbers.
    tolerance = 2e-3 if "gossip_precision" in settings else 2e-6
    runs = [play(tmp_path / pool, pool=pool, **settings) for pool in ("worker", "hub")]
    assert runs[0].same_model(runs[1])
    assert close(runs[0].vector(), history.average[-1], tolerance)
    plain = reference_run(config).average[-1]
    assert not close(plain, history.average[-1], 10 * tolerance)


@pytest.mark.parametrize("fault", [Fault.RAISES, Fault.NAN, Fault.LATE])
def test_an_absent_worker_counts_as_one_without_a_step(tmp_path, fault) -> None:
    def when(i: int, r: int) -> bool:
        return i == 3 and r in (2, 3)

    corrections = {key: ALL_ON[key] for key in ("hub_correction", "worker_correction", "outer")}
    for more in ({}, {"worker_correction": "none"}):
        settings = {"slots": 32, "partition": "by-hub", **corrections, **more}
        run = play(tmp_path / str(len(more)), **settings, **faulty(fault, when))
        assert len(run.report["absences"]) == 2
        history = corrected_run(config_of(**settings), when)
        assert close(run.vector(), history.average[-1], 2e-6)


@pytest.mark.parametrize("settings", [{"outer": "slowmo", "outer_momentum": 0.0}, {}], ids=str)
def test_half_precision_leaves_u_almost_alone(tmp_path, settings) -> None:
    full = play(tmp_path / "full", slots=32, **settings)
    half = play(tmp_path / "half", slots=32, gossip_precision="half", **settings)
    difference = np.abs(full.vector() - half.vector()).max()
    assert 0 < difference < 1e-3


@pytest.mark.parametrize("pool", ["worker", "hub"])
@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_a_resumed_run_ends_as_the_whole_one(tmp_path, pool, model) -> None:
    settings = {"checkpoint_every": 1, "slots": 32, "pool": pool, "model": model, **ALL_ON}
    settings["lr_milestones"] = "0.3,0.8"
    whole = play(tmp_path / "whole", **settings)
    part = interrupted(tmp_path / "part", 3 if pool == "hub" else 6, **settings)
    checkpoint = load_checkpoint(part)
    assert 0 < checkpoint.round < whole.report["summary"]["rounds"]
    kinds = {name.partition("/")[0] for name in checkpoint.state}
    assert kinds == {"weights", "drift", "gradient", "momentum", "mixed"}
    assert_same_end(play(tmp_path / "rest", resume=str(part), **settings), whole)


def test_momentum_goes_with_corrections(tmp_path) -> None:
    settings = {"model": "mlp", "momentum": 0.9, "learning_rate": 0.02, "slots": 32, **ALL_ON}
    runs = [play(tmp_path / pool, pool=pool, **settings) for pool in ("worker", "hub")]
    assert runs[0].same_model(runs[1])


def test_workers_with_few_steps_to_learn_from_are_said(tmp_path, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        play(tmp_path / "many", rates="1", worker_correction="mtgc")
        play(tmp_path / "without", rates="0.1")
        assert "worker-correction" not in caplog.text
        play(tmp_path / "few", rates="0.1,0.1,1,1,1,1", worker_correction="mtgc")
    assert "worker-correction: 2 workers take less than 2 steps per round" in caplog.text


def test_a_cap_that_bites_is_said(tmp_path, caplog) -> None:
    settings = {"rates": "0.1,1,1,1,1,1", "rate_correction": "inverse"}
    with caplog.at_level(logging.WARNING):
        play(tmp_path / "free", **settings)
        assert "rate-cap" not in caplog.text
        play(tmp_path / "capped", **settings, rate_cap=2.0)
    assert "1 workers would need steps longer than rate-cap=2 times" in caplog.text


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rate_correction": "inverse", "wait_for_all": True}, "rate-correction='inverse' with"),
        ({"hub_correction": "on"}, "hub-correction='on' is not known"),
        ({"rate_cap": 0.2}, "rate-cap=0.2"),
        ({"mean_rate": 1.2}, "mean-rate=1.2"),
    ],
)
def test_impossible_settings_are_refused_before_the_start(tmp_path, settings, named) -> None:
    with pytest.raises(ValueError, match=named):
        play(tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()
