"""Runs that the repository keeps: packed, unpacked, and the source of the kept results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments import command, document, kept_runs
from experiments.figures import FIGURES, Figure, figures
from experiments.kept_runs import KEPT, keep, restore
from experiments.reproduce import plan
from experiments.summary import save, summarise
from mll_flower.results.runs import load_run
from mll_flower.sweeps.cache import run_folder
from mll_flower.sweeps.curves import finished_curves
from mll_flower.sweeps.runner import play_all

TINY = {"dataset": "digits", "slots": 32, "evaluate-every": 32, "evaluate-limit": 100}
SETTINGS = [f"--set={key}={value}" for key, value in TINY.items()]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Figure]]:
    """Play the first seed of a figure on the digits."""
    out = tmp_path_factory.mktemp("played")
    chosen = figures("tau-q", "logistic", seeds=1, overrides=TINY)
    jobs = plan(chosen, out, str(out / "data"), measured=False)
    assert play_all(jobs, 1) == {}
    return out, chosen


def test_a_kept_run_is_the_run_without_the_machines_folders(
    played: tuple[Path, list[Figure]], tmp_path: Path
) -> None:
    out, chosen = played
    assert keep(chosen, out, tmp_path / "kept") == 4
    assert keep(chosen, out, tmp_path / "kept") == 0
    assert restore(chosen, tmp_path / "new", tmp_path / "kept") == 4
    assert restore(chosen, tmp_path / "new", tmp_path / "kept") == 0
    for setup in chosen[0].setups:
        ours, theirs = (load_run(run_folder(o, setup.config(0))) for o in (out, tmp_path / "new"))
        assert theirs.evaluations == ours.evaluations
        assert theirs.hub_rows == ours.hub_rows
        assert theirs.end["network"] == ours.end["network"]
        assert ours.config["output"] != theirs.config["output"] == ""
        assert not any(str(out) in p.read_text() for p in theirs.path.iterdir())
    assert {p.name for p in (tmp_path / "new").rglob("*")}.isdisjoint({"playing.lock"})


def test_the_same_run_is_kept_in_the_same_bytes(
    played: tuple[Path, list[Figure]], tmp_path: Path
) -> None:
    out, chosen = played
    for place in ("a", "b"):
        keep(chosen, out, tmp_path / place)
    assert len(list((tmp_path / "a").iterdir())) == 4
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_a_run_of_the_folder_is_not_replaced(
    played: tuple[Path, list[Figure]], tmp_path: Path
) -> None:
    out, chosen = played
    keep(chosen, out, tmp_path / "kept")
    for path in (tmp_path / "kept").iterdir():
        path.write_bytes(b"never read")
    assert restore(chosen, out, tmp_path / "kept") == 0


def test_a_damaged_file_is_named_and_leaves_nothing_behind(
    played: tuple[Path, list[Figure]], tmp_path: Path
) -> None:
    out, chosen = played
    keep(chosen, out, tmp_path / "kept")
    first = tmp_path / "kept" / f"{run_folder(out, chosen[0].setups[0].config(0)).name}.zip"
    for damaged in (b"rubbish", first.read_bytes()[:-30]):
        first.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"{first.name} is not a kept run"):
            restore(chosen, tmp_path / "new", tmp_path / "kept")
        assert list((tmp_path / "new" / "runs").iterdir()) == []


def test_the_command_keeps_runs_and_goes_on_from_them(
    played: tuple[Path, list[Figure]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = played
    kept = tmp_path / "kept"
    monkeypatch.setattr(command, "keep", lambda f, o: kept_runs.keep(f, o, kept))
    monkeypatch.setattr(command, "restore", lambda f, o: kept_runs.restore(f, o, kept))
    common = ["tau-q", "--model=logistic", "--finished", *SETTINGS]
    first = CliRunner().invoke(command.app, [*common, f"--out={out}", "--seeds=1", "--keep"])
    assert first.exit_code == 0, first.output
    assert "4 more runs are kept." in first.output
    more = [*common, "--seeds=2", f"--out={tmp_path / 'new'}"]
    # Nobody who wants to play the runs gets ours without asking.
    assert "no seed has ended" in CliRunner().invoke(command.app, more).output
    second = CliRunner().invoke(command.app, [*more, "--use-kept"])
    assert second.exit_code == 0, second.output
    assert "4 kept runs were added" in second.output
    assert "small, 1 of 2 seeds" in " ".join(second.output.split())


def test_every_kept_run_belongs_to_a_figure() -> None:
    chosen = [figure for name in FIGURES for figure in figures(name, scale="paper")]
    names = {
        run_folder(KEPT, s.config(i)).name for f in chosen for s in f.setups for i in range(10)
    }
    assert {path.stem for path in KEPT.glob("*")} <= names


@pytest.mark.parametrize(
    "summary",
    [s for s in document.load(document.RESULTS) if s["scale"] == "paper"],
    ids=lambda s: f"{s['figure']}-{s['model']}",
)
def test_kept_results_are_those_of_the_kept_runs(summary: dict[str, Any], tmp_path: Path) -> None:
    (figure,) = figures(summary["figure"], summary["model"], "paper", summary["planned"])
    restore([figure], tmp_path)
    found = finished_curves(figure.setups, range(figure.seeds), tmp_path)
    if not any(found.values()):
        pytest.skip("its runs are not kept")
    save(summarise(figure, found, summary["command"], summary["cores"]), tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text()) == summary
