"""The paper's experiments: set-ups, verdicts, the cache, the ablation, the document."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from typer.testing import CliRunner

from experiments import document
from experiments.cache import is_there, run_folder, run_key
from experiments.figures import FIGURES, MODELS, SCALES, Claim, Figure, figures, models_of
from experiments.inplace import departure, departures, stationary, sweep
from experiments.published import find, iteration, reference
from experiments.reproduce import Outcome, plan, reproduce
from experiments.runner import Job, play_all
from experiments.verdicts import FAILS, HOLDS, OPEN, judge
from mll_flower.algorithm.mixing import mixing_matrix
from mll_flower.cli import app
from mll_flower.config import RunConfig

TINY = {"dataset": "digits", "slots": 64, "evaluate-every": 32, "evaluate-limit": 200}


def one(name: str, model: str, scale: str = "paper") -> dict[str, RunConfig]:
    """Configs of a figure's set-ups, with seed 0."""
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
    told = {name: (c.tau, c.q, c.wait_for_all) for name, c in setups.items()}
    assert told == {
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


def test_unknown_names_say_what_is_known() -> None:
    with pytest.raises(ValueError, match="tau-q"):
        figures("figure-7")
    with pytest.raises(ValueError, match="has no model 'resnet18'"):
        figures("zeta", "resnet18")
    with pytest.raises(ValueError, match="small, paper"):
        figures("hubs", scale="large")
    with pytest.raises(ValueError, match="at least 1"):
        figures("hubs", seeds=0)


LABELS = {name: name for name in "abcd"}


def verdict(kind: str, values: dict[str, list[float]], **more: Any) -> str:
    claim = Claim("", kind, **{"left": ("a",), "right": ("b",), **more})
    return judge(claim, values, LABELS).verdict


def test_lower_and_higher() -> None:
    clear = {"a": [1.0, 1.1, 0.9], "b": [2.0, 2.05, 1.95]}
    assert verdict("lower", clear) == HOLDS
    assert verdict("higher", clear) == FAILS
    # The seeds disagree on the sign.
    assert verdict("lower", {"a": [1.0, 2.0, 1.5], "b": [2.0, 1.0, 1.6]}) == OPEN
    # Paired: the seeds differ by far more than the set-ups, but always in the same way.
    assert verdict("lower", {"a": [1.0, 5.0, 9.0], "b": [1.1, 5.1, 9.11]}) == HOLDS
    # Just below and above the 97.5 % quantile of Student's t with one degree of freedom,
    # 12.706: margins 1 and x have mean (1 + x) / 2 and standard error |1 - x| / 2.
    bound = (12.706 - 1) / (12.706 + 1)
    assert verdict("lower", {"a": [0.0, 0.0], "b": [1.0, bound - 0.001]}) == OPEN
    assert verdict("lower", {"a": [0.0, 0.0], "b": [1.0, bound + 0.001]}) == HOLDS


def test_one_seed_and_nonsense_resolve_nothing() -> None:
    assert verdict("lower", {"a": [1.0], "b": [2.0]}) == OPEN
    assert verdict("lower", {"a": [1.0, math.nan], "b": [2.0, 2.0]}) == OPEN


def test_nearer_and_similar() -> None:
    values = {"a": [1.1, 1.2, 1.1], "b": [2.0, 2.0, 2.0], "c": [1.0, 1.1, 1.0]}
    assert verdict("nearer", values, target="c") == HOLDS
    assert verdict("nearer", {**values, "c": [2.1, 2.1, 2.1]}, target="c") == FAILS
    group: dict[str, list[float]] = {
        "a": [1, 1, 1],
        "b": [3, 3.1, 3],
        "c": [1.1, 1.05, 1.1],
        "d": [0.9, 1, 0.9],
    }
    assert verdict("similar", group, left=("a", "c", "d")) == HOLDS
    assert verdict("similar", {**group, "d": [9, 9, 9]}, left=("a", "c", "d")) == FAILS


def test_above_counts_test_images() -> None:
    claim = Claim("", "above", ("a",), metric="accuracy", threshold=0.6)
    told = {a: judge(claim, {"a": [a]}, LABELS, 10_000).verdict for a in (0.65, 0.605, 0.55)}
    assert told == {0.65: HOLDS, 0.605: OPEN, 0.55: FAILS}


def test_in_place_averaging_of_three_hubs_by_hand() -> None:
    path = nx.path_graph(3)
    p = sweep(path, np.full(3, 1 / 3))
    by_hand = [[1 / 2, 1 / 2, 0], [1 / 6, 1 / 2, 1 / 3], [1 / 12, 1 / 4, 2 / 3]]
    assert p == pytest.approx(np.array(by_hand))
    case = departure("", path, np.full(3, 1 / 3))
    assert case.pi == pytest.approx([0.2, 0.4, 0.4])
    assert case.after == pytest.approx([1 / 4, 5 / 12, 1 / 3])
    assert case.misplaced == pytest.approx(2 / 15)
    assert case.moved == pytest.approx(1 / 12)
    # All at once the same means have weights in proportion to the neighbourhoods' sizes.
    assert case.at_once == pytest.approx([2 / 7, 3 / 7, 2 / 7])


def test_in_place_sweeps_end_where_pi_says_and_h_does_not_move() -> None:
    for case in departures():
        hubs = len(case.b)
        graph = nx.path_graph(hubs) if "path" in case.name else nx.complete_graph(hubs)
        models = np.random.default_rng(0).normal(size=hubs)
        swept = np.linalg.matrix_power(sweep(graph, case.b), 4000) @ models
        assert swept == pytest.approx(np.full(hubs, case.pi @ models))
        h = mixing_matrix(graph, case.b, "metropolis")
        assert stationary(h.T) == pytest.approx(case.b)
        assert case.misplaced > 0.02


def test_published_numbers_are_at_hand() -> None:
    results = reference()["results"]
    assert {model: len(results[model]) for model in MODELS} == {
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


def test_key_of_a_run() -> None:
    config = RunConfig()
    assert run_key(config) == run_key(replace(config, output="/x", data_dir="/y", pool="worker"))
    for change in ({"seed": 1}, {"tau": 4}, {"learning_rate": 0.1}, {"graph": "path"}):
        assert run_key(config) != run_key(replace(config, **change))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Figure], Outcome]:
    """A real figure, on digits."""
    out = tmp_path_factory.mktemp("reproduce")
    chosen = figures("tau-q", "logistic", seeds=2, overrides=TINY)
    jobs = plan(chosen, out, "", measured=False)
    assert len(jobs) == 8
    broken = Job(replace(jobs[0].config, dataset="npz:/nowhere.npz"), out / "runs" / "broken")
    failures = play_all([broken, *jobs[:3]], 1, "", out)
    assert list(failures) == [broken.folder]
    assert "nowhere.npz" in failures[broken.folder]
    assert all(is_there(job.folder) for job in jobs[:3])
    rest = plan(chosen, out, "", measured=False)
    assert {job.folder for job in rest} == {job.folder for job in jobs[3:]}
    return out, chosen, reproduce(chosen, rest, out, "", 1, "mll-flower reproduce tau-q")


