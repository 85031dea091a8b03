"""``mll-flower plot``, ``compare`` and ``report``."""

from __future__ import annotations

import csv
import math
import re
import webbrowser
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mll_flower.cli import app
from tests.support.run_folders import write_run


def call(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, [str(a) for a in arguments])


def test_plot_draws_a_curve_per_run(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name) for name in ("a", "b")]
    out = tmp_path / "p.svg"
    result = call(
        "plot", *runs, "--x", "steps", "--y", "loss", "--out", out, "--labels", "one,two", "--log-y"
    )
    assert result.exit_code == 0, result.output
    assert f"wrote {out}" in result.output
    drawn = out.read_text()
    for text in ("one", "two", "training loss", "gradient steps of all workers"):
        assert f"<!-- {text} -->" in drawn


def test_labels_given_one_by_one_may_contain_commas(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name) for name in ("a", "b")]
    out = tmp_path / "p.svg"
    result = call("plot", *runs, "--labels", "tau 8, q 4", "--labels", "tau 32, q 1", "--out", out)
    assert result.exit_code == 0, result.output
    assert "<!-- tau 8, q 4 -->" in out.read_text()


def test_compare_prints_and_writes_a_table(tmp_path: Path) -> None:
    write_run(tmp_path / "quick", rounds=8)
    write_run(tmp_path / "slow", rounds=3, losses=[2, 1, 1.5, math.nan], preset="local-sgd")
    table, figure = tmp_path / "t.csv", tmp_path / "p.png"
    result = call(
        *("compare", tmp_path / "quick", tmp_path / "slow", "--target", 0.8),
        *("--csv", table, "--out", figure),
    )
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert [
        "quick",
        "mll-sgd",
        "4",
        "2",
        "ring",
        "0",
        "0.2222",
        "0.2222",
        "0.8889",
        "0.8889",
        "32",
    ] in lines
    assert ["slow", "local-sgd", "4", "2", "ring", "0", "nan", "1", "0.75", "0.75", "12"] in lines
    printed = " ".join(result.output.split())
    assert "These runs end at different slots" in printed
    assert "Diverged: slow." in printed
    assert ["quick", "32", "0.008", "MB", "4"] in lines
    assert ["slow", "never", "never", "never"] in lines
    with table.open() as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    assert float(rows["slow"]["best_loss"]) == 1
    assert (rows["quick"]["slots_to_target"], rows["quick"]["bytes_to_target"]) == ("32", "8000")
    assert rows["slow"]["slots_to_target"] == ""
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_compare_fits_a_terminal_and_warns_of_different_data_and_unfinished_runs(
    tmp_path: Path,
) -> None:
    write_run(tmp_path / "[red]a", dataset="mnist")
    (write_run(tmp_path / "b") / "metrics.json").unlink()
    runs = ("compare", tmp_path / "[red]a", tmp_path / "b")
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [str(a) for a in runs])
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    printed = " ".join(result.output.split())
    assert "[red]a" in printed
    assert "different data (digits, mnist)" in printed
    assert "Not finished: b." in printed
    assert "slots" not in printed


