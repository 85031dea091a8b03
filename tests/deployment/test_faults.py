"""Faults of a deployment, inflicted on real processes, and the average expected after each.

Each test ends with a replay: the reported steps, the absences and the mixing weights that the
hubs have recorded must lead to the same models, to the bit.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import stat
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from mll_flower.deployment.certs import make_certs
from mll_flower.deployment.hub_gossip import start_gossip
from mll_flower.deployment.hub_state import Phase
from mll_flower.deployment.network_file import NetworkFile, load_network
from mll_flower.gossip import Snapshot
from tests.support.deployment import Deployment, free_ports, running_in
from tests.support.proxy import Proxy
from tests.support.replay import Replay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

# Seconds of a round: far above the 6 to 10 s that it takes on an idle machine.
DEADLINE = 45.0
# Longer than a round: a hub waits for a neighbour whose frozen worker delays it to its deadline.
GOSSIP = 50.0
# Seconds after its deadline by which a round has ended.
LATE = 2.0


def deployment(folder: Path, hubs: dict[str, int], **values: object) -> Deployment:
    ids = list(hubs)
    settings = {"tau": 10, "q": 1, "slot": 0.002, "rounds": 8}
    return Deployment(
        folder,
        hubs,
        edges=list(itertools.pairwise(ids)),
        run_config={"model": "logistic", "node-timeout": 60.0},
        round_deadline=DEADLINE,
        gossip_deadline=GOSSIP,
        **{**settings, **values},
    )


def check(trial: Deployment, hubs: list[str]) -> Replay:
    """Check that rounds ended on time, links were used by both ends or none, models are right."""
    rows = {hub: trial.rows(hub) for hub in hubs}
    late = max(row["late"] for theirs in rows.values() for row in theirs)
    print(f"\nthe latest end of a round: {late:.2f} s after its deadline")
    assert late <= LATE
    for hub, theirs in rows.items():
        numbers = [row["round"] for row in theirs]
        assert numbers == sorted(set(numbers)), f"hub {hub} counted a round twice: {numbers}"
    mixings = {(h, row["mixing"]): row for h, theirs in rows.items() for row in theirs}
    for (hub, number), row in mixings.items():
        assert sum(row["column"].values()) == pytest.approx(1.0, abs=1e-12) or number is None
        for peer, share in row["column"].items():
            if peer != hub:
                # Detailed balance, with the weights that each of the two knew.
                other = mixings[peer, number]
                assert row["weight"] * share == pytest.approx(
                    other["weight"] * other["column"][hub], rel=1e-9
                )
    replay = Replay(trial.engine(), rows)
    for hub in hubs:
        np.testing.assert_array_equal(trial.model(hub)["float32"], replay.y[hub]["float32"])
    check_average(rows, replay)
    return replay


def check_average(rows: dict[str, list[dict]], replay: Replay) -> None:
    """Check that no mixing changed the weighted average of the hubs that took part."""
    weight = {(h, r["mixing"]): r["weight"] for h, theirs in rows.items() for r in theirs}
    for number in {number for _, number in replay.mixed}:
        present = [hub for hub in rows if (hub, number) in replay.mixed]
        w = np.array([weight[hub, number] for hub in present])
        before = w @ np.array([replay.z[hub, number]["float32"] for hub in present], dtype=float)
        after = w @ np.array([replay.mixed[hub, number]["float32"] for hub in present], dtype=float)
        np.testing.assert_allclose(after / w.sum(), before / w.sum(), atol=1e-6)


def test_workers_that_freeze_come_back_and_die(tmp_path: Path) -> None:
    with deployment(tmp_path, {"a": 2, "b": 1}, rounds=9) as trial:
        trial.start_all()
        trial.wait_round("a", 1)
        trial.signal("worker-a-1", signal.SIGSTOP)
        frozen = len(trial.rows("a"))
        trial.wait(
            "a round without worker 1",
            lambda: any(row["absent"] for row in trial.rows("a")),
            4 * DEADLINE,
        )
        trial.signal("worker-a-1", signal.SIGCONT)
        back = len(trial.rows("a"))
        trial.wait(
            "worker 1 is back",
            lambda: any(len(row["arrived"]) == 2 for row in trial.rows("a")[back:]),
            6 * DEADLINE,
        )
        trial.signal("worker-b-0", signal.SIGKILL)
        dead = len(trial.rows("b"))
        trial.wait_finished(["a", "b"], 12 * (DEADLINE + GOSSIP))
        a, b = trial.rows("a"), trial.rows("b")
        causes = {absent["cause"] for row in a[frozen:back] for absent in row["absent"]}
        assert causes <= {"late", "expired", "uploading", "gone"}
        assert causes
        assert all(absent["worker"] == 1 for row in a for absent in row["absent"])
        # A hub whose only worker is dead goes on: it keeps its model and mixes it.
        assert all(not row["arrived"] for row in b[dead + 1 :])
        assert [row["round"] for row in b] == list(range(1, 10))
        assert all(not row["silent"] for row in (*a, *b))
        check(trial, ["a", "b"])


def test_a_killed_hub_comes_back_from_its_checkpoint(tmp_path: Path) -> None:
    with deployment(tmp_path, {"a": 1, "b": 1}, rounds=12) as trial:
        trial.start_all()
        trial.wait_round("b", 2)
        before = trial.rows("b")[-1]["round"]
        trial.signal("hub-b", signal.SIGKILL)
        killed = trial.rows("b")[-1]["round"]
        assert killed - before <= 1
        trial.wait(
            "hub a notices",
            lambda: any("b" in row["silent"] for row in trial.rows("a")),
            2 * (DEADLINE + GOSSIP),
        )
        trial.hub("b")
        trial.wait(
            "hub b is back",
            lambda: any(row["round"] > killed for row in trial.rows("b")),
            6 * (DEADLINE + GOSSIP),
        )
        trial.wait_finished(["a", "b"], 12 * (DEADLINE + GOSSIP))
        events = [entry for entry in trial.entries("b") if entry.get("event") == "begins"]
        assert [event["resumed"] for event in events] == [False, True]
        assert events[1]["round"] > killed  # it did not repeat the rounds that it has missed
        returned = [row for row in trial.rows("b") if row["round"] > killed]
        assert returned[0]["arrived"], "its worker has found it again"
        assert any("a" in row["column"] for row in returned)
        check(trial, ["a", "b"])


def test_a_cut_link_is_dropped_on_both_sides_and_used_again(tmp_path: Path) -> None:
    with deployment(tmp_path, {"a": 1, "b": 1}, rounds=8) as trial:
        proxies = {hub: Proxy(port) for hub, port in trial.gossip_port.items()}
        try:
            for hub, other in (("a", "b"), ("b", "a")):
                text = trial.path.read_text()
                seen = f"127.0.0.1:{proxies[other].port}"
                text = text.replace(f"127.0.0.1:{trial.gossip_port[other]}", seen)
                path = tmp_path / f"network-{hub}.toml"
                path.write_text(text)
                trial.hub(hub, path)
                trial.worker(hub, 0)
            trial.wait_round("a", 2)
            for proxy in proxies.values():
                proxy.cut()
            for hub in ("a", "b"):
                trial.wait(
                    f"hub {hub} is alone",
                    lambda hub=hub: any(row["silent"] for row in trial.rows(hub)),
                    3 * (DEADLINE + GOSSIP),
                )
            for proxy in proxies.values():
                proxy.mend()
            trial.wait_finished(["a", "b"], 12 * (DEADLINE + GOSSIP))
        finally:
            for proxy in proxies.values():
                proxy.close()
        alone = {hub: [r["mixing"] for r in trial.rows(hub) if r["silent"]] for hub in ("a", "b")}
        assert alone["a"] == alone["b"]
        assert 1 <= len(alone["a"]) < 6
        assert trial.rows("a")[-1]["column"].keys() == {"a", "b"}
        check(trial, ["a", "b"])


def test_hubs_of_another_authority_or_of_no_network_file_are_kept_out(tmp_path: Path) -> None:
    hubs = {"a": 1, "b": 1, "c": 1}
    with deployment(tmp_path, hubs, rounds=4) as trial:
        # Hub c is in every network file, but another authority has signed its certificates.
        other = tmp_path / "other"
        other.mkdir()
        text = trial.path.read_text().replace("npz:data.npz", f"npz:{tmp_path / 'data.npz'}")
        (other / "network.toml").write_text(text)
        forged = load_network(other / "network.toml")
        make_certs(forged, forged.certs)
        for hub in ("a", "b"):
            trial.hub(hub)
            trial.worker(hub, 0)
        common = ["--state", str(trial.state), "--quiet"]
        trial.run("hub-c", "hub", str(forged.path), "--id", "c", *common)
        trial.run("worker-c-0", "worker", str(forged.path), "--hub", "c", "--number", "0", *common)
        # The network's own authority has signed the certificate of hub x, which is in no other
        # hub's network file.
        stranger = add_hub_x(trial, tmp_path)
        gossip = start_gossip(stranger, "x")
        try:
            trial.wait("hub b begins", lambda: trial.now("b").get("phase") == Phase.TRAINING)
            trial.wait_round("b", 1)
            arrays = trial.engine().layout.arrays(trial.engine().initial())
            gossip.publish(Snapshot("trial", 1, "x", 1e9, 1, arrays))
            exchange = gossip.exchange(1, 5.0)
            assert "PERMISSION_DENIED" in exchange.silent["b"]
            trial.wait_finished(["a", "b", "c"], 12 * (DEADLINE + GOSSIP))
        finally:
            gossip.close()
        for hub, alone in (("a", set()), ("b", {"c"}), ("c", {"b"})):
            for row in trial.rows(hub):
                assert set(row["silent"]) == alone, (hub, row)
        rejected = trial.rows("b")[-1]["gossip_rejected"]
        assert rejected["a caller that is no neighbour"] >= 1
        assert rejected["a certificate that this network did not sign for that hub"] >= 1
        check(trial, ["a", "b", "c"])


def add_hub_x(trial: Deployment, folder: Path) -> NetworkFile:
    """Return a network with one more hub, next to b, and with a certificate for it."""
    superlink, gossip = (f"127.0.0.1:{port}" for port in free_ports(2))
    table = tomllib.loads(trial.path.read_text())
    table["edges"].append(["b", "x"])
    table["hub"].append({"id": "x", "workers": 1, "superlink": superlink, "gossip": gossip})
    path = folder / "stranger" / "network.toml"
    path.parent.mkdir()
    path.write_text(tomli_w.dumps(table))
    shutil.copytree(trial.network.certs, path.parent / "certs")
    network = load_network(path)
    make_certs(network, network.certs, extend=True)
    return network


@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_a_hub_whose_run_is_dead_ends(tmp_path: Path, fault: str) -> None:
    """Then systemd starts it again; before, a dead run was taken for one that is slow."""
    with deployment(tmp_path, {"a": 1}) as trial:
        trial.hub("a")
        trial.wait("the hub's app runs", lambda: "pid" in trial.now("a"))
        if fault == "killed":
            os.kill(trial.now("a")["pid"], signal.SIGKILL)
        else:
            # Flower misses the heartbeats of the run, and ends it.
            trial.signal("hub-a", signal.SIGSTOP)
            time.sleep(150.0)
            trial.signal("hub-a", signal.SIGCONT)
        process = trial.processes["hub-a"]
        trial.wait("the hub ends", lambda: process.poll() is not None, 150.0)
        assert process.returncode == 1
        assert "hub a: " in (tmp_path / "hub-a.out").read_text()
        del trial.processes["hub-a"]
        assert running_in(tmp_path) == []
        # Nobody else on the machine can read what it has left.
        for path in (trial.state, trial.state_of("a")):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        for path in trial.state_of("a").glob("superlink.db*"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    with deployment(tmp_path, {"a": 1}, rounds=50) as trial:
        trial.run("up", "up", str(trial.path))
        trial.wait_round("a", 1)
        assert len(running_in(tmp_path)) > 4
        process = trial.processes.pop("up")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        assert running_in(tmp_path) == []


def test_insecure_when_it_is_asked_for(tmp_path: Path) -> None:
    with deployment(tmp_path, {"a": 1, "b": 1}, rounds=2) as trial:
        shutil.rmtree(trial.network.certs)
        trial.run("up", "up", str(trial.path), "--insecure")
        process = trial.processes["up"]
        trial.wait("the network ends", lambda: process.poll() is not None, 6 * DEADLINE)
        assert process.returncode == 0, trial.report()
        assert "no TLS" in (tmp_path / "up.out").read_text()
        check(trial, ["a", "b"])
