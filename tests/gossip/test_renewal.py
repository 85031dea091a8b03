"""Certificates that are renewed while hubs run: nobody is started again."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

import pytest

from mll_flower.deployment.certs import make_certs, operator_files
from mll_flower.deployment.expiry import served_until
from mll_flower.deployment.network_file import NetworkFile
from mll_flower.gossip.tls import RenewedFiles
from tests.support.gossip_hubs import Start, exchange_all, publish, tls_files


@pytest.fixture
def certs(network: NetworkFile, tmp_path: Path) -> Path:
    make_certs(network, tmp_path / "certs", days=20)
    return tmp_path / "certs"


def test_hubs_take_renewed_certificates_while_they_run(
    network: NetworkFile, certs: Path, start: Start, ports: dict[str, int]
) -> None:
    hubs = [start(hub, peer, certs) for hub, peer in ("ab", "ba")]

    def days_left(hub: str) -> int:
        end = served_until(f"127.0.0.1:{ports[hub]}", operator_files(certs), 10.0)
        assert end is not None
        return round((end - dt.datetime.now(dt.UTC)) / dt.timedelta(days=1))

    def mix(mixing: int) -> None:
        publish(hubs, mixing)
        assert all(not exchange.silent for exchange in exchange_all(hubs, mixing, 20.0).values())

    mix(1)
    assert days_left("a") == 20
    channels = {hub.hub: hub._links for hub in hubs}
    before = [link.channel() for links in channels.values() for link in links.values()]
    make_certs(network, certs, days=100, renew=True)
    assert (days_left("a"), days_left("b")) == (100, 100)
    mix(2)
    after = [link.channel() for links in channels.values() for link in links.values()]
    assert not set(before) & set(after), "calls are made with the new certificate as well"


def test_a_certificate_without_its_key_is_not_taken(network: NetworkFile, certs: Path) -> None:
    tls = tls_files(certs, "a")
    files, old = RenewedFiles(tls), tls.read()
    other = certs.parent / "new"
    shutil.copytree(certs, other)
    make_certs(network, other, days=100, renew=True)
    shutil.copy(other / "hub-a.crt", tls.certificate)
    assert files.read() == old
    tls.certificate.write_text("not a certificate")
    assert files.read() == old
    tls.certificate.unlink()
    assert files.read() == old
    assert files.version == 0
    shutil.copy(other / "hub-a.crt", tls.certificate)
    shutil.copy(other / "hub-a.key", tls.key)
    assert files.read() == tls.read() != old
    assert files.version == 1


def test_nobody_shows_a_certificate_where_nobody_listens(
    certs: Path, ports: dict[str, int]
) -> None:
    assert served_until(f"127.0.0.1:{ports['d']}", operator_files(certs)) is None
