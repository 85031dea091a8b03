"""Who gets an output folder, and what is left in it of an earlier run."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mll_flower.results import output_folder
from mll_flower.results.output_folder import (
    claim_output,
    new_output,
    release_output,
    remove_end,
)
from tests.support.run_folders import write_run

CONFIG = {"seed": 1}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_one_of_many_gets_a_folder(tmp_path: Path) -> None:
    start, got = threading.Barrier(8), []

    def claim(seed: int) -> None:
        start.wait()
        try:
            claim_output(tmp_path / "a", {"seed": seed})
        except ValueError:
            return
        got.append(seed)

    threads = [threading.Thread(target=claim, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1
    assert (tmp_path / "a" / "config.json").read_text() == f'{{"seed": {got[0]}}}'


def test_runs_of_the_same_second_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    class Clock(output_folder.datetime):
        @classmethod
        def now(cls, tz: object = None) -> Clock:
            return cls(2030, 1, 2, 3, 4, 5)

    monkeypatch.setattr(output_folder, "datetime", Clock)
    folders = [new_output() for _ in range(3)]
    assert [folder.name for folder in folders] == [
        "20300102-030405",
        "20300102-030405-2",
        "20300102-030405-3",
    ]
    assert all(folder.is_dir() and folder.is_absolute() for folder in folders)


def test_a_folder_that_holds_a_run_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    before = {p.name: p.read_bytes() for p in path.iterdir()}
    with pytest.raises(ValueError, match=r"a' holds a run: give another folder, .*overwrite.*res"):
        claim_output(path, CONFIG)
    with pytest.raises(ValueError, match="holds a run"):
        claim_output(path, CONFIG, strict=False)
    (path / "config.json").unlink()  # its rows are still those of a run
    with pytest.raises(ValueError, match="holds a run"):
        claim_output(path, CONFIG)
    del before["config.json"]
    assert {p.name: p.read_bytes() for p in path.iterdir()} == before


def test_overwriting_leaves_nothing_of_the_old_run_but_other_files(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    for folder in ("plots", "tensorboard"):
        (path / folder).mkdir()
        (path / folder / "old").touch()
    for name in ("report.html", "model.safetensors", "checkpoint.safetensors", "notes.txt"):
        (path / name).touch()
    claim_output(path, CONFIG, overwrite=True)
    assert names(path) == {"config.json", "notes.txt"}


@pytest.mark.parametrize("resume", ["a", "a/checkpoint.safetensors"])
def test_a_run_may_go_on_in_its_own_folder(tmp_path: Path, resume: str) -> None:
    path = write_run(tmp_path / "a")
    for name in ("report.html", "checkpoint.safetensors"):
        (path / name).touch()
    before = names(path)
    claim_output(path, CONFIG, str(tmp_path / resume))
    assert names(path) == before  # the checkpoint may turn out to be one of another run
    remove_end(path)
    # The report and metrics.json would be those of another end than the run will have.
    assert names(path) == {"config.json", "metrics.csv", "checkpoint.safetensors"}
    with pytest.raises(ValueError, match="holds a run"):
        claim_output(write_run(tmp_path / "b"), CONFIG, str(path))


def test_the_app_takes_over_the_claim_of_its_command(tmp_path: Path) -> None:
    claim_output(tmp_path / "a", CONFIG)
    claim_output(tmp_path / "a", CONFIG, strict=False)
    with pytest.raises(ValueError, match="holds a run"):
        claim_output(tmp_path / "a", {"seed": 2}, strict=False)
    with pytest.raises(ValueError, match="holds a run"):
        claim_output(tmp_path / "a", CONFIG)


def test_a_run_that_wrote_nothing_gives_its_folder_back(tmp_path: Path) -> None:
    claim_output(tmp_path / "a", CONFIG)
    release_output(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    claim_output(tmp_path / "a", CONFIG)
    (tmp_path / "a" / "notes.txt").touch()
    release_output(tmp_path / "a")
    assert names(tmp_path / "a") == {"notes.txt"}
    release_output(write_run(tmp_path / "b"))
    assert "config.json" in names(tmp_path / "b")


def test_a_claim_whose_engine_was_decided_since_is_taken_over(tmp_path: Path) -> None:
    claim_output(tmp_path / "a", {"seed": 1, "engine": "auto"})
    claim_output(tmp_path / "a", {"seed": 1, "engine": "compiled"}, strict=False)
    with pytest.raises(ValueError, match="holds a run"):
        claim_output(tmp_path / "a", {"seed": 2, "engine": "compiled"}, strict=False)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file/x' cannot be written \(Not a directory\): give"):
        claim_output(tmp_path / "file" / "x", {"seed": 1})
