"""Absences and evaluations of the hubs' own models, on disk while a run goes on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mll_flower.results.events import parse_events, rounded
from mll_flower.results.html_report import render_report
from mll_flower.results.runs import load_run
from tests.support.faulty_workers import Fault, faulty
from tests.support.simulated import play


class Stop(Exception):
    """Ends a run."""


def test_an_interrupted_run_knows_who_was_absent(tmp_path: Path) -> None:
    rounds: list[int] = []

    def stop() -> None:
        rounds.append(1)
        if len(rounds) == 3:
            # What another process sees now, before the run can say how it ends.
            seen.append((tmp_path / "a" / "events.jsonl").read_bytes())
            raise Stop

    seen: list[bytes] = []
    fault: dict[str, Any] = faulty(Fault.RAISES, lambda i, r: (i, r) == (3, 2))
    with pytest.raises(Stop):
        play(tmp_path / "a", slots=32, evaluate_every=4, on_message=stop, **fault)
    events = parse_events(seen[0].splitlines())
    assert [(e["event"], e["round"]) for e in events] == [("absent", 2), ("hubs", 2)]
    assert (events[0]["worker"], events[0]["cause"]) == (3, "raised")
    run = load_run(tmp_path / "a")
    assert not run.finished
    assert [a["worker"] for a in run.end["absences"]] == [3]
    assert [w["absent"] for w in run.end["workers"]] == [0, 0, 0, 1, 0, 0]
    assert "battery is flat" in render_report(run)


def test_a_resumed_run_has_the_events_of_both_parts(tmp_path: Path) -> None:
    fault: dict[str, Any] = faulty(Fault.RAISES, lambda i, r: i == 3 and r in (2, 7))
    settings = {"slots": 32, "evaluate_every": 4, "checkpoint_every": 1}
    whole = play(tmp_path / "whole", **settings, **fault)
    messages: list[int] = []

    def stop() -> None:
        messages.append(1)
        if len(messages) == 6:
            raise Stop

    with pytest.raises(Stop):
        play(tmp_path / "a", **settings, on_message=stop, **fault)
    play(tmp_path / "a", **settings, resume=str(tmp_path / "a"), **fault)
    for key in ("absences", "hub_evaluations", "hub_models"):
        assert load_run(tmp_path / "a").end[key] == whole.report[key]
    assert len(whole.report["hub_evaluations"]) == 4
    slots = [e["slot"] for e in load_run(tmp_path / "a").hub_evaluations]
    assert slots == [8, 16, 20, 28, 32]
    lines = (tmp_path / "a" / "events.jsonl").read_bytes().splitlines()
    absent = [e["round"] for e in parse_events(lines) if e["event"] == "absent"]
    assert absent == [2, 7]


def test_lines_that_are_no_events_are_left_out() -> None:
    lines = ['{"event": "absent"}', "half", "[1]", '{"event": "other"}', '{"event": "hubs"}']
    assert [e["event"] for e in parse_events(lines)] == ["absent", "hubs"]
    assert rounded([0.12345678, math.nan, math.inf]) == [0.123457, None, None]
    json.dumps(rounded([math.nan]), allow_nan=False)
