"""Why a SuperLink may turn a worker away: their clocks, or its certificate.

Flower's SuperNode signs the time of each call. Its SuperLink refuses those whose time is more than
some seconds ahead or some minutes behind, and says no more than that they are not authentic.
"""

from __future__ import annotations

import http.client
import ssl
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

from mll_flower.deployment.network_entries import host_of, port_of

AHEAD = float(SYSTEM_TIME_TOLERANCE)
"""Seconds that a worker's clock may be ahead of its hub's."""

BEHIND = float(TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE)
"""Seconds that it may be behind."""

_SECOND = 1.0  # a server writes its time in whole seconds


def why_turned_away(superlink: str, ca: Path | None, timeout: float = 2.0) -> str:
    """Return what is wrong between this machine and a SuperLink; empty if nothing is found.

    Parameters
    ----------
    superlink : str
        ``host:port``.
    ca : Path | None
        Certificate of the network's authority; None without TLS.
    timeout : float
        Seconds that the SuperLink has to answer.
    """
    try:
        ahead = _ahead(superlink, ca, timeout)
    except ssl.SSLCertVerificationError as error:
        return (
            f"the certificate of {superlink} is refused here ({error.verify_message}); this "
            f"machine's clock says {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC: if that "
            "is wrong, set the clock; otherwise renew the certificate (mll-flower certs --renew)"
        )
    except (OSError, ValueError, http.client.HTTPException):
        return ""
    if -BEHIND < ahead < AHEAD + _SECOND:
        return ""
    side = "ahead of" if ahead > 0 else "behind"
    return (
        f"this machine's clock is {abs(ahead):.0f} s {side} that of its hub, which refuses "
        f"workers whose clock is more than {AHEAD:g} s ahead or {BEHIND:g} s behind: set the "
        "clocks of both, best by NTP"
    )


def _ahead(superlink: str, ca: Path | None, timeout: float) -> float:
    """Return by how many seconds this clock is ahead of that of a SuperLink."""
    place = host_of(superlink), port_of(superlink)
    connection: http.client.HTTPConnection
    if ca is None:
        connection = http.client.HTTPConnection(*place, timeout=timeout)
    else:
        trust = ssl.create_default_context(cafile=str(ca))
        connection = http.client.HTTPSConnection(*place, timeout=timeout, context=trust)
    try:
        # Any answer will do, also that there is nothing to be seen here: each is dated.
        connection.request("GET", "/")
        date = connection.getresponse().headers["Date"]
        return time.time() - parsedate_to_datetime(date or "").timestamp()
    finally:
        connection.close()
