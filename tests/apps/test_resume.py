"""Checkpoints: written whole or not at all; a resumed run ends where it would have ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mll_flower.models import checkpoint as module
from mll_flower.models.checkpoint import FILE, load_checkpoint, save_checkpoint
from mll_flower.models.layout import Layout
from tests.support.simulated import Results, play

ARRAYS = {
    "z.weight": np.arange(6, dtype=np.float32).reshape(2, 3) / 7,
    "a.count": np.array(3, dtype=np.int64),
    "m.bias": np.array([1e-45, -0.0, 3e38], dtype=np.float32),
    "b.exact": np.array([1 / 3], dtype=np.float64),
}
LAYOUT = Layout.of(ARRAYS)


class Interrupted(Exception):
    """Stands for whatever ends a run early."""


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
    assert resumed.lasting == whole.lasting
    a, b = resumed.report, whole.report
    for report in (a, b):
        del report["config"]["resume"], report["config"]["output"]
        for part in (*report["evaluations"], report["summary"]):
            for key in [k for k in part if "seconds" in k]:
                del part[key]
    assert a == b


class TestFile:
    def test_what_was_saved_comes_back_to_the_bit(self, tmp_path):
        one = LAYOUT.flatten(ARRAYS)
        two = {dtype: vector + 1 for dtype, vector in one.items()}
        save_checkpoint(tmp_path / "new" / FILE, 12, LAYOUT, [one, two], {"steps": [1, 2]})
        back = load_checkpoint(tmp_path / "new")
        assert (back.round, back.layout, back.extra) == (12, LAYOUT, {"steps": [1, 2]})
        for saved, loaded in zip([one, two], back.models, strict=True):
            assert {k: v.tobytes() for k, v in saved.items()} == {
                k: v.tobytes() for k, v in loaded.items()
            }

    def test_a_write_that_fails_leaves_the_old_one(self, tmp_path, monkeypatch):
        path = tmp_path / FILE
        save_checkpoint(path, 1, LAYOUT, [LAYOUT.flatten(ARRAYS)])
        before = path.read_bytes()

        def full(*_):
            raise OSError("no space left on device")

        monkeypatch.setattr(module.os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            save_checkpoint(path, 2, LAYOUT, [LAYOUT.flatten(ARRAYS)])
        assert path.read_bytes() == before
        assert load_checkpoint(path).round == 1

    def test_a_part_is_never_read(self, tmp_path):
        save_checkpoint(tmp_path / FILE, 1, LAYOUT, [LAYOUT.flatten(ARRAYS)])
        os.replace(tmp_path / FILE, tmp_path / f"{FILE}.part")
        with pytest.raises(ValueError, match="is not there: was the run made with checkpoint-eve"):
            load_checkpoint(tmp_path)

    @pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
    def test_a_truncated_file_is_a_clear_error(self, tmp_path, share):
        path = tmp_path / FILE
        save_checkpoint(path, 1, LAYOUT, [LAYOUT.flatten(ARRAYS)])
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(ValueError, match="is not a checkpoint of a run") as error:
            load_checkpoint(tmp_path)
        assert str(path) in str(error.value)

    def test_another_file_is_a_clear_error(self, tmp_path):
        path = play(tmp_path, slots=4).folder / "model.safetensors"
        with pytest.raises(ValueError, match="is not a checkpoint of a run"):
            load_checkpoint(path)


class TestResume:
    @pytest.mark.parametrize(
        ("settings", "messages"),
        [
            ({}, 5),
            ({}, 4),  # right after a mixing: its evaluation is not lost
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

    def test_twice(self, tmp_path):
        settings = {"checkpoint_every": 1, "slots": 48}
        whole = play(tmp_path / "whole", **settings)
        first = interrupted(tmp_path / "first", 3, **settings)
        second = interrupted(tmp_path / "second", 5, resume=str(first), **settings)
        assert load_checkpoint(second).round == 6
        assert_same_end(play(tmp_path / "third", resume=str(second), **settings), whole)

    def test_absences_are_remembered(self, tmp_path):
        from test_faults_simulated import Fault, spoiled

        settings = {"checkpoint_every": 1, "slots": 32}
        faulty = spoiled(Fault.NAN, lambda i, r: i == 3 and r in (2, 7))
        whole = play(tmp_path / "whole", **settings, **faulty)
        part = interrupted(tmp_path / "part", 5, **settings, **faulty)
        resumed = play(tmp_path / "rest", resume=str(part), **settings, **faulty)
        assert [a["round"] for a in resumed.report["absences"]] == [2, 7]
        assert_same_end(resumed, whole)

    def test_a_run_that_had_ended(self, tmp_path):
        whole = play(tmp_path / "whole", checkpoint_every=1)
        again = play(tmp_path / "again", checkpoint_every=1, resume=str(whole.folder))
        assert_same_end(again, whole)

    def test_a_run_that_was_killed(self, tmp_path):
        """A real SIGKILL, in a message after the checkpoint: nothing is flushed on the way."""
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
            ({"slots": 64}, "slots=32, this run has 64"),
            ({"graph": "complete"}, "graph='path', this run has 'complete'"),
            ({"pool": "hub"}, "pool='worker', this run has 'hub'"),
            ({"preset": "fedavg"}, "preset='mll-sgd', this run has 'fedavg'"),
        ],
        ids=str,
    )
    def test_with_another_config_is_an_error(self, tmp_path, other, named):
        settings = {"checkpoint_every": 1, "slots": 32}
        part = interrupted(tmp_path / "part", 3, **settings)
        with pytest.raises(ValueError, match="use the same config") as error:
            play(tmp_path / "rest", resume=str(part), **{**settings, **other})
        assert named in str(error.value)
        assert not (tmp_path / "rest").exists()

    def test_what_changes_no_number_may_change(self, tmp_path):
        whole = play(tmp_path / "whole", checkpoint_every=1, slots=32)
        part = interrupted(tmp_path / "part", 5, checkpoint_every=1, slots=32)
        settings = {"checkpoint_every": 0, "slots": 32, "reply_timeout": 100.0}
        assert play(tmp_path / "rest", resume=str(part), **settings).same_model(whole)
        assert not (tmp_path / "rest" / FILE).exists()

    def test_from_nowhere(self, tmp_path):
        with pytest.raises(ValueError, match=r"resume='/nowhere/at/all' is not there: give a"):
            play(tmp_path / "run", resume="/nowhere/at/all")
        without = play(tmp_path / "without").folder
        with pytest.raises(ValueError, match="was the run made with checkpoint-every > 0"):
            play(tmp_path / "run", resume=str(without))

    def test_from_a_checkpoint_that_was_moved_away(self, tmp_path):
        part = interrupted(tmp_path / "part", 3, checkpoint_every=1)
        (tmp_path / "alone").mkdir()
        shutil.copy(part / FILE, tmp_path / "alone")
        with pytest.raises(ValueError, match=r"metrics\.csv is not beside the checkpoint"):
            play(tmp_path / "run", checkpoint_every=1, resume=str(tmp_path / "alone"))

    def test_without_asking_there_is_no_checkpoint(self, tmp_path):
        assert not (play(tmp_path).folder / FILE).exists()
