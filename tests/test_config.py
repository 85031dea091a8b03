"""The run config: a bad value is an error before anything starts, with its remedy."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from mll_flower.algorithm.mixing import mixing_matrix, zeta
from mll_flower.config import DEPLOYMENT_KEYS, RunConfig
from mll_flower.presets import PRESETS
from tests.support.simulated import task_and_shards

KEYS = {field.name.replace("_", "-"): field for field in fields(RunConfig)}


def read(**settings) -> RunConfig:
    return RunConfig.from_run_config({k.replace("_", "-"): v for k, v in settings.items()})


# Key, bad value, and the remedy that the error must give.
BAD = [
    ("preset", "fedsgd", "use mll-sgd, distributed-sgd, local-sgd"),
    ("hubs", 0, "at least one"),
    ("hubs", -3, "at least one"),
    ("hubs", 2.5, "a whole number"),
    ("hubs", "many", "a whole number"),
    ("hubs", True, "a whole number"),
    ("hubs", float("inf"), "a whole number"),
    ("workers-per-hub", 0, "whole numbers of at least 1"),
    ("workers-per-hub", "2.5", "whole numbers of at least 1"),
    ("workers-per-hub", "inf", "whole numbers of at least 1"),
    ("workers-per-hub", "nan", "whole numbers of at least 1"),
    ("workers-per-hub", "3,4", "one number, or one per hub"),
    ("workers-per-hub", "3,4,0,1,1", "whole numbers of at least 1"),
    ("workers-per-hub", "three", "numbers with commas"),
    ("graph", "circle", "one of complete, path, ring"),
    ("graph", "no/such/file.txt", "check the path"),
    ("mixing", "fastest", "one of auto, metropolis"),
    ("mixing", "no/such/file.txt", "check the path"),
    ("tau", 0, "at least 1"),
    ("tau", 1.5, "a whole number"),
    ("q", 0, "at least 1"),
    ("slots", 7, "at least 8"),
    ("slots", -1, "at least 8"),
    ("wait-for-all", "yes", "true or false"),
    ("tensorboard", "yes", "true or false"),
    ("wait-for-all", 1, "true or false"),
    ("rates", "0", "above 0 and at most 1"),
    ("rates", "1.5", "above 0 and at most 1"),
    ("rates", "-0.1", "above 0 and at most 1"),
    ("rates", "slow", "one of fixed, uniform"),
    ("rates", "", "give a number"),
    ("rates", "0.5;0.6", "numbers with commas"),
    ("clock", "/no/such/clock.toml", "check the path"),
    ("weights", "sizes", "equal, examples, or one number per worker"),
    ("weights", ",".join(["-1"] * 20), "above 0"),
    ("weights", ",".join(["inf"] * 20), "finite"),
    ("dataset", "imagenet", "use one of digits"),
    ("dataset", "npz:", "use one of digits"),
    ("dataset", "npz:/no/such/file.npz", "check the path"),
    ("partition", "random", "use one of iid"),
    ("partition", "dirichlet", "write e.g. 'dirichlet(0.5)'"),
    ("partition", "dirichlet(0)", "above 0"),
    ("partition", "shards(0)", "1, 2, 3"),
    ("dataset", "image-folder:/no/such/folder", "check the path of the folder"),
    ("dataset", "no/such/file.py:load", "starts at code-dir"),
    ("dataset", "hf:", "write hf:NAME or hf:FOLDER"),
    ("dataset", "hf:mnist#label=x", "use x=..., y=..."),
    ("partition", "no/such/rows.json", "starts at code-dir"),
    ("partition", "no/such/file.py:split", "starts at code-dir"),
    ("model", "transformer", "use logistic, mlp, cnn, resnet18"),
    ("model", "no/such/file.py:Net", "starts at code-dir"),
    ("model", "module:not a name", "use logistic, mlp, cnn, resnet18, module:function"),
    ("loss", "hinge", "use auto, cross-entropy, mse"),
    ("metric", "f1", "use auto, accuracy, mse"),
    ("augment", "rotate", "use none, crop-flip, module:function"),
    ("augment", "no/such/file.py:turn", "starts at code-dir"),
    ("classes", -1, "at least 0"),
    ("classes", 3, "is for data of your own"),
    ("code-dir", "/no/such/folder", "give a folder"),
    ("optimiser", "adam", "use sgd, adamw"),
    ("batch-size", 0, "at least 1"),
    ("learning-rate", 0.0, "positive"),
    ("learning-rate", -0.1, "positive"),
    ("learning-rate", float("nan"), "finite"),
    ("learning-rate", "fast", "a number"),
    ("lr-milestones", "0.5,1.5", "between 0 and 1"),
    ("lr-milestones", "0", "between 0 and 1"),
    ("lr-milestones", "nan", "between 0 and 1"),
    ("lr-milestones", "half", "numbers with commas"),
    ("lr-factor", 0.0, "positive"),
    ("momentum", -0.1, "not negative"),
    ("momentum", 1.0, "below 1"),
    ("rate-correction", "inverted", "use none, inverse"),
    ("rate-cap", 0.5, "at least 1"),
    ("mean-rate", 1.5, "at most 1"),
    ("hub-correction", "on", "use none, exact-diffusion"),
    ("worker-correction", "scaffold", "use none, mtgc"),
    ("outer", "nesterov", "use none, slowmo"),
    ("outer-rate", 0.0, "positive"),
    ("outer-momentum", 1.0, "below 1"),
    ("gossip-precision", "quarter", "use full, half"),
    ("weight-decay", -1.0, "not negative"),
    ("weight-decay", float("inf"), "finite"),
    ("evaluate-every", -8, "at least 0"),
    ("evaluate-every", 12, "multiple of tau=8"),
    ("evaluate-limit", -1, "at least 0"),
    ("pool", "node", "use hub, worker"),
    ("engine", "fast", "use auto, autograd, compiled"),
    ("device", "gpu", "use auto, cpu, cuda"),
    ("absent", "drop", "use keep, renormalise"),
    ("reply-timeout", 0.0, "positive"),
    ("reply-timeout", float("inf"), "finite"),
    ("node-timeout", -1.0, "positive"),
    ("seed", -1, "at least 0"),
    ("seed", 2**63, "below 2**63"),
    ("checkpoint-every", -2, "at least -1"),
    ("resume", "/no/such/run", "give a checkpoint or a run"),
    ("output", __file__, "is a file: give a folder"),
]


@pytest.mark.parametrize(("key", "value", "remedy"), BAD, ids=lambda v: str(v)[:30])
def test_a_bad_value_is_named_with_its_remedy(key, value, remedy):
    with pytest.raises(ValueError) as error:
        RunConfig.from_run_config({key: value})
    message = str(error.value)
    assert remedy in message
    # The value as it was given, or the first entry of a list.
    assert str(value).split(",")[0] in message or repr(value) in message
    assert key in message or key.removesuffix("s") in message
    assert "\n" not in message


def test_every_key_that_can_be_wrong_is_tried():
    # Any folder will do for data-dir: missing data are downloaded into it.
    assert {key for key, _, _ in BAD} == set(KEYS) - {"data-dir"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"preset": "hl-sgd"}, ["hl-sgd", "q=4", "'ring'", "star"]),
        ({"preset": "hl-sgd", "graph": "complete", "q": 1}, ["q=1", "local-sgd"]),
        ({"mixing": "complete", "graph": "ring"}, ["complete"]),
        ({"partition": "sized", "hubs": 2, "workers_per_hub": 2}, ["sized", "4 workers", "five"]),
        ({"wait_for_all": True, "rates": "0.01", "slots": 16}, ["slots=16", "tau=8", "more slots"]),
        ({"preset": "cooperative-sgd", "workers_per_hub": "2,2"}, ["'2,2'", "hubs=5"]),
        ({"rates": "0.5,0.5"}, ["rates", "(2,)", "20 workers", "one per worker"]),
        ({"weights": "1,2,3"}, ["weights", "(3,)", "20 workers", "one per worker"]),
        ({"tau": 5, "evaluate_every": 8}, ["evaluate-every=8", "tau=5"]),
        ({"hubs": 0, "preset": "fedavg"}, ["hubs=0"]),
        ({"optimiser": "adamw", "momentum": 0.9}, ["momentum=0.9", "'adamw'", "leave it at 0"]),
    ],
    ids=str,
)
def test_an_impossible_combination_is_explained(settings, expected):
    with pytest.raises(ValueError) as error:
        read(**settings)
    for part in expected:
        assert part in str(error.value)


def test_files_must_fit_the_network(tmp_path):
    pair = tmp_path / "pair.txt"
    pair.write_text("0 1\n")
    with pytest.raises(ValueError, match="not connected"):
        read(graph=str(pair))
    wrong = tmp_path / "h.txt"
    np.savetxt(wrong, np.eye(5) / 2)
    with pytest.raises(ValueError, match="column"):
        read(mixing=str(wrong), weights="equal")
    right = tmp_path / "good.txt"
    np.savetxt(right, mixing_matrix(nx.cycle_graph(5), np.full(5, 0.2)))
    assert read(mixing=str(right), weights="equal").mixing == str(right)


def test_an_unknown_key_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown keys \['learning_rate', 'step'\]") as error:
        RunConfig.from_run_config({"learning_rate": 0.1, "step": 3})
    for key in KEYS:
        assert key in str(error.value)


@pytest.mark.parametrize(
    ("key", "given", "meant"),
    [
        ("workers-per-hub", 3, "3"),
        ("rates", 0.5, "0.5"),
        ("weights", 1, "1"),
        ("learning-rate", 1, 1.0),
        ("learning-rate", "0.5", 0.5),
        ("tau", 4.0, 4),
        ("tau", "16", 16),
        ("wait-for-all", "True", True),
        ("seed", 2**63 - 1, 2**63 - 1),
        ("seed", str(2**60 + 1), 2**60 + 1),
    ],
)
def test_values_are_read_as_they_are_meant(key, given, meant):
    value = RunConfig.read({key: given}).to_run_config()[key]
    assert value == meant
    assert type(value) is type(meant)


def test_pyproject_has_the_defaults():
    """A key that pyproject.toml lacks could not be set with `flwr run -c`."""
    with (Path(__file__).parent.parent / "pyproject.toml").open("rb") as file:
        written = tomllib.load(file)["tool"]["flwr"]["app"]["config"]
    assert set(written) == set(KEYS) | DEPLOYMENT_KEYS
    ours = {key: value for key, value in written.items() if key not in DEPLOYMENT_KEYS}
    assert ours == RunConfig().to_run_config()
    assert {k: type(v) for k, v in ours.items()} == {
        k: type(v) for k, v in RunConfig().to_run_config().items()
    }
    assert written["role"] == "network"
    RunConfig.from_run_config(written)


def test_every_key_has_its_help():
    help = {field.name: field.metadata["help"] for field in fields(RunConfig)}
    assert all(help.values())
    for preset in PRESETS:
        assert preset in help["preset"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"preset": "fedavg", "q": 4}, ["q=4", "preset='fedavg'", "sets q=1"]),
        (
            {"preset": "fedavg", "wait_for_all": False},
            ["wait-for-all=false", "sets wait-for-all=true", "or use preset='fedavg-deadline'"],
        ),
        ({"preset": "distributed-sgd", "tau": "4"}, ["tau=4", "distributed-sgd", "sets tau=1"]),
        ({"preset": "local-sgd", "graph": "star"}, ["graph=star", "sets graph=complete"]),
        ({"preset": "cooperative-sgd", "rates": "0.5"}, ["rates=0.5", "sets rates=1"]),
        ({"preset": "fedavg", "graph": "star"}, ["graph=star", "sets graph=complete"]),
    ],
    ids=str,
)
def test_a_value_that_the_preset_overrides_is_refused(given, expected):
    given = {key.replace("_", "-"): value for key, value in given.items()}
    with pytest.raises(ValueError) as error:
        RunConfig.check_given(given)
    for part in expected:
        assert part in str(error.value)


@pytest.mark.parametrize("preset", PRESETS)
def test_what_a_preset_sets_may_be_given_too(preset):
    """Flower's run config holds every default; a resolved config holds the preset's values."""
    counts = {"hubs": 3, "workers-per-hub": "2", "preset": preset}
    graph = {"graph": "star"} if preset == "hl-sgd" else {}
    RunConfig.check_given({**counts, **graph})
    RunConfig.check_given({**RunConfig().to_run_config(), **counts, **graph}, with_defaults=True)
    RunConfig.check_given(read(preset=preset, **graph).to_run_config())
    given = {**RunConfig().to_run_config(), "preset": "distributed-sgd", "tau": 2}
    with pytest.raises(ValueError, match="tau=2"):
        RunConfig.check_given(given, with_defaults=True)


def test_the_help_says_what_a_preset_sets():
    help = {field.name: field.metadata["help"] for field in fields(RunConfig)}["preset"]
    assert "fedavg (one hub with all workers, q=1, weights=examples, wait-for-all=true)" in help


@pytest.mark.parametrize("preset", PRESETS)
def test_a_resolved_config_stays_as_it_is(preset):
    settings = {"preset": preset, "graph": "star", "workers_per_hub": "3,1,2", "hubs": 3}
    config = read(**settings)
    assert config.resolved() == config
    assert RunConfig.from_run_config(config.to_run_config()) == config
    assert config.network().workers == 6


class TestSchedule:
    def test_learning_rates_fall_at_the_milestones(self):
        config = read(slots=100, tau=5, lr_milestones="0.5,0.75", lr_factor=0.1, learning_rate=1)
        assert [config.learning_rate_at(s) for s in (0, 49, 50, 74, 75, 99)] == pytest.approx(
            [1, 1, 0.1, 0.1, 0.01, 0.01]
        )

    @pytest.mark.parametrize(
        ("settings", "rounds", "together"),
        [
            ({}, 128, 4),
            ({"pool": "worker"}, 128, 1),
            ({"evaluate_every": 16}, 128, 2),
            ({"evaluate_every": 24}, 128, 1),
            ({"evaluate_every": 64}, 128, 4),
            ({"slots": 1023}, 127, 1),
            ({"slots": 1000}, 125, 1),
            ({"slots": 1008}, 126, 2),
            ({"preset": "fedavg-deadline", "evaluate_every": 64}, 128, 8),
            ({"preset": "fedavg", "rates": "1"}, 128, 1),
            ({"preset": "distributed-sgd"}, 1024, 1),
        ],
        ids=str,
    )
    def test_a_message_covers_the_rounds_to_the_next_event(self, settings, rounds, together):
        config = read(**settings)
        assert len(config.schedule()) == rounds
        assert config.rounds_per_message(rounds) == together


class TestThePapersExperiments:
    """The experiments of the paper's section 6: each needs nothing but its config."""

    def test_ten_hubs_of_ten_with_unequal_data(self):
        config = read(
            hubs=10,
            workers_per_hub=10,
            graph="complete",
            partition="sized",
            weights="examples",
            rates="1",
            tau=8,
            q=4,
            slots=6400,
            dataset="emnist",
            model="cnn",
            batch_size=16,
            learning_rate=0.01,
        )
        network = config.network()
        assert (network.hubs, network.workers, network.graph.number_of_edges()) == (10, 100, 45)
        _, shards = task_and_shards(read(**_on_digits(config)))
        sizes = np.array([len(shard) for shard in shards])
        groups = [sizes[start::5].sum() / sizes.sum() for start in range(5)]
        assert groups == pytest.approx([0.05, 0.1, 0.2, 0.25, 0.4], abs=0.01)
        weighted = config.network(sizes)
        assert weighted.b == pytest.approx(np.full(10, 0.1), abs=0.005)
        assert zeta(mixing_matrix(weighted.graph, weighted.b, "auto")) == pytest.approx(0, abs=1e-9)

    @pytest.mark.parametrize(("hubs", "low", "high"), [(5, 0.7, 0.9), (10, 0.9, 1), (20, 0.98, 1)])
    def test_hubs_on_a_path(self, hubs, low, high):
        config = read(hubs=hubs, workers_per_hub=100 // hubs, graph="path", rates="1", slots=6400)
        network = config.network()
        assert network.workers == 100
        assert sorted(dict(network.graph.degree).values()) == [1, 1] + [2] * (hubs - 2)
        assert low < zeta(mixing_matrix(network.graph, network.b, config.mixing)) < high

    @pytest.mark.parametrize(
        ("rates", "expected"),
        [
            ("fixed", {0.55: 100}),
            ("uniform", {round(0.1 * k, 10): 10 for k in range(1, 11)}),
            ("skewed-fast", {1.0: 10, 0.5: 90}),
            ("skewed-slow", {0.1: 10, 0.6: 90}),
            ("1", {1.0: 100}),
        ],
    )
    def test_five_distributions_of_rates(self, rates, expected):
        p = read(hubs=10, workers_per_hub=10, graph="complete", rates=rates).network().p
        values, counts = np.unique(np.round(p, 10), return_counts=True)
        assert dict(zip(values.tolist(), counts.tolist(), strict=True)) == expected
        if rates != "1":  # these four have one mean, so that they differ in spread alone
            assert p.mean() == pytest.approx(0.55)

    def test_mll_sgd_against_waiting(self):
        shared = {
            "hubs": 10,
            "workers_per_hub": 10,
            "graph": "complete",
            "rates": "two-speed",
            "slots": 640,
            "tau": 32,
        }
        mll = read(**shared, q=1)
        local = read(**shared, preset="local-sgd")
        hierarchical = read(**shared, preset="hl-sgd", q=4)
        assert mll.network().p.min() == 0.6
        assert mll.network().p.max() == 0.9
        assert len(mll.schedule()) == 20  # a round every 32 slots
        for waiting in (local, hierarchical):
            assert waiting.wait_for_all
            lasts = [int((r.end - r.start).max()) for r in waiting.schedule()]
            assert min(lasts) > 40  # 32 steps at 0.6 per slot take about 53
        assert (mll.q, local.q, hierarchical.q) == (1, 1, 4)


def _on_digits(config: RunConfig) -> dict[str, object]:
    return {**config.to_run_config(), "dataset": "digits", "model": "logistic"}