def test_compare_skips_what_is_no_run_and_shows_the_settings_that_differ(tmp_path: Path) -> None:
    write_run(tmp_path / "a", partition="iid", seed=1)
    write_run(tmp_path / "b", partition="shards(2)", seed=1, pool="worker")
    (tmp_path / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    result = call("compare", *sorted(tmp_path.iterdir()))
    assert result.exit_code == 0, result.output
    settings = result.output.partition("Settings that differ")[2].splitlines()
    assert [line.split() for line in settings if line.strip()][:4:2] == [
        ["run", "partition"],
        ["a", "iid"],
    ]
    assert "shards(2)" in result.output
    assert "pool" not in result.output  # it changes no number
    printed = result.output.replace("\n", "")
    assert "Skipped, as they are no runs" in printed
    assert f"{tmp_path / 'empty'}, {tmp_path / 'notes.txt'}." in printed


def test_seeds_of_one_setting_are_one_row(tmp_path: Path) -> None:
    for seed, last in ((1, 0.2), (2, 0.4), (3, 0.6)):
        write_run(tmp_path / f"a{seed}", rounds=1, losses=[2, last], seed=seed, output=str(seed))
    write_run(tmp_path / "b", rounds=1, losses=[2, 0.3], seed=1, model="cnn")
    table = tmp_path / "t.csv"
    runs = [tmp_path / name for name in ("a1", "a2", "a3", "b")]
    result = call("compare", *runs, "--csv", table)
    assert result.exit_code == 0, result.output
    # Half of the interval: 4.303 (Student's t with two degrees of freedom) times 0.2 / sqrt(3).
    assert "0.4 ± 0.5" in result.output
    assert "3 seeds" in result.output
    assert "a2" not in result.output
    assert len(table.read_text().splitlines()) == 5  # the file has every run
    labelled = call("compare", *runs, "--labels", "one,two,three,four")
    assert "±" not in labelled.output
    assert "three" in labelled.output


def test_report_writes_a_page_and_opens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_page(url: str) -> bool:
        opened.append(url)
        return len(opened) == 1

    monkeypatch.setattr(webbrowser, "open", open_page)
    path = write_run(tmp_path / "a")
    result = call("report", path)
    assert result.exit_code == 0, result.output
    assert (path / "report.html").read_text().startswith("<!doctype html>")
    assert opened == []
    out = tmp_path / "r.html"
    assert call("report", path, "--out", out, "--open").exit_code == 0
    assert opened == [out.as_uri()]
    assert "open the file by hand" in call("report", path, "--open").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plot", "nowhere"), "nowhere is not a folder: give the output of a run"),
        (("compare", "."), r"\. is not a run's output .* it contains runs, such as a"),
        (("report", "sub/b"), "has not finished"),
        (("plot", "a", "--out", "x.jpg"), r"x\.jpg: a figure's name must end in one of"),
        (("plot", "a", "--labels", "x", "--labels", "y"), "2 labels for 1 runs"),
        (("compare", "a", "--target", "80"), r"--target 80\.0: give an accuracy above 0"),
        (("report", "a", "--out", "x.pdf"), r"x\.pdf: a report's name must end in \.html"),
        (("report", "a", "--out", "no/x.html"), r"No such file or directory"),
    ],
)
def test_errors_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a")
    (write_run(tmp_path / "sub/b") / "metrics.json").unlink()
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.output.startswith("Error: ")
    assert re.search(message, result.output), result.output
    assert len(result.output.splitlines()) == 1


def write_run_with_metric(folder: Path, metric: str) -> Path:
    """Write a run whose metric has another name than accuracy."""
    write_run(folder)
    rows = (folder / "metrics.csv").read_text()
    (folder / "metrics.csv").write_text(rows.replace("accuracy", metric, 1))
    (folder / "metrics.json").write_text(
        (folder / "metrics.json").read_text().replace('"accuracy"', f'"{metric}"')
    )
    return folder


def test_another_metric_is_shown_by_its_name(tmp_path: Path) -> None:
    run = write_run_with_metric(tmp_path / "a", "mse")
    result = call("compare", run, "--target", 3.5, "--csv", tmp_path / "t.csv")
    assert result.exit_code == 0, result.output
    assert re.search(r"loss +best +mse +best", result.output)
    assert "To reach a mse of 3.5" in result.output
    with (tmp_path / "t.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert float(row["best_mse"]) == 0  # the lowest: write_run's metric rises from 0
    assert float(row["final_mse"]) > 0.5
    assert row["slots_to_target"] == "0"
    result = call("plot", run, "--out", tmp_path / "p.svg")
    assert "<!-- test mse -->" in (tmp_path / "p.svg").read_text()
    both = call("compare", run, write_run(tmp_path / "b"), "--out", tmp_path / "q.svg")
    assert re.search(r"loss +best +metric +best", both.output)
    assert "<!-- test mse or test accuracy -->" in (tmp_path / "q.svg").read_text()
