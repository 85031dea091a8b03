"""``mll-flower run`` in one process; with Flower's engine in apps/test_flower_simulation.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from typer.testing import CliRunner

from mll_flower.algorithm.network import HubNetwork
from mll_flower.cli import app
from mll_flower.config import RunConfig
from tests.support.own_work import write_user_files
from tests.support.simulated import Results, play

SMALL = {
    "hubs": 2,
    "workers-per-hub": 2,
    "tau": 4,
    "q": 2,
    "slots": 16,
    "model": "logistic",
    "evaluate-limit": 200,
}


def run(output: Path | str, *more: object, in_process: bool = True, **settings: object):
    values = {**SMALL, **{k.replace("_", "-"): v for k, v in settings.items()}, "output": output}
    options = [part for key, value in values.items() for part in (f"--{key}", str(value))]
    if in_process:
        options.append("--in-process")
    return CliRunner().invoke(app, ["run", *options, *map(str, more)])


@pytest.fixture(autouse=True)
def plots(request: pytest.FixtureRequest) -> Iterator[None]:
    """Skip the plots, which take longer than the run, except in the test of the summary."""
    if "summary" in request.node.name:
        yield
    else:
        with patch("mll_flower.results.plots.plot_run"):
            yield


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Run in an empty folder, so that a file that should not be written is noticed."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_it_ends_with_a_summary_and_the_names_of_its_files(tmp_path):
    result = run(tmp_path / "out")
    assert result.exit_code == 0, result.output
    for part in ("mll-sgd on digits", "2 hubs, 4 workers, ring", "test accuracy", "zeta"):
        assert part in result.stdout
    assert str(tmp_path / "out") in result.stdout.replace("\n", "")
    report = Results(tmp_path / "out").report
    assert f"{report['summary']['accuracy']:.4f}" in result.stdout
    for plot in (tmp_path / "out" / "plots").glob("*.png"):
        assert f"plots/{plot.name}" in result.stdout
    assert len(list((tmp_path / "out" / "plots").glob("*.png"))) >= 4
    assert "Traceback" not in result.output


def test_options_are_keys_of_the_run_config(tmp_path):
    result = run(tmp_path / "out", pool="worker", seed=9, wait_for_all="", rates="0.5,1,1,0.9")
    assert result.exit_code == 2  # a flag takes no value
    result = run(tmp_path / "out", "--wait-for-all", pool="worker", seed=9, rates="0.5,1,1,0.9")
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["seed"], config["pool"], config["wait-for-all"]) == (9, "worker", True)
    assert config["rates"] == "0.5,1,1,0.9"
    assert config["batch-size"] == RunConfig().batch_size


@pytest.mark.parametrize("kind", ["toml", "json"])
def test_options_override_the_config_file(tmp_path, kind):
    file = tmp_path / f"config.{kind}"
    if kind == "toml":
        file.write_text('seed = 3\nbatch-size = 4\nrates = "1"\n')
    else:
        file.write_text('{"seed": 3, "batch-size": 4, "rates": 1}')
    result = run(tmp_path / "out", config=file, batch_size=5)
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["seed"], config["batch-size"], config["rates"]) == (3, 5, "1")


def test_the_model_is_that_of_the_app(tmp_path):
    assert run(tmp_path / "cli", seed=4).exit_code == 0
    settings = {**SMALL, "graph": "ring", "batch-size": 32, "pool": "hub", "seed": 4}
    assert Results(tmp_path / "cli").same_model(play(tmp_path / "app", **settings))


def test_paths_are_relative_to_the_working_folder(tmp_path, elsewhere):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), np.arange(40) % 2
    np.savez(elsewhere / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    (elsewhere / "edges.txt").write_text("0 1\n")
    (elsewhere / "config.toml").write_text("seed = 1\n")
    result = run("out", dataset="npz:mine.npz", graph="edges.txt", config="config.toml")
    assert result.exit_code == 0, result.output
    config = json.loads((elsewhere / "out" / "config.json").read_text())
    assert config["dataset"] == f"npz:{elsewhere / 'mine.npz'}"
    assert config["graph"] == str(elsewhere / "edges.txt")
    assert Path(config["output"]) == elsewhere / "out"


def test_a_run_can_be_resumed(tmp_path):
    assert run(tmp_path / "first", checkpoint_every=1).exit_code == 0
    result = run(tmp_path / "rest", checkpoint_every=1, resume=tmp_path / "first")
    assert result.exit_code == 0, result.output
    assert Results(tmp_path / "rest").same_model(Results(tmp_path / "first"))


def test_an_output_that_holds_a_run_is_refused(tmp_path, monkeypatch):
    assert run(tmp_path / "out", seed=1).exit_code == 0
    old = (tmp_path / "out" / "metrics.csv").read_bytes()
    monkeypatch.setattr("mll_flower.processes.simulation.simulation_superlink", pytest.fail)
    for in_process in (True, False):
        result = run(tmp_path / "out", seed=2, in_process=in_process)
        assert result.exit_code == 2
        [line] = result.stderr.splitlines()
        assert "out' holds a run: give another folder, replace that run with overwrite" in line
        assert (tmp_path / "out" / "metrics.csv").read_bytes() == old
    assert run(tmp_path / "out", "--overwrite", seed=2).exit_code == 0
    assert Results(tmp_path / "out").config.seed == 2


def test_runs_without_an_output_that_start_together_get_folders_of_their_own(elsewhere):
    options = [part for key, value in SMALL.items() for part in (f"--{key}", str(value))]
    code = "from mll_flower.cli import app; app()"
    command = [sys.executable, "-c", code, "run", "--in-process", *options]
    together = [
        subprocess.Popen([*command, "--seed", str(seed)], stdout=subprocess.DEVNULL)
        for seed in range(3)
    ]
    assert [process.wait() for process in together] == [0, 0, 0]
    found = {Results(folder).config.seed: Results(folder) for folder in Path("runs").iterdir()}
    assert set(found) == {0, 1, 2}
    alone = {**SMALL, "graph": "ring", "batch-size": 32, "pool": "hub", "seed": 2}
    assert found[2].same_model(play(elsewhere / "alone", **alone))


@pytest.mark.parametrize("in_process", [True, False])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hubs": 0}, "hubs=0: there must be at least one"),
        ({"graph": "circle"}, "graph='circle' is not known"),
        ({"preset": "fedsgd"}, "preset='fedsgd' is not known: use mll-sgd"),
        (
            {"slots": 2},
            "slots=2 is below tau=4, and a round takes tau slots: give at least 4 slots",
        ),
        ({"preset": "fedavg"}, "q=2 and preset='fedavg', which sets q=1: leave one of them out"),
        ({"hubs": 100000}, "hubs=100000: at most 10,000 are possible"),
        ({"actors": -1}, "actors=-1: give a number of processes, or 0 for one per core"),
        ({"preset": "hl-sgd"}, "HL-SGD has q > 1 and the complete graph or a star"),
        ({"dataset": "npz:nothing.npz"}, "nothing.npz' does not exist"),
        ({"resume": "nothing"}, "nothing' does not exist: give a checkpoint or a run"),
        ({"config": "nothing.toml"}, "config file nothing.toml does not exist"),
    ],
    ids=str,
)
def test_a_bad_config_is_one_line_before_anything_starts(
    tmp_path, elsewhere, monkeypatch, settings, message, in_process
):
    def fail(*_: object, **__: object) -> None:
        pytest.fail("Flower was started with a bad config")

    monkeypatch.setattr("mll_flower.processes.simulation.simulation_superlink", fail)
    result = run(tmp_path / "out", in_process=in_process, **settings)
    assert result.exit_code == 2, result.output
    [line] = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert message in line
    assert result.stdout.strip() == ""
    assert not (tmp_path / "out").exists()
    assert os.listdir(elsewhere) == []


def test_a_config_file_with_errors(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text("hubs = = 3")
    result = run(tmp_path / "out", config=file)
    assert result.exit_code == 2
    assert "cannot be read" in result.stderr
    file.write_text("hubz = 3")
    result = run(tmp_path / "out", config=file)
    assert result.exit_code == 2
    assert "unknown keys ['hubz']; the known ones are preset, hubs," in result.stderr

    file = tmp_path / "list.json"
    file.write_text("[1, 2]")
    result = run(tmp_path / "out", config=file)
    assert result.exit_code == 2
    assert "list.json holds a list: it must be an object with keys" in result.stderr


def test_missing_data_are_one_line_before_flower_starts(tmp_path, elsewhere, monkeypatch):
    def no_network(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    monkeypatch.setattr("mll_flower.processes.simulation.simulation_superlink", pytest.fail)
    monkeypatch.delenv("MLL_FLOWER_DATA", raising=False)
    result = run(tmp_path / "out", in_process=False, dataset="mnist", model="mlp")
    assert result.exit_code == 2, result.output
    [line] = result.stderr.splitlines()
    assert f"could be neither read from {elsewhere / 'data'} nor downloaded" in line
    assert not (tmp_path / "out").exists()
    assert os.listdir(elsewhere) == []  # not even the empty folders of the download


def test_a_saved_network_is_a_config_file(tmp_path):
    network = HubNetwork.build(3, [1, 2, 1], "path", [1, 2, 3, 4], [0.5, 1, 0.25, 1])
    network.save(tmp_path / "net.toml")
    options = ["--config", str(tmp_path / "net.toml"), "--slots", "16", "--tau", "4", "--q", "2"]
    options += ["--model", "logistic", "--in-process", "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(app, ["run", *options])
    assert result.exit_code == 0, result.output
    report = Results(tmp_path / "out").report
    saved = network.to_dict()
    assert {key: report["network"][key] for key in saved} == saved


def test_the_notes_are_said_before_the_run_and_in_the_summary(tmp_path):
    result = run(tmp_path / "out", slots=18)
    assert "Note: slots=18: the run ends at slot 16, after 4 rounds" in result.stdout
    table = " ".join(result.stdout.partition("test accuracy")[2].split())
    assert "slots=18: the run ends at slot 16" in table


def test_data_that_does_not_fit_fails_the_run(tmp_path):
    data = tmp_path / "odd.npz"
    np.savez(data, x_train=np.zeros((9, 2)))
    result = run(tmp_path / "out", dataset=f"npz:{data}")
    assert result.exit_code == 2
    assert "has no y_train, x_test, y_test" in result.stderr
    assert not (tmp_path / "out").exists()


def test_help_shows_every_option():
    result = CliRunner().invoke(app, ["run", "--help"], terminal_width=200)
    assert result.exit_code == 0
    for key in (
        *RunConfig().to_run_config(),
        "config",
        "in-process",
        "actors",
        "flwr-home",
        "overwrite",
    ):
        assert f"--{key}" in result.stdout


def test_own_files_are_found_in_the_working_folder(tmp_path, elsewhere):
    write_user_files(elsewhere)
    own = {"model": "mine.py:Awkward", "dataset": "mine.py:numbers", "metric": "r2"}
    result = run(tmp_path / "out", **own)
    assert result.exit_code == 0, result.output
    assert "test r2" in result.stdout
    assert Results(tmp_path / "out").config.code_dir == str(elsewhere)
    # Elsewhere, if it is said where.
    other = write_user_files(tmp_path / "other")
    result = run(tmp_path / "b", "--code-dir", "../other", **own)
    assert result.exit_code == 0, result.output
    assert Results(tmp_path / "b").config.code_dir == str(elsewhere / ".." / "other")
    assert Results(tmp_path / "b").same_model(Results(tmp_path / "out"))
    assert other.is_dir()


@pytest.mark.parametrize("in_process", [True, False])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "mine.py:Net"}, "model='mine.py:Net': mine.py has no 'Net'; it has Awkward,"),
        ({"model": "none:Net"}, "model='none:Net': no module 'none'; modules are looked for in"),
        ({"loss": "mine.py:classes"}, "loss='mine.py:classes' on an output of shape (32, 3)"),
        ({"partition": "rows.json"}, "partition='rows.json' gives 3 lists for 4 workers"),
        ({"dataset": "digits"}, "model='mine.py:Awkward' on a batch of shape (32, 1, 8, 8) raised"),
    ],
    ids=str,
)
def test_a_mistake_in_own_files_is_named_before_anything_starts(
    tmp_path, elsewhere, settings, message, in_process
):
    write_user_files(elsewhere)
    (elsewhere / "rows.json").write_text("[[0], [1], [2]]")
    own = {"model": "mine.py:Awkward", "dataset": "mine.py:classes", **settings}
    with patch("mll_flower.processes.simulation.simulation_superlink") as superlink:
        result = run(tmp_path / "out", in_process=in_process, **own)
    assert result.exit_code == 2, result.output
    assert f"Error: {message}" in result.output
    assert not superlink.called
    assert not (tmp_path / "out").exists()
