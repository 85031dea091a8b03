"""What the commands that run hubs and workers say."""

from __future__ import annotations

import io
import json
from datetime import datetime

import pytest
from rich.console import Console

from mll_flower.cli.announcer import Announcer


def test_lines_for_people_hold_the_text_as_it_is() -> None:
    out = io.StringIO()
    told = Announcer(Console(file=out, width=20), "text", "hub-lyon")
    told.say("state in /srv/[red]/hub, which is a long line")
    told.fail("it failed [/red]")
    first, second = out.getvalue().splitlines()
    assert first.endswith(" state in /srv/[red]/hub, which is a long line")
    assert second.endswith(" it failed [/red]")


def test_json_has_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    told = Announcer(Console(), "json", "worker-lyon-0")
    told.say("one\ntwo")
    told.warn("careful")
    told.fail("gone")
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [entry["level"] for entry in entries] == ["info", "warning", "error"]
    assert entries[0]["message"] == "one\ntwo"
    assert {entry["site"] for entry in entries} == {"worker-lyon-0"}
    assert all(datetime.fromisoformat(entry["time"]).tzinfo for entry in entries)
