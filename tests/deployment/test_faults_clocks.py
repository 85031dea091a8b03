"""Clocks that are an hour off, and certificates that have expired: the operator is told the cause.

Tests end with a replay, see `tests.support.faults`.
"""

from __future__ import annotations

import datetime as dt
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from mll_flower.deployment import certs as certs_module
from mll_flower.deployment.certs import make_certs
from mll_flower.deployment.hub_state import Phase
from mll_flower.processes.renewed_certificate import PAUSE
from tests.support.deployment import Deployment, running_in
from tests.support.faults import (
    DEADLINE,
    LONG,
    SHORT,
    network,
    stop_and_check,
    wait_arrived,
    wait_mixed,
)
from tests.support.wrong_clock import wrong_clock

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

HOUR = 3600


def wait_told(trial: Deployment, name: str, text: str) -> None:
    """Wait until a command has said something that it had not said before."""
    before = trial.output(name).count(text)
    trial.wait(f"{name} says {text!r}", lambda: trial.output(name).count(text) > before)


def restart(trial: Deployment, name: str) -> None:
    """Stop a hub or a worker, to start it again."""
    trial.processes[name].send_signal(signal.SIGTERM)
    trial.wait_ended(name, 0)


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_a_worker_whose_clock_is_an_hour_off(tmp_path: Path, ahead: int) -> None:
    with network(tmp_path, {"a": 2}, rounds=LONG) as trial:
        trial.hub("a")
        trial.worker("a", 0)
        trial.worker("a", 1, wrong_clock(tmp_path, ahead))
        side = "ahead of" if ahead > 0 else "behind"
        wait_told(trial, "worker-a-1", f"s {side} that of its hub")
        # The hub begins without it, and says how many have come.
        trial.wait_round("a", 2, 240.0)
        assert all(len(row["arrived"]) <= 1 for row in trial.rows("a"))
        restart(trial, "worker-a-1")
        trial.worker("a", 1)
        wait_arrived(trial, "a", 1)
        stop_and_check(trial, ["a"])


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_a_hub_whose_clock_is_an_hour_off(tmp_path: Path, ahead: int) -> None:
    """Its workers are told; it still mixes; with the right clock it goes on from its checkpoint."""
    with network(tmp_path, {"a": 1, "b": 1}, rounds=LONG) as trial:
        trial.start_all()
        wait_mixed(trial, "b", "a")
        restart(trial, "hub-b")
        trial.hub("b", env=wrong_clock(tmp_path, ahead))
        side = "behind" if ahead > 0 else "ahead of"  # the worker's clock, as the hub sees it
        wait_told(trial, "worker-b-0", f"s {side} that of its hub")
        wait_mixed(trial, "b", "a")
        restart(trial, "hub-b")
        trial.hub("b")
        wait_arrived(trial, "b", 1)
        wait_mixed(trial, "b", "a")
        begun = [entry for entry in trial.entries("b") if entry.get("event") == "begins"]
        assert [entry["resumed"] for entry in begun] == [False, True, True]
        stop_and_check(trial, ["a", "b"])


def let_certificates_expire(trial: Deployment) -> None:
    """Replace the certificates of the hubs and the operator by such that ended a second ago."""
    shift = dt.timedelta(days=1, seconds=1)

    class Yesterday(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:  # type: ignore[override]
            return dt.datetime.now(tz) - shift

    with pytest.MonkeyPatch.context() as patch:
        day = SimpleNamespace(datetime=Yesterday, timedelta=dt.timedelta, UTC=dt.UTC)
        patch.setattr(certs_module, "dt", day)
        make_certs(trial.network, trial.network.certs, days=1, renew=True)


def test_nothing_starts_with_an_expired_certificate(tmp_path: Path) -> None:
    trial = network(tmp_path, {"a": 1})
    let_certificates_expire(trial)
    path = str(trial.path)
    for command in (["hub", path, "--id", "a"], ["status", path]):
        ended = trial.call(*command)
        assert ended.returncode == 2
        assert "expired on" in ended.stdout
        assert f"run `mll-flower certs {path} --renew`" in ended.stdout
    assert running_in(tmp_path) == []
    assert not trial.state.exists()


def test_certificates_that_expire_while_everything_runs(tmp_path: Path) -> None:
    """Who must connect anew is refused, and told why; nobody is started again for the new ones."""
    with network(tmp_path, {"a": 1, "b": 1}, rounds=LONG, gossip_deadline=SHORT) as trial:
        trial.start_all()
        wait_mixed(trial, "b", "a")
        let_certificates_expire(trial)
        time.sleep(PAUSE + 2.0)  # by then the SuperLinks have noticed
        [supernode] = trial.find("worker-b-0", "warm.supernode")
        supernode.kill()
        wait_told(trial, "worker-b-0", "certificate has expired")
        ended = trial.call("status", str(trial.path))
        assert (ended.returncode, "expired on" in ended.stdout) == (2, True)
        pids = {name: process.pid for name, process in trial.processes.items()}
        seen = len(trial.rows("b"))
        trial.wait_round("b", trial.rows("b")[-1]["round"] + 1, 6 * DEADLINE)
        assert not any(row["arrived"] for row in trial.rows("b")[seen + 1 :])

        renewed = trial.call("certs", str(trial.path), "--renew")
        assert renewed.returncode == 0, renewed.stdout
        wait_arrived(trial, "b", 1)
        wait_mixed(trial, "b", "a")
        assert trial.call("status", str(trial.path)).returncode == 0
        assert trial.now("b")["phase"] == Phase.TRAINING
        assert {name: process.pid for name, process in trial.processes.items()} == pids
        assert all(process.poll() is None for process in trial.processes.values())
        stop_and_check(trial, ["a", "b"])
