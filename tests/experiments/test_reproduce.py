"""A figure from its runs to its files, the cache of runs, and ``python -m experiments``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments import command, document
from experiments.command import app
from experiments.drawing import draw_figure
from experiments.figures import FIGURES, Figure, figures
from experiments.reproduce import Outcome, plan, reproduce
from experiments.summary import summarise
from mll_flower.results import files
from mll_flower.sweeps.cache import is_finished, run_folder
from mll_flower.sweeps.curves import finished_curves
from mll_flower.sweeps.runner import Job, play_all
from mll_flower.sweeps.verdicts import FAILS, HOLDS, OPEN

TINY = {"dataset": "digits", "slots": 64, "evaluate-every": 32, "evaluate-limit": 200}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Figure], Outcome]:
    """Make a figure from real runs on the digits; one run fails at first."""
    out = tmp_path_factory.mktemp("reproduce")
    chosen = figures("tau-q", "logistic", seeds=2, overrides=TINY)
    jobs = plan(chosen, out, "", measured=False)
    assert len(jobs) == 8
    broken = Job(replace(jobs[0].config, dataset="npz:/nowhere.npz"), out / "runs" / "broken")
    failures = play_all([broken, *jobs[:3]], 1)
    assert list(failures) == [broken.folder]
    assert "nowhere.npz" in failures[broken.folder]
    assert all(is_finished(job.folder) for job in jobs[:3])
    rest = plan(chosen, out, "", measured=False)
    assert {job.folder for job in rest} == {job.folder for job in jobs[3:]}
    return out, chosen, reproduce(chosen, rest, out, 1, "python -m experiments tau-q")


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
    run = json.loads((run_folder(out, figure.setups[1].config(1)) / files.METRICS).read_text())
    last = [r.split(",") for r in rows if r.startswith("local,1,64,")]
    assert float(last[0][4]) == pytest.approx(run["summary"]["loss"], rel=1e-5)
    assert {v["verdict"] for v in summary["verdicts"]} <= {HOLDS, FAILS, OPEN}
    nearer = [c for c in figure.claims if c.kind == "nearer"]
    assert len(summary["closed"]) == len(nearer) > 0
    of_claim = next(v for v in summary["verdicts"] if v["claim"] == nearer[0].text)
    assert summary["closed"][0]["after"][0] == of_claim["left_mean"]
    assert summary["closed"][0]["before"][0] == of_claim["right_mean"]
    loss = {s["name"]: s["loss"][0] for s in summary["setups"]}
    first = summary["verdicts"][0]
    assert (first["left_mean"], first["right_mean"]) == (loss["tau8-q4"], loss["local"])
    assert first["margin"] == pytest.approx(loss["local"] - loss["tau8-q4"])


def test_at_the_papers_scale_the_end_and_the_other_rule_are_shown(
    tiny: tuple[Path, list[Figure], Outcome], tmp_path: Path
) -> None:
    out, (figure,), outcome = tiny
    paper = replace(figure, scale="paper")
    found = finished_curves(figure.setups, range(2), out)
    assert outcome.summaries[0]["other_rule"] == []
    assert len(summarise(paper, found, "", 2)["other_rule"]) == len(figure.claims)
    small = draw_figure(figure, found, tmp_path / "small.png")
    with_the_end = draw_figure(paper, found, tmp_path / "paper.png")
    assert _width(with_the_end) == pytest.approx(1.5 * _width(small), rel=0.01)


def _width(png: Path) -> int:
    return int.from_bytes(png.read_bytes()[16:20])


def test_runs_that_exist_are_not_run_again(tiny: tuple[Path, list[Figure], Outcome]) -> None:
    out, chosen, _ = tiny
    before = {path: path.stat().st_mtime_ns for path in out.glob(f"runs/*/{files.METRICS}")}
    assert len(before) == 8
    options = [f"--set={key}={value}" for key, value in TINY.items()]
    result = CliRunner().invoke(
        app, ["tau-q", "--model=logistic", "--seeds=2", f"--out={out}", *options]
    )
    assert result.exit_code == 0, result.output
    assert "8 runs, 0 to play" in " ".join(result.output.split())
    assert {path: path.stat().st_mtime_ns for path in out.glob(f"runs/*/{files.METRICS}")} == before
    assert plan(chosen, out, "") == []


def test_a_dry_run_estimates_each_figures_time(
    tiny: tuple[Path, list[Figure], Outcome],
) -> None:
    out, _, _ = tiny
    options = [f"--set={key}={value}" for key, value in TINY.items()]
    # Two seeds of tau-q have been played; the two more that are asked for have not.
    arguments = ["tau-q", "--model=logistic", "--seeds=4", "--jobs=1", f"--out={out}"]
    result = CliRunner().invoke(app, [*arguments, "--dry-run", *options])
    assert result.exit_code == 0, result.output
    assert "16 runs, 8 to play: about" in " ".join(result.output.split())
    row = next(line for line in result.output.splitlines() if "logistic" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")][:4] == [
        *("tau-q", "logistic", "16", "8")
    ]
    assert len(list(out.glob(f"runs/*/{files.METRICS}"))) == 8


def test_the_document_is_the_same_for_the_same_results(
    tiny: tuple[Path, list[Figure], Outcome], tmp_path: Path
) -> None:
    out, (figure,), _ = tiny
    kept = tmp_path / "kept"
    text = document.write(out, tmp_path / "a", kept).read_text()
    assert document.write(out, tmp_path / "b", kept).read_text() == text
    # Also when the runs' own folder is gone: the summaries are kept.
    assert document.write(tmp_path / "gone", tmp_path / "a", kept).read_text() == text
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
    assert "0.3238 (evaluation 1000)" in text  # Local SGD's last published loss
    assert "path of 3 | 0.333 / 0.333 | 0.200 / 0.400" in text
    with pytest.raises(ValueError, match="python -m experiments FIGURE first"):
        document.write(tmp_path, tmp_path / "c", tmp_path / "nothing")


def test_an_unfinished_batch_shows_the_seeds_that_all_setups_have(
    tiny: tuple[Path, list[Figure], Outcome], tmp_path: Path
) -> None:
    out, _, _ = tiny
    part = tmp_path / "out"
    shutil.copytree(out / "runs", part / "runs")
    chosen = figures("tau-q", "logistic", seeds=3, overrides=TINY)
    shutil.rmtree(run_folder(part, chosen[0].setups[2].config(0)))
    options = [f"--set={key}={value}" for key, value in TINY.items()]
    arguments = ["tau-q", "--model=logistic", "--seeds=3", f"--out={part}", "--finished"]
    result = CliRunner().invoke(app, [*arguments, *options])
    assert result.exit_code == 0, result.output
    output = " ".join(result.output.split())
    assert "small, 1 of 3 seeds" in output
    assert "one seed shows no spread" in " ".join(output.replace("│", " ").split())
    summary = json.loads((part / f"{chosen[0].key}.json").read_text())
    assert (summary["seeds"], summary["planned"]) == ([1], 3)
    text = document.write(part, tmp_path / "docs", tmp_path / "kept").read_text()
    assert "| small | 1 of 3 |" in text
    assert "seed 1 (3 are planned)" in text
    shutil.rmtree(run_folder(part, chosen[0].setups[2].config(1)))
    result = CliRunner().invoke(app, [*arguments, *options])
    assert "no seed has ended in all set-ups" in result.output


def test_help_names_every_figure() -> None:
    # As a user starts it: the package is found without any change of the path.
    run = subprocess.run(
        [sys.executable, "-m", "experiments", "--help"],
        cwd=Path(document.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    text = " ".join(run.stdout.split())
    assert "Usage: python -m experiments [OPTIONS] FIGURE" in text
    assert f"FIGURE is {', '.join(FIGURES)}, or all." in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["figure-7"], "figure 'figure-7' is not known"),
        (["zeta", "--model", "resnet18"], "figure 'zeta' has no model 'resnet18'"),
        (["hubs", "--set", "tau"], "--set 'tau': give KEY=VALUE"),
    ],
)
def test_errors_of_input_are_one_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: {message}")
    assert len(result.stderr.splitlines()) == 1
    error = CliRunner().invoke(app, [*arguments, "--traceback"]).exception
    assert isinstance(error, ValueError)


def test_the_command_is_recorded_without_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = ["--out=/x", "--data-dir", "/y"]
    monkeypatch.setattr(sys, "argv", ["x", "all", *folders, "--jobs", "2", "--use-kept", "--keep"])
    assert command._typed_command() == "python -m experiments all --jobs 2"
