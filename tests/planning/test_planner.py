"""Small plans, from the file to the folder with the answer."""

from __future__ import annotations

import csv
import json
import multiprocessing
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mll_flower.algorithm.network import HubNetwork
from mll_flower.apps.launch import run_in_process
from mll_flower.cli import app
from mll_flower.cli.run import _read_config_file
from mll_flower.deployment.network_file import load_network
from mll_flower.planning.deployment_file import check_deployment
from mll_flower.planning.plan_file import load_plan
from mll_flower.planning.planner import claimed_folder, make_plan
from mll_flower.results.runs import load_run

SMALL = """
name = "Small plan"
[goal]
accuracy = 0.5
[task]
model = "mlp"
learning-rate = 0.3
[clock]
model-megabytes = 1
[[region]]
name = "North Sea"
workers = 2
seconds-per-step = [0.5, 4]
down-mbit = 8
up-mbit = 8
[[region]]
name = "b"
workers = 1
seconds-per-step = 0.5
down-mbit = 8
up-mbit = 8
superlink = "b.example:9092"
gossip = "b.example:9093"
[[region]]
name = "c"
workers = 1
seconds-per-step = 1
down-mbit = 8
up-mbit = 8
[links]
mbit = 16
[search]
tau = [4]
q = [1, 2]
graphs = ["complete", "ring", "star"]
mixing = ["metropolis", "diffusion"]
seeds = 2
longest-slots = 256
"""


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a plan, and what the command printed."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "plan.toml").write_text(SMALL)
    command = ("plan", folder / "plan.toml", "--output", folder / "answer", "--processes", 1)
    result = invoke(*command)
    assert result.exit_code == 0, result.output
    assert not multiprocessing.active_children()
    return folder / "answer", result.output


def test_the_answer_says_what_is_recommended(answered: tuple[Path, str]) -> None:
    text = " ".join(answered[1].split())
    report = json.loads((answered[0] / "plan.json").read_text())
    assert f"Recommended: {report['recommended']['setting']}, " in text
    assert "Runner-up: " in text
    assert "waiting) takes " in text
    assert "Links that it uses: North Sea - " in text


