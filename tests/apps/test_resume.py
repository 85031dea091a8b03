"""A run that is resumed from a checkpoint ends as if it had never been interrupted."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mll_flower.models.checkpoint import FILE, CheckpointTimes, load_checkpoint
from tests.support.faulty_workers import Fault, faulty
from tests.support.simulated import Results, play


class Interrupted(Exception):
    """Stands for anything that ends a run early."""


def interrupt_after(messages: int):
    left = iter(range(messages - 1))

    def count() -> None:
        if next(left, None) is None:
            raise Interrupted

    return count


def interrupted(output: Path, messages: int, **settings) -> Path:
    with pytest.raises(Interrupted):
        play(output, on_message=interrupt_after(messages), **settings)
    return output


def assert_same_end(resumed: Results, whole: Results) -> None:
    assert resumed.same_model(whole)
    assert resumed.timeless == whole.timeless
    a, b = resumed.report, whole.report
    for report in (a, b):
        del report["config"]["resume"], report["config"]["output"]
        for part in (*report["evaluations"], report["summary"]):
            for key in [k for k in part if "seconds" in k]:
                del part[key]
    assert a == b


class TestResume:
    @pytest.mark.parametrize(
        ("settings", "messages"),
        [
            ({}, 5),
            ({}, 4),  # right after a mixing, whose evaluation must not be lost
            ({"pool": "hub"}, 3),
            ({"model": "mlp", "momentum": 0.9, "lr_milestones": "0.3,0.8"}, 6),
            ({"model": "cnn", "pool": "hub", "slots": 16}, 2),
            ({"evaluate_every": 4, "pool": "hub"}, 7),
            ({"evaluate_every": 12, "slots": 48, "q": 4}, 7),
            ({"checkpoint_every": 2, "slots": 48}, 7),
            ({"preset": "hl-sgd", "graph": "star", "slots": 300}, 5),
            ({"preset": "local-sgd", "slots": 300, "pool": "hub"}, 3),
            ({"hubs": 1, "workers_per_hub": "4", "pool": "hub"}, 3),
        ],
        ids=str,
    )
    def test_it_ends_where_the_whole_run_ends(self, tmp_path, settings, messages):
        settings = {"checkpoint_every": 1, "slots": 32, **settings}
        whole = play(tmp_path / "whole", **settings)
        part = interrupted(tmp_path / "part", messages, **settings)
        assert 0 < load_checkpoint(part).round < whole.report["summary"]["rounds"]
        assert_same_end(play(tmp_path / "rest", resume=str(part), **settings), whole)

    def test_from_the_checkpoint_file_into_the_same_output(self, tmp_path):
        settings = {"checkpoint_every": 1, "slots": 32}
        whole = play(tmp_path / "whole", **settings)
        part = interrupted(tmp_path / "part", 5, **settings)
        assert_same_end(play(part, resume=str(part / FILE), **settings), whole)

    def test_a_run_can_be_resumed_twice(self, tmp_path):
        settings = {"checkpoint_every": 1, "slots": 48}
        whole = play(tmp_path / "whole", **settings)
        first = interrupted(tmp_path / "first", 3, **settings)
        second = interrupted(tmp_path / "second", 5, resume=str(first), **settings)
        assert load_checkpoint(second).round == 6
        assert_same_end(play(tmp_path / "third", resume=str(second), **settings), whole)

    def test_absences_are_remembered(self, tmp_path):
        settings = {"checkpoint_every": 1, "slots": 32}
        faults = faulty(Fault.NAN, lambda i, r: i == 3 and r in (2, 7))
        whole = play(tmp_path / "whole", **settings, **faults)
        part = interrupted(tmp_path / "part", 5, **settings, **faults)
        resumed = play(tmp_path / "rest", resume=str(part), **settings, **faults)
        assert [a["round"] for a in resumed.report["absences"]] == [2, 7]
        assert_same_end(resumed, whole)

    def test_a_run_that_had_ended_gives_the_same_results(self, tmp_path):
        whole = play(tmp_path / "whole", checkpoint_every=1)
        again = play(tmp_path / "again", checkpoint_every=1, resume=str(whole.folder))
        assert_same_end(again, whole)

    def test_a_run_that_was_killed_can_be_resumed(self, tmp_path):
        """A real SIGKILL between two checkpoints, so that nothing is flushed."""
        whole = play(tmp_path / "whole", checkpoint_every=1, slots=32)
        code = (
            "import os, signal, sys, itertools, pathlib\n"
            "from tests.support.simulated import play\n"
            "count = itertools.count(1)\n"
            "def die():\n"
            "    if next(count) == 5: os.kill(os.getpid(), signal.SIGKILL)\n"
            "play(pathlib.Path(sys.argv[1]), on_message=die, checkpoint_every=1, slots=32)\n"
        )
        part = tmp_path / "part"
        ended = subprocess.run(
            [sys.executable, "-c", code, str(part)],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
        )
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        assert not (part / "model.safetensors").exists()
        resumed = play(tmp_path / "rest", checkpoint_every=1, slots=32, resume=str(part))
        assert_same_end(resumed, whole)

    @pytest.mark.parametrize(
        ("other", "named"),
        [
            ({"seed": 6}, "seed=5, this run has 6"),
            ({"learning_rate": 0.3}, "learning-rate=0.2, this run has 0.3"),
            (
                {"slots": 16},
                "slots=32, this run has 16: use the same config (a run can be extended",
            ),
            ({"slots": 64, "lr_milestones": "0.5"}, "slots=32, this run has 64"),
            ({"graph": "complete"}, "graph='path', this run has 'complete'"),
            ({"pool": "hub"}, "pool='worker', this run has 'hub'"),
            ({"preset": "fedavg-deadline"}, "preset='mll-sgd', this run has 'fedavg-deadline'"),
        ],
        ids=str,
    )
    def test_another_config_is_an_error(self, tmp_path, other, named):
        settings = {"checkpoint_every": 1, "slots": 32}
        settings |= {key: other[key] for key in other if key == "lr_milestones"}
        part = interrupted(tmp_path / "part", 3, **settings)
        with pytest.raises(ValueError, match="use the same config") as error:
            play(tmp_path / "rest", resume=str(part), **{**settings, **other})
        assert named in str(error.value)
        assert not (tmp_path / "rest").exists()

    def test_settings_that_change_no_number_may_differ(self, tmp_path):
        whole = play(tmp_path / "whole", checkpoint_every=1, slots=32)
        part = interrupted(tmp_path / "part", 5, checkpoint_every=1, slots=32)
        settings = {"checkpoint_every": 0, "slots": 32, "reply_timeout": 100.0}
        assert play(tmp_path / "rest", resume=str(part), **settings).same_model(whole)
        assert not (tmp_path / "rest" / FILE).exists()

    def test_a_missing_checkpoint_is_an_error(self, tmp_path):
        with pytest.raises(ValueError, match=r"resume='/nowhere/at/all' does not exist: give a"):
            play(tmp_path / "run", resume="/nowhere/at/all")
        without = play(tmp_path / "without", checkpoint_every=0).folder
        with pytest.raises(ValueError, match="the run was made with checkpoint-every=0"):
            play(tmp_path / "run", resume=str(without))

    def test_a_checkpoint_that_was_moved_from_its_run_is_an_error(self, tmp_path):
        part = interrupted(tmp_path / "part", 3, checkpoint_every=1)
        (tmp_path / "alone").mkdir()
        shutil.copy(part / FILE, tmp_path / "alone")
        with pytest.raises(ValueError, match=r"metrics\.csv is not beside the checkpoint"):
            play(tmp_path / "run", checkpoint_every=1, resume=str(tmp_path / "alone"))

    def test_by_default_there_is_a_checkpoint_at_the_end(self, tmp_path):
        run = play(tmp_path / "run", slots=20)  # ends between two mixings
        assert load_checkpoint(run.folder).round == 5 == run.report["summary"]["rounds"]
        assert not (play(tmp_path / "none", checkpoint_every=0).folder / FILE).exists()


class TestExtension:
    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"pool": "hub"},
            {"slots": 20, "pool": "hub"},  # ends between two mixings
            {"preset": "local-sgd", "slots": 200, "pool": "hub"},
            # One message of the longer run would cover more rounds than the shorter one has.
            {"hubs": 1, "workers_per_hub": "3", "slots": 12, "evaluate_every": 16, "pool": "hub"},
        ],
        ids=str,
    )
    def test_a_longer_run_ends_as_if_it_had_been_long_from_the_start(self, tmp_path, settings):
        settings = {"slots": 32, **settings}
        long = {**settings, "slots": 2 * settings["slots"] + 40}
        whole = play(tmp_path / "whole", **long)
        short = play(tmp_path / "short", **settings)
        longer = play(tmp_path / "longer", resume=str(short.folder), **long)
        assert longer.same_model(whole)
        # It has one more evaluation, that at the end of the short run, if none was due there.
        ends = [row for row in longer.evaluations if row in whole.evaluations]
        assert ends == whole.evaluations
        assert longer.report["summary"]["steps"] == whole.report["summary"]["steps"]


class TestCheckpointTimes:
    def test_they_take_less_than_one_percent_of_the_time(self, monkeypatch):
        now, cost, spent = 0.0, 0.3, 0.0
        monkeypatch.setattr("mll_flower.models.checkpoint.time.monotonic", lambda: now)
        times = CheckpointTimes(10_000_000)
        for _ in range(5000):
            now += 0.1
            if times.due():
                with times.measured():
                    now += cost
                    spent += cost
        assert 2 * cost <= spent < 0.01 * now

    def test_small_ones_are_not_written_all_the_time(self, monkeypatch):
        now = 0.0
        monkeypatch.setattr("mll_flower.models.checkpoint.time.monotonic", lambda: now)
        times = CheckpointTimes(100)
        now = 4.9
        assert not times.due()
        now = 5.1
        assert times.due()
