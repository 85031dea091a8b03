"""A hub's metrics for Prometheus, over HTTP, from the files of a hub."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mll_flower.deployment.hub_metrics import RoundsReader, serve_metrics
from mll_flower.deployment.hub_state import ROUNDS_FILE, write_now
from mll_flower.processes.log_rotation import rotate_by_name


def row(number: int, **more: object) -> dict[str, object]:
    return {
        "round": number,
        "mixing": number // 2 if number % 2 == 0 else None,
        "arrived": [{"worker": 0}, {"worker": 1}],
        "absent": [{"worker": 2, "cause": "late"}],
        "silent": {},
        "seconds": 1.5,
        "late": -0.25,
        "loss": 0.5,
        "weight": 30.0,
        "gossip_sent": 100 * number,
        "gossip_received": 90 * number,
        "gossip_rejected": {"other-run": 3},
        "model_bytes": 1000 * number,
        **more,
    }


def append(folder: Path, *entries: object) -> None:
    with (folder / ROUNDS_FILE).open("a") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)


def ask(port: int) -> dict[tuple[str, ...], float]:
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
    return {
        (sample.name, *(v for k, v in sorted(sample.labels.items()) if k != "hub")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_follow_the_rows_of_a_hub(tmp_path: Path) -> None:
    with serve_metrics(tmp_path, "lyon", 0) as port:
        before = ask(port)
        assert before["mll_round_seconds_count",] == 0
        append(tmp_path, {"event": "begins"}, row(1), row(2, silent={"ulm": "no answer"}))
        write_now(tmp_path, {"phase": "training", "round": 2, "workers": 2, "accuracy": 0.75})
        found = ask(port)
        append(tmp_path, row(3, absent=[{"worker": 1, "cause": "raised"}]))
        later = ask(port)
    assert found["mll_round_seconds_count",] == 2
    assert found["mll_round_seconds_sum",] == 3.0
    assert found["mll_mixings_total",] == 1
    assert found["mll_worker_arrivals_total",] == 4
    assert found["mll_worker_absences_total", "late"] == 2
    assert found["mll_silent_neighbours_total", "ulm"] == 1
    assert found["mll_gossip_bytes_total", "sent"] == 200
    assert found["mll_gossip_rejected_total", "other-run"] == 3
    assert found["mll_model_bytes_total",] == 2000
    assert found["mll_round",] == 2
    assert found["mll_round_late_seconds",] == -0.25
    assert found["mll_test_accuracy",] == 0.75
    assert found["mll_phase", "training"] == 1
    assert found["mll_phase", "failed"] == 0
    assert later["mll_worker_absences_total", "raised"] == 1
    assert later["mll_round_seconds_count",] == 3


def test_the_port_is_closed_afterwards_and_only_on_loopback(tmp_path: Path) -> None:
    with serve_metrics(tmp_path, "lyon", 0) as port:
        ask(port)
    with pytest.raises(httpx.ConnectError):
        ask(port)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with (
        serve_metrics(tmp_path, "lyon", 0) as port,
        pytest.raises(ValueError, match=f"metrics-port={port} cannot be used"),
        serve_metrics(tmp_path, "basel", port),
    ):
        pass


def test_the_reader_copes_with_parts_rubbish_and_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / ROUNDS_FILE
    reader = RoundsReader(path)
    assert reader.new_entries() == []
    path.write_bytes(b'{"round": 1}\n\xff\xfe rubbish\n[1]\n{"round": 2')
    assert reader.new_entries() == [{"round": 1}]
    with path.open("ab") as file:
        file.write(b"2}\n")
    assert reader.new_entries() == [{"round": 22}]
    path.write_bytes(b'{"round": 3}\n')
    assert reader.new_entries() == [{"round": 3}]


def test_the_reader_follows_a_file_that_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / ROUNDS_FILE
    reader = RoundsReader(path)
    read = []
    for number in range(40):
        rotate_by_name(path, 60, 3)
        append(tmp_path, {"round": number})
        if number % 3 == 0:
            read += [entry["round"] for entry in reader.new_entries()]
    read += [entry["round"] for entry in reader.new_entries()]
    assert read == list(range(40))
    late = [entry["round"] for entry in RoundsReader(path).new_entries()]
    assert late == list(range(40))[-len(late) :]
    assert len(late) > 10, "the parts that are kept"