def test_the_files_of_the_answer(answered: tuple[Path, str]) -> None:
    folder = answered[0]
    assert {path.name for path in folder.iterdir()} >= {
        "plan.json", "table.csv", "plan.png", "network.toml", "recommended.toml", "clock.toml",
        "graphs", "runs",
    }  # fmt: skip
    assert not (folder / "pilots").exists()
    report = json.loads((folder / "plan.json").read_text())
    with (folder / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["setting"] == report["recommended"]["setting"]
    assert {row["waits"] for row in rows} == {"True", "False"}
    assert all(int(row["seeds"]) >= 2 for row in rows)
    # Of the complete graph, the ring and the star, two are the same for three hubs.
    assert set(report["graphs"]) == {"complete", "star"}
    assert len(report["dropped"]) + len(rows) == 2 * 2 * 2
    # The fastest one reached the target at the time that the clock counts.
    best = report["finalists"][0]
    assert best["reached"] == best["seeds"]
    assert best["seconds"] == pytest.approx(
        sum(run["seconds"][-1] for run in best["runs"]) / len(best["runs"])
    )


def test_the_runs_of_the_finals_can_be_compared(answered: tuple[Path, str]) -> None:
    runs = sorted((answered[0] / "runs").iterdir())
    run = load_run(runs[0])
    assert run.reached(0.5) is not None
    assert run.evaluations[-1]["seconds"] > 0
    assert invoke("compare", *runs).exit_code == 0


def test_the_network_file_is_that_of_a_deployment(answered: tuple[Path, str]) -> None:
    path = answered[0] / "network.toml"
    check_deployment(path)
    network = load_network(path)
    assert [hub.id for hub in network.hubs] == ["north-sea", "b", "c"]
    assert [hub.workers for hub in network.hubs] == [2, 1, 1]
    assert network.hubs[1].superlink == "b.example:9092"
    assert (network.name, network.tau, network.slot) == ("small-plan", 4, 0.5)
    graph = json.loads((answered[0] / "plan.json").read_text())["recommended"]["graph"]
    assert len(network.edges) == {"complete": 3, "star": 2}[graph]
    # A round needs 4 x 0.5 s and 2 s of transfers.
    assert network.round_deadline > 4
    # And `mll-flower network` describes the graph.
    assert invoke("network", answered[0] / "graphs" / "complete.toml").exit_code == 0
    assert HubNetwork.load(answered[0] / "graphs" / "star.toml").hubs == 3


def test_the_recommended_setting_can_be_run(answered: tuple[Path, str], tmp_path: Path) -> None:
    values = _read_config_file(answered[0] / "recommended.toml")
    assert "rates" not in values  # the clock sets them
    output = run_in_process({**values, "output": str(tmp_path / "run")}, plots=False, lines=False)
    assert load_run(output).evaluations[-1]["seconds"] > 0


def test_a_plan_that_was_killed_goes_on(answered: tuple[Path, str], tmp_path: Path) -> None:
    folder = tmp_path / "answer"
    plan = load_plan(answered[0].parent / "plan.toml")

    def interrupt(stage: str, done: int, total: int) -> None:
        if (stage, done) == ("finals", 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), claimed_folder(folder, plan, False) as claimed:
        make_plan(plan, claimed, 1, interrupt)
    kept = sorted((folder / "curves").iterdir())
    assert kept
    assert not multiprocessing.active_children()
    (tmp_path / "other.toml").write_text(SMALL.replace("0.5", "0.6"))
    other = load_plan(tmp_path / "other.toml")
    with pytest.raises(ValueError, match="holds a plan"), claimed_folder(folder, other, False):
        pass
    for path in kept:  # what was played is not played again
        path.write_text(json.dumps({**json.loads(path.read_text()), "cpu": 1000.0}))
    with claimed_folder(folder, plan, False) as claimed:
        with (
            pytest.raises(ValueError, match="another command is making a plan there"),
            claimed_folder(folder, plan, False),
        ):
            pass
        found = make_plan(plan, claimed, 1, lambda stage, done, total: None).found
    assert found.cpu >= 1000 * len(kept)
    assert not (folder / "curves").exists()
    for name in ("table.csv", "network.toml"):
        assert (folder / name).read_text() == (answered[0] / name).read_text()


def test_a_folder_that_holds_a_plan_is_refused(answered: tuple[Path, str]) -> None:
    folder = answered[0]
    result = invoke("plan", folder.parent / "plan.toml", "--output", folder)
    assert result.exit_code == 2
    assert "holds a plan: give another folder, or --overwrite" in " ".join(result.output.split())


def test_a_budget_of_bytes(tmp_path: Path) -> None:
    # 4 workers, a model of 1 MB: 8 MB per round and 6 or 4 per mixing; 0.1 GB is about 8 rounds.
    text = SMALL.replace("accuracy = 0.5", "gigabytes = 0.1").replace("q = [1, 2]", "q = [1]")
    (tmp_path / "plan.toml").write_text(text)
    command = ("plan", tmp_path / "plan.toml", "-o", tmp_path / "out", "--processes", 1)
    result = invoke(*command, "--seeds", 1)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out" / "plan.json").read_text())
    for finalist in report["finalists"]:
        per_round = 8e6 + 2e6 * {"complete": 3, "star": 2}[finalist["graph"]]
        assert finalist["bytes"] == per_round * (1e8 // per_round)
    assert not report["decided"]  # with one seed nothing is
    shutil.rmtree(tmp_path / "out")


def test_addresses_and_names_that_no_deployment_could_have(tmp_path: Path) -> None:
    for old, new, message in (
        ("b.example:9092", "b.example", "region: hub 2: superlink: 'b.example'; write"),
        ('name = "b"', 'name = "north-sea"', "region: hub 2: id: 'north-sea' is taken; choose"),
    ):
        (tmp_path / "plan.toml").write_text(SMALL.replace(old, new))
        result = invoke("plan", tmp_path / "plan.toml", "-o", tmp_path / "out")
        assert result.exit_code == 2
        assert message in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan",), "which plan? give its file"),
        (("plan", "no.toml"), "cannot be read"),
        (("plan", "no.toml", "--seeds", "0"), "--seeds"),
    ],
)
def test_bad_commands(arguments: tuple[str, ...], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_budget_in_which_nothing_fits(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(SMALL.replace("accuracy = 0.5", "gigabytes = 0.001"))
    result = invoke("plan", tmp_path / "plan.toml", "-o", tmp_path / "out", "--processes", 1)
    assert result.exit_code == 2
    assert "not one round of any setting fits into the budget" in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()  # given back


def test_the_example_is_written_and_never_over_a_file(tmp_path: Path) -> None:
    assert "[[region]]" in invoke("plan", "--example").output
    assert invoke("plan", "--example", tmp_path / "plan.toml").exit_code == 0
    result = invoke("plan", "--example", tmp_path / "plan.toml")
    assert result.exit_code == 2
    assert "nothing was written" in " ".join(result.output.split())


@pytest.mark.slow
def test_the_60_hospitals(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "hospitals" / "plan.toml"
    result = invoke("plan", example, "-o", tmp_path / "out", "--seeds", 3)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert not report["recommended"]["waits"]
    assert report["gain_over_waiting"]["mean"] > 1
    network = load_network(tmp_path / "out" / "network.toml")
    assert sum(hub.workers for hub in network.hubs) == 60
