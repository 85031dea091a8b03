"""``mll-flower network``, and what all commands share: errors, version, help."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import mll_flower
from mll_flower import HubNetwork, mixing_matrix, zeta
from mll_flower.algorithm import theory
from mll_flower.algorithm.any_rate_theory import (
    any_rate_bound,
    any_rate_step_size,
    rate_pull,
)
from mll_flower.cli import Commands, app

runner = CliRunner()


def run(*arguments: object):
    return runner.invoke(app, [str(a) for a in arguments])


def run_json(*arguments: object) -> dict:
    result = run("network", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def error_line(result) -> str:
    """Return the error of a command that ended with exit code 2 and printed one line alone."""
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("Error: ")
    return lines[0]


ARGUMENTS = ("--workers-per-hub", "2,3,1,2", "--graph", "path", "--weights", "1,2,3,4,5,6,7,8")
WEIGHTED = HubNetwork.build(
    workers_per_hub=[2, 3, 1, 2], graph="path", weights=range(1, 9), rates="two-speed"
)


def test_json_agrees_with_the_library() -> None:
    found = run_json(
        *(*ARGUMENTS, "--rates", "two-speed", "--tau", 3, "--q", 2, "--parameters", 1000),
        *("--L", 2, "--sigma2", 0.5, "--beta", 0.1, "--gap", 4, "--slots", 600),
        *("--mixing", "diffusion"),
    )
    H = mixing_matrix(WEIGHTED.graph, WEIGHTED.b, "diffusion")
    problem = theory.Problem(L=2, sigma2=0.5, beta=0.1, gap=4)
    eta = theory.largest_step_size(WEIGHTED, zeta(H), 3, 2, problem)
    np.testing.assert_array_equal(found["H"], H)
    assert found["zeta"] == zeta(H)
    assert found["spectral_gap"] == 1 - zeta(H)
    assert [hub["share"] for hub in found["hubs"]] == WEIGHTED.b.tolist()
    assert [hub["workers"] for hub in found["hubs"]] == [2, 3, 1, 2]
    assert [hub["neighbours"] for hub in found["hubs"]] == [[1], [0, 2], [1, 3], [2]]
    assert [hub["degree"] for hub in found["hubs"]] == [1, 2, 2, 1]
    assert found["hubs"][0]["mean_rate"] == pytest.approx((0.6 + 0.9) / 2)
    # 8 workers, down and up; 3 edges, both ways; 4 bytes per number.
    assert found["bytes"]["model"] == 4000
    assert found["bytes"]["round"] == 2 * 8 * 4000
    assert found["bytes"]["mixing"] == 2 * 3 * 4000
    assert found["bytes"]["slot"] == pytest.approx(2 * 8 * 4000 / 3 + 2 * 3 * 4000 / 6)
    assert found["theory"]["largest_step_size"] == found["theory"]["step_size"] == eta
    assert found["theory"]["workers_failing"] == 0
    assert found["theory"]["gamma"] == theory.gamma(zeta(H))
    assert found["theory"]["bound"] == theory.bound(WEIGHTED, zeta(H), 3, 2, eta, problem, 600)
    own = found["theory"]["any_rate"]
    assert own["largest_step_size"] == any_rate_step_size(WEIGHTED, zeta(H), 3, 2, problem)
    assert own["bound"] == any_rate_bound(WEIGHTED, zeta(H), 3, 2, own["step_size"], problem, 600)
    assert found["theory"]["rate_pull"] == rate_pull(WEIGHTED)


def test_text_shows_the_numbers_of_the_library() -> None:
    result = run("network", *ARGUMENTS, "--rates", "two-speed", "--slots", 1000)
    assert result.exit_code == 0
    assert result.stderr == ""
    text = result.stdout
    H = mixing_matrix(WEIGHTED.graph, WEIGHTED.b)
    eta = theory.largest_step_size(WEIGHTED, zeta(H), 8, 4, theory.Problem())
    terms = theory.bound(WEIGHTED, zeta(H), 8, 4, eta, theory.Problem(), 1000)
    assert "4 hubs, 8 workers, 3 edges; tau = 8, q = 4" in text
    assert f"zeta = {zeta(H):.6g}, spectral gap 1 - zeta = {1 - zeta(H):.6g}" in text
    assert f"largest step size: {eta:.6g}" in text
    assert "K = 1000" in text
    for name, value in terms.items():
        assert re.search(rf"{name} +{re.escape(f'{value:.6g}')}", text)
    for share in WEIGHTED.b:
        assert f"{share:.4f}" in text
    for row in H:
        assert " ".join(f"{x:5.3f}" if x else "    ·" for x in row) in text
    assert "7.04 MB down to the workers" in text
    assert "2.64 MB, two models per edge" in text


def test_the_default_network_is_a_ring_of_five() -> None:
    found = run_json()
    assert (len(found["hubs"]), found["workers"], found["edges"]) == (5, 20, 5)
    assert (found["tau"], found["q"]) == (8, 4)


def test_slow_workers_get_an_explanation_in_place_of_a_step_size() -> None:
    result = run("network", "--rates", "uniform")
    expected = HubNetwork.build(hubs=5, workers_per_hub=4, graph="ring", rates="uniform")
    assert theory.explain_condition(expected) in result.stdout
    paper, _, ours = result.stdout.partition("This project's own bound")
    assert "largest step size" not in paper
    assert "largest step size" in ours
    assert "chi^2 = 1.05268" in ours
    assert "at eta = 0.01, K to infinity" in result.stdout
    assert "not guaranteed: eta fails the condition for 20 workers" in result.stdout
    assert run_json("--rates", "uniform")["theory"]["largest_step_size"] is None


def test_a_large_step_size_is_reported_as_failing() -> None:
    found = run_json("--step-size", 0.5)
    assert found["theory"]["workers_failing"] == 20
    assert found["theory"]["step_size"] == 0.5


def test_a_large_matrix_is_printed_only_when_asked_for() -> None:
    plain, full = run("network", "--hubs", 13), run("network", "--hubs", 13, "--matrix")
    assert "13 x 13; --matrix prints it" in plain.stdout
    assert "0.333" not in plain.stdout
    rows = [line for line in full.stdout.splitlines() if line.count("0.333") == 3]
    assert len(rows) == 13


def test_a_long_list_of_hubs_is_cut_short() -> None:
    assert "... and 60 more hubs" in run("network", "--hubs", 100).stdout


def test_an_h_that_does_not_connect_the_hubs_has_no_bound(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "H.txt", np.eye(5))
    result = run("network", "--mixing", tmp_path / "H.txt")
    assert result.exit_code == 0
    assert "zeta is 1" in result.stdout
    assert "Bound" not in result.stdout


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_a_saved_network_is_the_same_when_read(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"network{suffix}"
    first = run_json(*ARGUMENTS, "--rates", "0.6,0.7,0.8,0.9,1,1,1,1", "--save", path)
    assert run_json(path) == first
    np.testing.assert_array_equal(HubNetwork.load(path).w, range(1, 9))


def test_the_seed_determines_the_random_graph() -> None:
    one, two = (run_json("--hubs", 12, "--graph", "erdos-renyi", "--seed", s) for s in (1, 2))
    assert one["hubs"] != two["hubs"]
    expected = HubNetwork.build(hubs=12, graph="erdos-renyi", seed=1)
    assert [h["degree"] for h in one["hubs"]] == [expected.graph.degree[d] for d in range(12)]


def test_draw_and_save_write_their_files(tmp_path: Path) -> None:
    drawing, saved = tmp_path / "hubs.png", tmp_path / "network.toml"
    assert run("network", *ARGUMENTS, "--draw", drawing, "--save", saved).exit_code == 0
    assert drawing.read_bytes().startswith(b"\x89PNG")
    assert HubNetwork.load(saved).hubs == 4


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--graph", "torus"], ["'torus'", "ring"]),
        (["--mixing", "magic"], ["'magic'", "metropolis"]),
        (["--rates", "1.5"], ["rates[0] = 1.5", "at most 1"]),
        (["--rates", "quick"], ["'quick'", "two-speed"]),
        (["--weights", "1,2"], ["weights of shape (2,)", "20 workers"]),
        (["--weights", "heavy"], ["'heavy'", "'equal'"]),
        (["--workers-per-hub", "2,x"], ["--workers-per-hub: 'x'", "whole number"]),
        (["--tau", "0"], ["tau=0", "at least 1"]),
        (["--q", "0"], ["q=0", "at least 1"]),
        (["--hubs", "0"], ["hubs=0", "at least one"]),
        (["--parameters", "0"], ["parameters=0", "at least 1"]),
        (["--L", "-1"], ["L=-1", "L > 0"]),
        (["--slots", "0"], ["slots=0", "at least 1"]),
        (["--step-size", "0"], ["step_size=0", "positive"]),
        (["missing.toml"], ["missing.toml does not exist", "check the path"]),
        (["missing.toml", "--hubs", "3", "--rates", "1"], ["leave out --hubs, --rates"]),
        (["--draw", "hubs.bmp"], ["hubs.bmp", ".png"]),
        (["--save", "network.yaml"], ["network.yaml", ".toml"]),
        (["--save", "no/such/folder/n.toml"], ["No such file", "no/such/folder/n.toml"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(
    arguments: list[str], parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = error_line(run("network", *arguments))
    for part in parts:
        assert part in line
    assert list(tmp_path.iterdir()) == []


def test_the_traceback_option_lets_the_error_through() -> None:
    result = run("--traceback", "network", "--graph", "torus")
    assert isinstance(result.exception, ValueError)


def test_bad_input_of_any_command_is_one_line_and_a_fault_is_not() -> None:
    other = typer.Typer(cls=Commands)

    @other.command()
    def bad_input() -> None:
        raise ValueError("a [bold]value\nin two lines")

    @other.command()
    def fault() -> None:
        raise RuntimeError("a fault")

    line = error_line(runner.invoke(other, ["bad-input"]))
    assert line == "Error: a [bold]value in two lines"
    assert isinstance(runner.invoke(other, ["fault"]).exception, RuntimeError)


def test_version_and_help() -> None:
    assert run("--version").stdout.strip() == f"mll-flower {mll_flower.__version__}"
    assert "network" in run("--help").stdout
    assert "network" in run().output


def test_help_describes_every_argument() -> None:
    # In the text of the command, as some versions of typer do not show the help of an argument.
    group = typer.main.get_command(app)
    for name, command in group.commands.items():
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                argument = (parameter.metavar or parameter.name).upper().rstrip(".")
                assert re.search(rf"\b{argument} (is|are) ", command.help), name
