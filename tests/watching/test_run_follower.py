"""A run's folder, followed while it is written, resumed, replaced and finished."""

from __future__ import annotations

import json
import os
from pathlib import Path

from mll_flower.watching.run_follower import RunFollower, Tail
from mll_flower.watching.run_source import RunSource
from mll_flower.watching.source import rounds_per_minute, stable_pick
from tests.support.run_folders import absent, write_run


def test_a_tail_gives_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "a"
    tail = Tail(path)
    assert tail.new_lines() == (False, [])
    path.write_text("one\ntw")
    assert tail.new_lines() == (False, [b"one"])
    with path.open("a") as file:
        file.write("o\nthree\n")
    assert tail.new_lines() == (False, [b"two", b"three"])
    assert tail.new_lines() == (False, [])


def test_a_tail_notices_a_file_that_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("one\ntwo\n")
    tail = Tail(path)
    tail.new_lines()
    # As long as before and in the same file: only its text tells.
    path.write_text("uno\ndue\ntre\n")
    assert tail.new_lines() == (True, [b"uno", b"due", b"tre"])
    path.write_text("uno\n")
    assert tail.new_lines() == (True, [b"uno"])
    other = tmp_path / "b"
    other.write_text("uno\nsecond\n")
    os.replace(other, path)
    assert tail.new_lines() == (True, [b"uno", b"second"])
    path.unlink()
    assert tail.new_lines() == (True, [])
    assert tail.new_lines() == (False, [])


def cut(path: Path, rows: int) -> str:
    """Make a finished run's folder that of a run that has written so many rows; return the rest."""
    result = json.loads((path / "metrics.json").read_text())
    for worker in result["workers"]:
        worker["steps"] = None
    (path / "unfinished.json").write_text(json.dumps({**result, "absences": []}))
    (path / "metrics.json").unlink()
    lines = (path / "metrics.csv").read_text().splitlines(keepends=True)
    (path / "metrics.csv").write_text("".join(lines[: rows + 1]))
    return "".join(lines[rows + 1 :])


def test_a_run_from_its_claim_to_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    source = RunSource(folder)
    view = source.look()
    assert view is not None
    assert (view.phase, view.status) == ("waiting", f"No run has begun in {folder} yet.")
    assert source.look() is None

    made = write_run(tmp_path / "made", rounds=8, absences=[absent(3, 1, 2, "raised", "<b>flat")])
    result = (made / "metrics.json").read_text()
    rest = cut(made, 9)
    folder.mkdir()
    (folder / "config.json").write_text((made / "config.json").read_text())
    assert source.look().status == "The run is starting."  # type: ignore[union-attr]

    for name in ("unfinished.json", "metrics.csv"):
        (folder / name).write_text((made / name).read_text())
    event = {"event": "absent", **absent(3, 1, 2, "raised", "<b>flat")}
    (folder / "events.jsonl").write_text(json.dumps(event) + '\n{"event": "abs')
    view = source.look()
    assert view is not None
    assert (view.phase, view.done, view.total) == ("running", 8, 32)
    # Every round lasts half a second.
    assert view.status == "Running: slot 8 of 32, round 2, about 3 s left"
    assert "rounds per minute</dt><dd>120<" in view.parts["tiles"]
    assert view.moving["frames"]["absent"] == [[], [], [3]]
    assert "&lt;b&gt;flat" in view.parts["absences"]
    assert source.look() is None

    with (folder / "metrics.csv").open("a") as file:
        file.write(rest)
    view = source.look()
    assert view is not None
    assert len(view.moving["frames"]["round"]) == 9
    assert view.still["workers"][0]["steps"] is None

    (folder / "metrics.json").write_text(result)
    (folder / "unfinished.json").unlink()
    view = source.look()
    assert view is not None
    assert (view.phase, view.done) == ("finished", 32)
    assert view.status == "Finished: slot 32 of 32, round 8, after 4 s"
    assert view.still["workers"][0]["steps"] == 16


def test_a_run_that_is_interrupted_and_resumed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", rounds=8)
    rest = cut(folder, 17)
    rows = (folder / "metrics.csv").read_text()
    started = (folder / "unfinished.json").read_text()
    source = RunSource(folder)
    view = source.look()
    assert view is not None
    assert view.moving["frames"]["round"] == [0, 1, 2, 3, 4]
    stopped = json.loads(started)
    for worker in stopped["workers"]:
        worker["steps"] = 3
    (folder / "unfinished.json").write_text(json.dumps(stopped))
    view = source.look()
    assert view is not None
    assert view.phase == "stopped"
    assert "`mll-flower resume` goes on with it" in view.status
    # It goes on from an earlier checkpoint, later than before, and is ahead at the next look.
    (folder / "unfinished.json").write_text(started)
    earlier = rows.splitlines(keepends=True)[:14]
    again = [line.replace(",0,", ",0,1", 1) for line in rows.splitlines(keepends=True)[14:]]
    (folder / "metrics.csv").write_text("".join([*earlier, *again]) + rest)
    view = source.look()
    assert view is not None
    assert view.phase == "running"
    assert view.moving["frames"]["round"] == list(range(9))


def test_a_broken_row_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", rounds=2)
    with (folder / "metrics.csv").open("a") as file:
        file.write("what,is,this\n")
    follower = RunFollower(folder)
    follower.look()
    assert follower.rounds == 2


def test_points_that_are_shown_stay_as_a_run_grows() -> None:
    assert list(stable_pick(5, 10)) == [0, 1, 2, 3, 4]
    before: set[int] = set()
    for number in range(1, 3000):
        chosen = list(stable_pick(number, 100))
        assert len(chosen) <= 101
        assert (chosen[0], chosen[-1]) == (0, number - 1)
        if len(chosen) > len(before):
            assert before - {number - 2} <= set(chosen)
        before = set(chosen)


def test_rounds_per_minute_are_those_of_the_last_minute() -> None:
    assert rounds_per_minute([1], [1.0]) is None
    assert rounds_per_minute([1, 1], [1.0, 1.0]) is None
    assert rounds_per_minute([0, 10, 20], [0.0, 100.0, 160.0]) == 10
    assert rounds_per_minute([0, 10], [0.0, 600.0]) == 1
