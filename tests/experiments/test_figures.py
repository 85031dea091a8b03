"""The figures' set-ups are those of the paper, and every figure is a set of valid runs."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from experiments import document
from experiments.figures import FIGURES, SCALES, figures, models_of
from experiments.published import find, iteration, reference
from mll_flower.config import RunConfig


def one(name: str, model: str, scale: str = "paper") -> dict[str, RunConfig]:
    """Return the configs of a figure's set-ups, with seed 0."""
    (figure,) = figures(name, model, scale)
    return {setup.name: setup.config(0) for setup in figure.setups}


@pytest.mark.parametrize("scale", SCALES)
def test_every_figure_is_a_set_of_valid_runs(scale: str) -> None:
    for figure in figures("all", scale=scale):
        names = {setup.name for setup in figure.setups}
        for setup in figure.setups:
            config = setup.config(figure.seeds - 1)
            assert config.seed == figure.seeds - 1
            if setup.published:
                assert find(figure.model, setup.published) or figure.name == "rates"
        for panel in figure.panels:
            assert set(panel.setups) <= names
        for claim in figure.claims:
            assert {*claim.left, *claim.right, *filter(None, [claim.target])} <= names


@pytest.mark.parametrize(
    ("model", "dataset", "rate"),
    [("logistic", "mnist", 0.2), ("cnn", "emnist", 0.01), ("resnet18", "cifar10", 0.1)],
)
def test_tasks_are_the_papers(model: str, dataset: str, rate: float) -> None:
    for name in ("tau-q", "hubs", "rates", "time"):
        assert model in models_of(name)
        for config in one(name, model).values():
            assert (config.model, config.dataset) == (model, dataset)
            assert config.learning_rate == rate
            assert config.slots == (32000 if model == "logistic" else 6400)
            assert config.evaluate_every == 32
    steps = [config.learning_rate_at(int(f * config.slots)) for f in (0, 0.6, 0.9)]
    expected = [0.1, 0.01, 0.001] if model == "resnet18" else [rate] * 3
    assert steps == pytest.approx(expected)


def test_tau_and_q() -> None:
    setups = one("tau-q", "cnn")
    periods = {name: (c.tau, c.q) for name, c in setups.items()}
    assert periods == {
        "distributed": (1, 1),
        "local": (32, 1),
        "tau8-q4": (8, 4),
        "tau4-q8": (4, 8),
    }
    for name, config in setups.items():
        network = config.network()
        assert (network.workers, config.partition, config.weights) == (100, "sized", "examples")
        assert network.hubs == (1 if name == "distributed" else 10)
        assert nx.density(network.graph) == 1 or network.hubs == 1
        assert (network.p == 1).all()


def test_hubs_on_a_path() -> None:
    setups = one("hubs", "resnet18")
    assert {name: c.hubs for name, c in setups.items()} == {
        "local": 1,
        "hubs5": 5,
        "hubs10": 10,
        "hubs20": 20,
    }
    for name, config in setups.items():
        network = config.network()
        assert network.workers == 100
        if name != "local":
            assert nx.is_isomorphic(network.graph, nx.path_graph(config.hubs))
            assert (config.tau, config.q, config.weights) == (8, 4, "equal")
    assert (setups["local"].tau, setups["local"].q) == (32, 1)


def test_rates_have_the_papers_distributions() -> None:
    rates = {name: config.network().p for name, config in one("rates", "cnn").items()}
    for name in ("fixed", "uniform", "skewed-fast", "skewed-slow"):
        assert rates[name].mean() == pytest.approx(0.55)
    assert (rates["one"] == 1).all()
    assert np.unique(rates["fixed"]).tolist() == [0.55]
    assert rates["uniform"][:10] == pytest.approx(np.arange(1, 11) / 10)
    for name, few, many in (("skewed-fast", 1.0, 0.5), ("skewed-slow", 0.1, 0.6)):
        assert np.sum(rates[name] == few) == 10
        assert np.sum(rates[name] == many) == 90


def test_time_slots_against_algorithms_that_wait() -> None:
    setups = one("time", "logistic")
    periods = {name: (c.tau, c.q, c.wait_for_all) for name, c in setups.items()}
    assert periods == {
        "local": (32, 1, True),
        "hl": (8, 4, True),
        "mll-q1": (32, 1, False),
        "mll-q4": (8, 4, False),
    }
    for config in setups.values():
        network = config.network()
        assert (network.hubs, network.workers) == (10, 100)
        assert np.sum(network.p == 0.9) == 90
        assert np.sum(network.p == 0.6) == 10


def test_small_keeps_the_shape_of_the_network() -> None:
    for model in ("logistic", "cnn"):
        for name in ("tau-q", "hubs", "rates", "time"):
            small, paper = one(name, model, "small"), one(name, model, "paper")
            for key, config in small.items():
                assert config.network().workers == paper[key].network().workers == 100
                assert (config.tau, config.q, config.graph, config.rates) == (
                    paper[key].tau,
                    paper[key].q,
                    paper[key].graph,
                    paper[key].rates,
                )


def test_errors_about_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ValueError, match="tau-q"):
        figures("figure-7")
    with pytest.raises(ValueError, match="has no model 'resnet18'"):
        figures("zeta", "resnet18")
    with pytest.raises(ValueError, match="small, paper"):
        figures("hubs", scale="large")
    with pytest.raises(ValueError, match="at least 1"):
        figures("hubs", seeds=0)
    with pytest.raises(ValueError, match="resnet18 has no small scale"):
        figures("hubs", "resnet18", "small")


def test_resnet18_must_be_asked_for() -> None:
    models = {(f.name, f.model) for f in figures("all", scale="paper")}
    assert ("resnet-cifar", "resnet18") in models
    assert not {(name, "resnet18") for name in ("tau-q", "hubs", "rates", "time")} & models
    assert [f.model for f in figures("hubs", scale="small")] == ["logistic", "cnn"]
    assert figures("tau-q", "resnet18", "paper")[0].seeds == 2


def test_published_numbers_are_complete() -> None:
    results = reference()["results"]
    assert {model: len(of_model) for model, of_model in results.items()} == {
        "logistic": 25,
        "cnn": 13,
        "resnet18": 13,
    }
    assert "rpi-nsl/MLL-SGD" in reference()["source"]
    name, numbers = find("logistic", ["no such", "1x100 tau=32 q=1 complete, all 1, equal"]) or (
        "",
        {},
    )
    assert numbers["loss"][-1] == 0.32401
    assert [iteration(name, k) for k in (1, 2, 1000)] == [32, 64, 32000]
    assert iteration("10x10 tau=8 q=4 path, all 1, equal", 2) == 40


def test_every_figure_has_its_file() -> None:
    folder = Path(document.__file__).parent / "figures"
    assert {path.stem for path in folder.glob("*.toml")} == set(FIGURES)


def test_logistic_regression_is_compared_by_means_at_the_papers_scale() -> None:
    for scale, value in (("paper", "mean"), ("small", "last")):
        (figure,) = figures("tau-q", "logistic", scale)
        assert {claim.value for claim in figure.claims} == {figure.value} == {value}
