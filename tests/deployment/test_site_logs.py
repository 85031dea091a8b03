"""The logs of the sites on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from mll_flower.deployment.site_logs import SiteLog, site_logs


def make(state: Path, site: str, name: str, text: str) -> Path:
    path = state / site / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    make(tmp_path, "hub-lyon", "superlink.log", "one\ntwo\nthree\n")
    make(tmp_path, "worker-lyon-0", "supernode.log", "begins\n")
    return tmp_path


def test_last_lines_of_each_site(state: Path) -> None:
    logs = site_logs(state)
    assert [log.site for log in logs] == ["hub-lyon", "worker-lyon-0"]
    assert [line.text for line in logs[0].last(2)] == ["two", "three"]
    assert logs[0].new() == []


def test_new_lines_are_whole_ones(state: Path) -> None:
    (log,) = site_logs(state, "worker")
    log.last(5)
    with log.path.open("a") as file:
        file.write("half of a ")
        file.flush()
        assert log.new() == []
        file.write("line\n")
    assert [line.text for line in log.new()] == ["half of a line"]
    log.path.write_text("new\n")
    assert [line.text for line in log.new()] == ["new"]


def test_bytes_that_are_no_text_are_shown_as_such(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe\n")
    assert len(SiteLog("hub-a", path).new()) == 1


def test_a_site_without_a_log_is_named(state: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"site='basel' has no log .* hub-lyon, worker-lyon-0"):
        site_logs(state, "basel")
    with pytest.raises(ValueError, match=r"no logs in .*--quiet"):
        site_logs(tmp_path / "elsewhere")
