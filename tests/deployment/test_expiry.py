"""Certificates that have expired or soon will: said before anything starts, and to the operator."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mll_flower.deployment import certs as certs_module
from mll_flower.deployment.certs import make_certs
from mll_flower.deployment.credentials import (
    check_credentials,
    hub_credentials,
    operator_credentials,
)
from mll_flower.deployment.expiry import check_dates
from mll_flower.deployment.network_file import NetworkFile
from mll_flower.deployment.sites import HubSite
from mll_flower.deployment.status import status_warnings
from tests.support.deployment import example_with


class OtherDay(dt.datetime):
    """A clock that is some days away."""

    days = 0

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:  # type: ignore[override]
        return dt.datetime.now(tz) + dt.timedelta(days=cls.days)


@pytest.fixture
def network(tmp_path: Path) -> NetworkFile:
    network = example_with(tmp_path)
    make_certs(network, network.certs, days=365)
    return network


def made_on_another_day(
    network: NetworkFile, monkeypatch: pytest.MonkeyPatch, days: int, valid: int
) -> None:
    """Make the certificates as if it were some days from today."""
    with monkeypatch.context() as patch:
        patch.setattr(OtherDay, "days", days)
        clock = SimpleNamespace(datetime=OtherDay, timedelta=dt.timedelta, UTC=dt.UTC)
        patch.setattr(certs_module, "dt", clock)
        make_certs(network, network.certs, days=valid, overwrite=True)


def test_valid_certificates_pass(network: NetworkFile) -> None:
    check_credentials(network, hub_credentials(network, "a"), insecure=False)
    assert status_warnings(network, {"a": {"certificate_until": None}}) == []


def test_an_expired_certificate_stops_a_hub_before_anything_starts(
    network: NetworkFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_on_another_day(network, monkeypatch, days=-100, valid=50)
    end = f"{dt.datetime.now(dt.UTC) - dt.timedelta(days=50):%Y-%m-%d}"
    text = rf"hub-a\.crt expired on {end}: run `mll-flower certs .*network.toml --renew`"
    with pytest.raises(ValueError, match=text):
        HubSite(network, "a", None, None)  # type: ignore[arg-type]
    check_credentials(network, hub_credentials(network, "a"), insecure=True)
    make_certs(network, network.certs, renew=True)
    check_credentials(network, hub_credentials(network, "a"), insecure=False)


def test_a_clock_in_the_past_is_named(
    network: NetworkFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_on_another_day(network, monkeypatch, days=400, valid=50)
    with pytest.raises(ValueError, match=r"valid from .* only, and this machine's clock says"):
        check_credentials(network, operator_credentials(network), insecure=False)


def test_a_file_that_is_no_certificate_is_named(network: NetworkFile) -> None:
    (network.certs / "hub-a.crt").write_text("garbage")
    with pytest.raises(ValueError, match=r"hub-a\.crt is not a certificate"):
        check_dates(network, [network.certs / "hub-a.crt"])


def test_status_warns_a_month_ahead(network: NetworkFile, monkeypatch: pytest.MonkeyPatch) -> None:
    now = dt.datetime.now(dt.UTC)

    def ends_in(days: float) -> dict[str, Any]:
        return {"certificate_until": (now + dt.timedelta(days=days)).isoformat()}

    answers = {"a": ends_in(31), "b": ends_in(12.5), "c": ends_in(-2)}
    b, c = status_warnings(network, answers)
    assert b.startswith("the certificate of hub b expires on ")
    assert ", in 12 days: renew with `mll-flower certs" in b
    assert c.startswith(f"the certificate of hub c expired on {now - dt.timedelta(2):%Y-%m-%d}: ")
    assert status_warnings(network, answers, insecure=True) == []
    make_certs(network, network.certs, days=20, renew=True)
    (own,) = status_warnings(network, {})
    assert own.startswith("operator.crt expires on ")