def test_a_figure_from_runs_to_verdicts(tiny: tuple[Path, list[Figure], Outcome]) -> None:
    out, (figure,), outcome = tiny
    assert (outcome.played, outcome.failures) == (5, {})
    rows = (out / f"{figure.key}.csv").read_text().splitlines()
    assert rows[0].split(",")[:5] == ["setup", "seed", "slot", "steps", "loss"]
    # Four set-ups, two seeds, slots 0, 32 and 64.
    assert len(rows) == 1 + 4 * 2 * 3
    assert (out / f"{figure.key}.png").read_bytes()[:4] == b"\x89PNG"
    (summary,) = outcome.summaries
    assert (summary["slot"], summary["data"]) == (64, "digits (8x8)")
    run = json.loads((run_folder(out, figure.setups[1].config(1)) / "metrics.json").read_text())
    last = [r.split(",") for r in rows if r.startswith("local,1,64,")]
    assert float(last[0][4]) == pytest.approx(run["summary"]["loss"], rel=1e-5)
    assert {v["verdict"] for v in summary["verdicts"]} <= {HOLDS, FAILS, OPEN}
    loss = {s["name"]: s["loss"][0] for s in summary["setups"]}
    first = summary["verdicts"][0]
    assert (first["left_mean"], first["right_mean"]) == (loss["tau8-q4"], loss["local"])
    assert first["margin"] == pytest.approx(loss["local"] - loss["tau8-q4"])


def test_what_is_there_is_not_run_again(tiny: tuple[Path, list[Figure], Outcome]) -> None:
    out, chosen, _ = tiny
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/metrics.json")}
    assert len(before) == 8
    options = [f"--set={key}={value}" for key, value in TINY.items()]
    result = CliRunner().invoke(
        app,
        ["reproduce", "tau-q", "--model=logistic", "--seeds=2", f"--out={out}", *options],
    )
    assert result.exit_code == 0, result.output
    assert "8 runs, 0 to play" in " ".join(result.output.split())
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/metrics.json")} == before
    assert plan(chosen, out, "") == []


def test_a_dry_run_says_what_each_figure_takes(tiny: tuple[Path, list[Figure], Outcome]) -> None:
    out, _, _ = tiny
    options = [f"--set={key}={value}" for key, value in TINY.items()]
    # Of tau-q all runs are there; two more seeds of it are not.
    words = ["reproduce", "tau-q", "--model=logistic", "--seeds=4", "--jobs=1", f"--out={out}"]
    result = CliRunner().invoke(app, [*words, "--dry-run", *options])
    assert result.exit_code == 0, result.output
    assert "16 runs, 8 to play: about" in " ".join(result.output.split())
    row = next(line for line in result.output.splitlines() if "logistic" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")][:4] == [
        *("tau-q", "logistic", "16", "8")
    ]
    assert len(list(out.glob("runs/*/metrics.json"))) == 8


def test_the_document_is_the_same_for_the_same_results(
    tiny: tuple[Path, list[Figure], Outcome], tmp_path: Path
) -> None:
    out, (figure,), _ = tiny
    text = document.write(out, tmp_path / "a").read_text()
    assert document.write(out, tmp_path / "b").read_text() == text
    for name in (f"{figure.key}.png", "in-place.png"):
        one, two = (tmp_path / x / "figures" / name for x in "ab")
        assert one.read_bytes() == two.read_bytes()
        assert f"(figures/{name})" in text
    (summary,) = json.loads(f"[{(out / f'{figure.key}.json').read_text()}]")
    for setup in summary["setups"]:
        assert f"| {setup['label']} |" in text
        assert f"{setup['loss'][0]:.4f} ± {setup['loss'][1]:.4f}" in text
    for claim in summary["verdicts"]:
        assert claim["claim"] in text
    assert "0.32382 "[:6] in text  # the last published loss of Local SGD with data of five sizes
    assert "path of 3 | 0.333 / 0.333 | 0.200 / 0.400" in text
    with pytest.raises(ValueError, match="reproduce first"):
        document.write(tmp_path, tmp_path / "c")


def test_every_figure_has_its_file() -> None:
    folder = Path(document.__file__).parent / "figures"
    assert {path.stem for path in folder.glob("*.toml")} == set(FIGURES)
