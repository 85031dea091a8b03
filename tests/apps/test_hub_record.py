"""What a hub records: rows, events, its status; and a record that was cut off."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord

from mll_flower.apps.hub_record import HubRecord
from mll_flower.deployment.hub_state import NOW_FILE, ROUNDS_FILE, Phase, read_now
from mll_flower.gossip import InProcessBoard, InProcessGossip
from mll_flower.grids.absences import Absence
from mll_flower.processes.log_rotation import parts
from mll_flower.strategies.reports import Absent, Arrival, HubRound, RoundReport
from tests.support.event_files import scalars

WEIGHTS = {11: 3.0, 12: 1.0, 13: 2.0}
_GRID = SimpleNamespace(lasted=7.12345, late=-2.0, seconds=9.12345)


@pytest.fixture
def gossip() -> Iterator[InProcessGossip]:
    started = InProcessGossip(InProcessBoard(), "a", ["b"], "trial")
    yield started
    started.close()


@pytest.fixture
def record(tmp_path: Path, gossip: InProcessGossip) -> HubRecord:
    return HubRecord(tmp_path, "trial", "a", gossip)


def arrival(node: int, worker: int, steps: int, loss: float) -> Arrival:
    metrics = MetricRecord({"worker": worker, "steps": steps, "rate": steps / 10, "loss": loss})
    return Arrival(node, ArrayRecord(), metrics, SimpleNamespace())  # type: ignore[arg-type]


def row_of(record: HubRecord, number: int, hub_round: HubRound, mixed: bool = False) -> Any:
    """Return the row of a round of a hub with a model of 4 floats, q = 2."""
    hub = SimpleNamespace(
        model={"float32": np.zeros(4, dtype=np.float32)},
        reported_weight=6.0,
        weight_of=WEIGHTS.__getitem__,
    )
    silent, column = ({"b": "no answer"}, {"a": 1.0}) if mixed else ({}, {})
    report = RoundReport(number, mixed, [hub_round], lambda: np.zeros(1), silent, column)
    strategy, grid = SimpleNamespace(hubs=[hub], q=2), _GRID
    return record.row(report, strategy, grid)  # type: ignore[arg-type]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / ROUNDS_FILE).read_text().splitlines()]


def test_a_row_has_what_a_replay_needs(record: HubRecord) -> None:
    replies = [arrival(12, 5, 10, 0.5), arrival(11, 4, 5, 2.0)]
    late = Absent(13, Absence.LATE, "x" * 400)
    row = row_of(record, 3, HubRound(replies, [late]))
    first, second = row["arrived"]  # in the order of the sum
    assert first == {
        "node": "12",
        "worker": 5,
        "steps": 10,
        "rate": 1.0,
        "loss": 0.5,
        "weight": 1.0,
    }
    assert (second["node"], second["worker"], second["weight"]) == ("11", 4, 3.0)
    (absent,) = row["absent"]
    # A worker that was never heard of has no number yet.
    assert (absent["node"], absent["worker"], absent["weight"]) == ("13", None, 2.0)
    assert (absent["cause"], len(absent["why"])) == ("late", 300)
    assert (row["round"], row["mixing"], row["weight"]) == (3, None, 6.0)
    assert row["loss"] == pytest.approx((10 * 0.5 + 5 * 2.0) / 15)  # by steps
    assert (row["seconds"], row["late"], row["deadline"]) == (7.123, -2.0, 9.123)
    assert row["model_bytes"] == 16 * (2 * 2 + 1)  # an absent worker was sent the model, too


@pytest.mark.parametrize("steps", [None, math.nan, math.inf, 1e308, -5, [1, 2], [], 10**30])
@pytest.mark.parametrize("worker", [None, math.nan, -math.inf, 1e308, [1.5], 3])
@pytest.mark.parametrize("loss", [None, math.nan, 1e308, -1e308, [0.5], 2.0])
def test_no_metric_of_a_worker_ends_a_hub(
    record: HubRecord, tmp_path: Path, steps: Any, worker: Any, loss: Any
) -> None:
    given = {"steps": steps, "worker": worker, "loss": loss, "rate": steps}
    metrics = MetricRecord({name: value for name, value in given.items() if value is not None})
    odd = Arrival(12, ArrayRecord(), metrics, SimpleNamespace())  # type: ignore[arg-type]
    again = Arrival(13, ArrayRecord(), metrics, SimpleNamespace())  # type: ignore[arg-type]
    row = row_of(record, 1, HubRound([arrival(11, 4, 5, 2.0), odd, again], []))
    record.write(row)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    (line,) = (tmp_path / ROUNDS_FILE).read_text().splitlines()
    read = json.loads(line, parse_constant=refuse)  # no NaN and no Infinity
    assert read["arrived"][1]["worker"] == (3 if worker == 3 else None)
    assert read["arrived"][1]["steps"] == (-5 if steps == -5 else None)
    assert read["loss"] == 2.0  # the loss of all that report one is 2
    json.loads((tmp_path / NOW_FILE).read_text(), parse_constant=refuse)
    record.complete(row)


def test_numbers_of_workers_and_bytes_are_kept_over_rounds(record: HubRecord) -> None:
    row_of(record, 1, HubRound([arrival(11, 4, 5, 2.0)], []))
    row = row_of(record, 2, HubRound([], [Absent(11, Absence.GONE, "away")]), mixed=True)
    assert row["absent"][0]["worker"] == 4
    assert row["loss"] is None
    assert row["model_bytes"] == 16 * 3
    assert (row["mixing"], row["column"], row["silent"]) == (1, {"a": 1.0}, {"b": "no answer"})


def test_a_row_is_written_and_published(
    record: HubRecord, tmp_path: Path, gossip: InProcessGossip
) -> None:
    record.phase(Phase.TRAINING)
    row = row_of(record, 2, HubRound([arrival(11, 4, 5, 2.0)], []), mixed=True)
    record.write({**row, "accuracy": 0.75})
    assert lines(tmp_path) == [{**row, "accuracy": 0.75}]
    now = read_now(tmp_path)
    assert (now["phase"], now["round"], now["loss"], now["accuracy"]) == ("training", 2, 2.0, 0.75)
    assert (now["run"], now["hub"], now["pid"]) == ("trial", "a", os.getpid())
    assert (now["workers"], now["workers_absent"], now["causes"]) == (1, 0, {})
    status = gossip.status()
    assert all(status[key] == value for key, value in now.items())
    assert record.silent == {"b": "no answer"}


def test_events_are_no_rows(record: HubRecord, tmp_path: Path) -> None:
    record.event("begins", round=0, resumed=False)
    (event,) = lines(tmp_path)
    assert (event["event"], event["round"], event["resumed"]) == ("begins", 0, False)


class TestComplete:
    """A hub that was killed between its checkpoint and its row, or just after both."""

    def row(self, record: HubRecord, number: int) -> dict[str, Any]:
        absent = [Absent(12, Absence.LATE, "late")]
        return row_of(record, number, HubRound([arrival(11, 4, 5, 2.0)], absent))

    def test_a_row_that_is_missing_is_appended(self, record: HubRecord, tmp_path: Path) -> None:
        first, second = self.row(record, 1), self.row(record, 2)
        record.write(first)
        record.event("begins", round=2)  # an event of this round is not its row
        record.complete(second)
        assert [line for line in lines(tmp_path) if "arrived" in line] == [first, second]

    def test_a_row_that_exists_is_not_repeated(self, record: HubRecord, tmp_path: Path) -> None:
        first = self.row(record, 1)
        record.write(first)
        record.event("begins", round=1)
        record.complete(first)
        assert [line for line in lines(tmp_path) if "arrived" in line] == [first]

    def test_a_row_that_was_cut_off_is_replaced(self, record: HubRecord, tmp_path: Path) -> None:
        first, second = self.row(record, 1), self.row(record, 2)
        record.write(first)
        with (tmp_path / ROUNDS_FILE).open("a") as file:
            file.write(json.dumps(second)[:50])
        record.complete(second)
        assert lines(tmp_path) == [first, second]

    def test_counts_go_on_after_it(
        self, tmp_path: Path, record: HubRecord, gossip: InProcessGossip
    ) -> None:
        row = self.row(record, 7)
        later = HubRecord(tmp_path, "trial", "a", gossip)  # the hub, started again
        later.complete(row)
        later.phase(Phase.TRAINING)
        assert read_now(tmp_path)["round"] == 7
        following = row_of(later, 8, HubRound([], [Absent(11, Absence.GONE, "away")]))
        assert following["absent"][0]["worker"] == 4
        assert following["model_bytes"] == row["model_bytes"] + 16


def test_the_operator_is_told_of_rounds_also_after_a_restart(
    record: HubRecord, tmp_path: Path, gossip: InProcessGossip
) -> None:
    late = Absent(13, Absence.LATE, "y" * 100 + "x" * 160)
    rows = [row_of(record, n, HubRound([arrival(11, 4, 5, 2.0)], [late])) for n in (1, 2, 3)]
    for row in rows:
        record.write({**row, "disagreement": 0.5, "accuracy": 0.75})
    told = gossip.answer_operator({"rounds-after": 1})["rounds"]
    assert [row["round"] for row in told] == [2, 3]
    assert (told[0]["disagreement"], told[0]["accuracy"], told[0]["loss"]) == (0.5, 0.75, 2.0)
    expected = {"node": "13", "worker": None, "cause": "late", "why": "x" * 160}
    assert told[0]["absent"] == [expected]
    assert "rounds" not in gossip.status()
    assert "rounds" not in gossip.answer_operator({"rounds-after": "1"})
    again = InProcessGossip(InProcessBoard(), "a", ["b"], "trial")
    HubRecord(tmp_path, "trial", "a", again).complete(rows[-1])
    assert [r["round"] for r in again.answer_operator({"rounds-after": 0})["rounds"]] == [1, 2, 3]
    again.close()


def test_rows_go_to_tensorboard_if_that_is_asked(tmp_path: Path, gossip: InProcessGossip) -> None:
    record = HubRecord(tmp_path, "trial", "a", gossip, tensorboard=True)
    late = Absent(13, Absence.LATE, "late")
    row = row_of(record, 1, HubRound([arrival(12, 5, 10, 0.5), arrival(11, 4, 5, 2.0)], [late]))
    record.write(row)
    last = row_of(record, 2, HubRound([], [late]), mixed=True)
    record.write({**last, "accuracy": 0.75, "test_loss": 0.5})
    # While the hub goes on: nothing has closed the file.
    found = scalars(tmp_path / "tensorboard")
    assert found["hub/loss"] == [(1, 1.0)]  # nobody trained in round 2
    assert found["hub/steps"] == [(1, 15), (2, 0)]
    assert found["hub/arrived"] == [(1, 2), (2, 0)]
    assert found["hub/absent"] == [(1, 1), (2, 1)]
    assert found["hub/silent"] == [(1, 0), (2, 1)]
    assert found["hub/accuracy"] == [(2, 0.75)]
    record._tensorboard.close()  # type: ignore[union-attr]


def test_a_large_record_begins_anew_and_goes_on_after_a_stop(
    record: HubRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mll_flower.apps.hub_record.ROUNDS_BYTES", 1000)
    rows = [row_of(record, n, HubRound([arrival(11, 4, 5, 2.0)], [])) for n in range(1, 9)]
    for row in rows[:-1]:
        record.write(row)
        record.event("begins", round=row["round"], why="x" * 600)  # never alone in a part
    files = parts(tmp_path / ROUNDS_FILE)
    assert len(files) > 2
    record.complete(rows[-2])  # written before the stop
    record.complete(rows[-1])  # not written before the stop
    entries = [json.loads(x) for path in files for x in path.read_text().splitlines()]
    assert [e["round"] for e in entries if "arrived" in e] == list(range(1, 9))
