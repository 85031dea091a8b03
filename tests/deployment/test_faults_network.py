"""Links between hubs that are cut, slow or lossy, and strangers at their ports.

Tests end with a replay, see `tests.support.faults`.
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tomli_w

from mll_flower.deployment.certs import make_certs
from mll_flower.deployment.hub_gossip import start_gossip
from mll_flower.deployment.hub_state import Phase
from mll_flower.deployment.network_file import NetworkFile, load_network
from mll_flower.gossip import Snapshot
from tests.support.deployment import Deployment, free_ports
from tests.support.faults import DEADLINE, GOSSIP, LONG, check, network, stop_and_check
from tests.support.flood import Flood
from tests.support.proxy import Proxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@contextmanager
def linked_by_proxies(trial: Deployment) -> Iterator[list[Proxy]]:
    """Start hubs a and b, each of which reaches the other through a proxy; yield the proxies."""
    proxies = {hub: Proxy(port) for hub, port in trial.gossip_port.items()}
    try:
        for hub, other in (("a", "b"), ("b", "a")):
            text = trial.path.read_text()
            seen = f"127.0.0.1:{proxies[other].port}"
            path = trial.folder / f"network-{hub}.toml"
            path.write_text(text.replace(f"127.0.0.1:{trial.gossip_port[other]}", seen))
            trial.hub(hub, path)
            trial.worker(hub, 0)
        yield list(proxies.values())
    finally:
        for proxy in proxies.values():
            proxy.close()


def test_a_cut_link_is_dropped_on_both_sides_and_used_again(tmp_path: Path) -> None:
    with network(tmp_path, {"a": 1, "b": 1}, rounds=8) as trial:
        with linked_by_proxies(trial) as proxies:
            trial.wait_round("a", 2)
            for proxy in proxies:
                proxy.cut()
            for hub in ("a", "b"):
                trial.wait(
                    f"hub {hub} is alone",
                    lambda hub=hub: any(row["silent"] for row in trial.rows(hub)),
                    3 * (DEADLINE + GOSSIP),
                )
            for proxy in proxies:
                proxy.mend()
            trial.wait_finished(["a", "b"], 12 * (DEADLINE + GOSSIP))
        alone = {hub: [r["mixing"] for r in trial.rows(hub) if r["silent"]] for hub in ("a", "b")}
        assert alone["a"] == alone["b"]
        assert 1 <= len(alone["a"]) < 6
        assert trial.rows("a")[-1]["column"].keys() == {"a", "b"}
        check(trial, ["a", "b"])


def test_delay_and_loss_and_then_a_flood(tmp_path: Path) -> None:
    trial = network(tmp_path, {"a": 1, "b": 1}, rounds=LONG)
    with trial, linked_by_proxies(trial) as proxies:
        trial.wait_round("a", 2)

        for proxy in proxies:
            proxy.delay, proxy.loss = 0.3, 0.2
        lossy = len(trial.rows("a"))
        trial.wait_round("a", trial.rows("a")[-1]["round"] + 6, 12 * (DEADLINE + GOSSIP))
        for proxy in proxies:
            proxy.delay = proxy.loss = 0.0
        print(f"\nlost: {[p.lost for p in proxies]}, ended: {[p.ended for p in proxies]}")
        assert sum(proxy.lost for proxy in proxies) > 0
        mixed = [row for row in trial.rows("a")[lossy:] if "b" in row["column"]]
        assert len(mixed) >= 3

        before = trial.rows("a")[-1]["round"]
        with Flood(trial.gossip_port["a"]) as flood:
            trial.wait_round("a", before + 8, 12 * (DEADLINE + GOSSIP))
            flooded = [row for row in trial.rows("a") if before + 2 <= row["round"]]
        print(f"{flood.opened} connections, {flood.garbage} with random bytes")
        assert flood.opened >= 500
        assert flood.garbage >= 100
        assert all(row["column"].keys() == {"a", "b"} for row in flooded), flooded
        stop_and_check(trial, ["a", "b"])


def test_hubs_of_another_authority_or_of_no_network_file_are_kept_out(tmp_path: Path) -> None:
    hubs = {"a": 1, "b": 1, "c": 1}
    with network(tmp_path, hubs, rounds=4) as trial:
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
    joined = load_network(path)
    make_certs(joined, joined.certs, extend=True)
    return joined
