"""When certificates end: checked before anything starts, and shown to the operator beforehand."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cryptography import x509

from mll_flower.deployment.network_entries import NetworkFile, host_of, port_of
from mll_flower.gossip.tls import TlsFiles

WARNING_DAYS = 30
"""Days before its end from which a certificate is warned about."""


def check_dates(network: NetworkFile, certificates: Iterable[Path]) -> None:
    """Raise an error that names the remedy if a certificate is not valid today.

    Parameters
    ----------
    network : NetworkFile
        The deployment.
    certificates : Iterable[Path]
        The certificates' files.
    """
    now = dt.datetime.now(dt.UTC)
    for path in certificates:
        certificate = _load(path)
        if now > certificate.not_valid_after_utc:
            raise ValueError(
                f"{path} expired on {certificate.not_valid_after_utc:%Y-%m-%d}: run `mll-flower "
                f"certs {network.path} --renew` where ca.key is, and copy the new file here (if "
                f"that date is not past, set this machine's clock, which says {now:%Y-%m-%d %H:%M} "
                "UTC)"
            )
        if now < certificate.not_valid_before_utc:
            raise ValueError(
                f"{path} is valid from {certificate.not_valid_before_utc:%Y-%m-%d} only, and this "
                f"machine's clock says {now:%Y-%m-%d %H:%M} UTC: set the clock"
            )


def served_until(address: str, tls: TlsFiles, timeout: float = 2.0) -> dt.datetime | None:
    """Return the end of the certificate that a hub shows to a caller; None if it shows none.

    Parameters
    ----------
    address : str
        ``host:port`` of the hub's gossip.
    tls : TlsFiles
        The caller's certificate and key.
    timeout : float
        Seconds that the hub has to answer.
    """
    # Nothing is believed but the date, and that for a warning: also of an expired certificate.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        context.load_cert_chain(tls.certificate, tls.key)
        with (
            socket.create_connection((host_of(address), port_of(address)), timeout) as plain,
            context.wrap_socket(plain) as secure,
        ):
            shown = secure.getpeercert(binary_form=True)
            return x509.load_der_x509_certificate(shown).not_valid_after_utc if shown else None
    except (OSError, ValueError):
        return None


def expiry_warnings(
    network: NetworkFile, answers: Mapping[str, Mapping[str, Any]], own: Iterable[Path]
) -> list[str]:
    """Return a line for each certificate that has expired or soon will.

    Parameters
    ----------
    network : NetworkFile
        The deployment.
    answers : Mapping
        The status of each hub by id; ``certificate_until`` is the end of its certificate, in
        ISO form.
    own : Iterable[Path]
        Certificates of the operator: also looked at.
    """
    ends = {path.name: _load(path).not_valid_after_utc for path in own}
    for hub, answer in answers.items():
        until = answer.get("certificate_until")
        if isinstance(until, str):
            ends[f"the certificate of hub {hub}"] = dt.datetime.fromisoformat(until)
    now, lines = dt.datetime.now(dt.UTC), []
    for what, end in ends.items():
        days = (end - now).days
        if end <= now:
            lines.append(f"{what} expired on {end:%Y-%m-%d}")
        elif days < WARNING_DAYS:
            lines.append(f"{what} expires on {end:%Y-%m-%d}, in {days} days")
    remedy = f"renew with `mll-flower certs {network.path} --renew` where ca.key is"
    return [f"{line}: {remedy}" for line in lines]


def _load(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not a certificate ({error}): copy it here again") from None
