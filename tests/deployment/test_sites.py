"""Hubs and workers as sites, without Flower: ports, phases, failures, restarts."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mll_flower.deployment import sites
from mll_flower.deployment.certs import make_certs
from mll_flower.deployment.hub_state import SUPERNODE_LOG, Phase, write_now
from mll_flower.deployment.network_file import NetworkFileError
from mll_flower.deployment.silence import longest_silence
from mll_flower.deployment.site_lock import SiteRuns, lock_site
from mll_flower.deployment.sites import HubSite, SiteFailed, WorkerSite
from mll_flower.processes.process_tree import Ended, Processes
from mll_flower.processes.superlink import SuperLink
from tests.support.deployment import example_with, free_ports


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes() as started:
        yield started


@pytest.fixture
def hub(tmp_path: Path, processes: Processes) -> HubSite:
    """A hub that was never started."""
    site = HubSite(example_with(tmp_path), "a", processes, threading.Event(), insecure=True)
    site.folder.mkdir(parents=True)
    return site


def test_certificates_must_exist(tmp_path: Path, processes: Processes) -> None:
    network = example_with(tmp_path)
    with pytest.raises(FileNotFoundError, match="nothing runs without TLS"):
        HubSite(network, "a", processes, threading.Event())
    with pytest.raises(FileNotFoundError, match="mll-flower certs"):
        WorkerSite(network, "a", 0, processes, print)
    make_certs(network, network.certs)
    HubSite(network, "a", processes, threading.Event())
    WorkerSite(network, "a", 0, processes, print)
    with pytest.raises(NetworkFileError, match="hub b has 2 workers, 0 to 1, and no number 2"):
        WorkerSite(network, "b", 2, processes, print)


@pytest.mark.parametrize(("use", "example_port"), [("superlink", 9400), ("gossip", 9401)])
def test_a_port_that_is_taken_is_named(
    tmp_path: Path, processes: Processes, use: str, example_port: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = free_ports(2)
        ports[example_port - 9400] = taken.getsockname()[1]
        changes = [(f"127.0.0.1:{9400 + n}", f"127.0.0.1:{p}") for n, p in enumerate(ports)]
        network = example_with(tmp_path, *changes)
        site = HubSite(network, "a", processes, threading.Event(), insecure=True)
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SiteFailed, match=f"{address} .{use}. cannot be used"):
            site.start()


def test_the_phase_of_a_hub_that_runs(hub: HubSite) -> None:
    for phase in (Phase.STARTING, Phase.READY, Phase.TRAINING, Phase.FINISHING, Phase.FINISHED):
        write_now(hub.folder, {"phase": phase, "pid": os.getpid()})
        assert hub.phase() is phase


def test_a_hub_that_says_why_it_failed(hub: HubSite) -> None:
    write_now(hub.folder, {"phase": Phase.FAILED, "pid": 1, "error": "ValueError: too bad"})
    with pytest.raises(SiteFailed, match=r"hub a: ValueError: too bad; see .*superlink\.log"):
        hub.phase()


def test_a_hub_whose_process_has_died(hub: HubSite) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    write_now(hub.folder, {"phase": Phase.TRAINING, "pid": process.pid})
    with pytest.raises(SiteFailed, match="hub a: its run has died"):
        hub.phase()
    write_now(hub.folder, {"phase": Phase.FINISHED, "pid": process.pid})
    assert hub.phase() is Phase.FINISHED  # then its process may go


def test_a_process_that_nobody_has_waited_for_is_dead(hub: HubSite) -> None:
    # Flower's SuperExec does not wait for the processes that it starts.
    process = subprocess.Popen(["true"])
    try:
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        write_now(hub.folder, {"phase": Phase.TRAINING, "pid": process.pid})
        with pytest.raises(SiteFailed, match="hub a: its run has died"):
            hub.phase()
    finally:
        process.wait()


@pytest.mark.parametrize("status", [None, "running", "finished:failed"])
def test_a_run_that_is_silent_for_too_long(
    hub: HubSite, monkeypatch: pytest.MonkeyPatch, status: str | None
) -> None:
    asked: list[SuperLink] = []
    monkeypatch.setattr(SuperLink, "newest_run_status", lambda link: asked.append(link) or status)
    clock = 1000.0
    monkeypatch.setattr(sites.time, "monotonic", lambda: clock)
    write_now(hub.folder, {"phase": Phase.TRAINING, "pid": os.getpid(), "round": 1})
    hub.phase()
    allowed = 2 * hub.network.round_deadline + hub.network.gossip_deadline + 60
    end = clock + allowed
    while clock < end - 2:
        clock += 1
        hub.phase()
    assert not asked
    # A new row, and all is well again.
    write_now(hub.folder, {"phase": Phase.TRAINING, "pid": os.getpid(), "round": 2})
    hub.phase()
    clock += 10_000  # we were frozen ourselves, or the machine slept
    hub.phase()
    assert not asked

    def look_for_a_long_time() -> None:
        nonlocal clock
        for _ in range(int(3 * allowed)):
            clock += 1
            hub.phase()

    with pytest.raises(SiteFailed) as failure:
        look_for_a_long_time()
    assert asked
    if status == "finished:failed":
        assert "hub a: its run ended as 'finished:failed'; see" in str(failure.value)
    else:
        assert "hub a: its run is stuck, training without a word for" in str(failure.value)


def test_how_long_a_hub_may_be_silent(hub: HubSite) -> None:
    network = hub.network
    for phase in (Phase.STARTING, Phase.WAITING_FOR_WORKERS, Phase.READY):
        assert longest_silence(network, phase, 300.0) > 300.0 + network.gossip_deadline
    assert longest_silence(network, Phase.FINISHING, 300.0) == network.gossip_deadline + 60


@pytest.mark.parametrize("status", [None, "running", "finished:failed"])
def test_a_run_that_ends_before_its_app_writes_anything(
    hub: HubSite, monkeypatch: pytest.MonkeyPatch, status: str | None
) -> None:
    asked = []
    monkeypatch.setattr(SuperLink, "newest_run_status", lambda link: asked.append(link) or status)
    if status == "finished:failed":
        with pytest.raises(SiteFailed, match="ended as 'finished:failed' before it began"):
            hub.phase()
    else:
        assert hub.phase() is Phase.STARTING
        assert hub.phase() is Phase.STARTING  # not asked again at once
    assert len(asked) == 1


def test_a_supernode_is_started_again_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: Processes
) -> None:
    said: list[str] = []
    site = WorkerSite(example_with(tmp_path), "a", 1, processes, said.append, insecure=True)
    started: list[str] = []
    monkeypatch.setattr(site, "start", lambda: started.append(site.name))
    now = 100.0
    monkeypatch.setattr(sites.time, "monotonic", lambda: now)
    site.restart_if_due()
    site.plan_restart(Ended(site.name, 1))
    log = site.folder / SUPERNODE_LOG
    text = f"SuperNode a-1 has ended (exit code 1); it is started again in 3 s (see {log})"
    assert said == [text]
    site.restart_if_due()
    assert started == []
    now += 3.0
    site.restart_if_due()
    site.restart_if_due()
    assert started == ["SuperNode a-1"]


def test_a_site_runs_once(tmp_path: Path, processes: Processes) -> None:
    folder = tmp_path / "state" / "worker-a-0"
    first = lock_site(folder, "worker 0 of hub a")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    again = f"worker 0 of hub a runs already on this machine .process {os.getpid()}.: end that"
    with pytest.raises(SiteRuns, match=again):
        lock_site(folder, "worker 0 of hub a")
    with pytest.raises(SiteRuns, match=again):
        WorkerSite(example_with(tmp_path), "a", 0, processes, print, insecure=True).start()
    first.close()
    lock_site(folder, "worker 0 of hub a").close()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(
        OSError, match=r"state folder .*hub-a cannot be written .File exists.: mend"
    ):
        lock_site(tmp_path / "state" / "hub-a", "hub a")
