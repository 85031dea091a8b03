"""Ask the hubs of a network for their status, and show it as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rich.table import Table
from rich.text import Text

from mll_flower.deployment.certs import operator_files
from mll_flower.deployment.credentials import check_credentials, operator_credentials
from mll_flower.deployment.expiry import expiry_warnings, served_until
from mll_flower.deployment.network_entries import HubEntry, NetworkFile
from mll_flower.gossip.grpc_client import call, open_channel
from mll_flower.gossip.results import PeerSilent
from mll_flower.gossip.snapshot import RejectedSnapshot

COLUMNS = ("hub", "phase", "round", "mixing", "workers", "deadline", "loss", "neighbours")


def ask_hub(
    network: NetworkFile,
    hub: str,
    timeout: float = 2.0,
    *,
    insecure: bool = False,
    after: int | None = None,
) -> dict[str, Any]:
    """Return the status of one hub, asked with the operator's certificate.

    Parameters
    ----------
    network : NetworkFile
        The deployment.
    hub : str
        Id of the hub.
    timeout : float
        Seconds that the hub has to answer.
    insecure : bool
        Without TLS.
    after : int, optional
        Also ask for the rounds after this one, under ``rounds``; a hub gives as many as fit.

    Raises
    ------
    PeerSilent, RejectedSnapshot
        The hub does not answer, or its certificate is not the expected one; the text says why.
    """
    tls = None if insecure else operator_files(network.certs)
    channel = open_channel(network.hub(hub).gossip, hub, tls)
    try:
        request = {} if after is None else {"rounds-after": after}
        return call(channel, "Status", json.dumps(request).encode(), timeout)
    finally:
        channel.close()


def _certificate_until(network: NetworkFile, hub: str, timeout: float) -> dict[str, str]:
    until = served_until(network.hub(hub).gossip, operator_files(network.certs), timeout)
    return {} if until is None else {"certificate_until": until.isoformat()}


def ask_hubs(
    network: NetworkFile,
    insecure: bool = False,
    timeout: float = 2.0,
    after: Mapping[str, int] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the status of each hub by id, all asked at once.

    ``reachable`` says whether a hub answered; if it did not, ``reason`` says why.
    ``certificate_until`` is the end of the certificate that it shows, as far as it shows one.

    Parameters
    ----------
    network : NetworkFile
        The deployment.
    insecure : bool
        Without TLS.
    timeout : float
        Seconds that a hub has to answer.
    after : Mapping, optional
        By hub, the round after which its rounds are asked for, too.
    """
    check_credentials(network, operator_credentials(network), insecure)

    def ask(hub: str) -> dict[str, Any]:
        # What the hub says of itself comes first: it may claim nothing about what was seen.
        until = {} if insecure else _certificate_until(network, hub, timeout)
        try:
            known = None if after is None else after[hub]
            answer = ask_hub(network, hub, timeout, insecure=insecure, after=known)
            return {**answer, "certificate_until": None, **until, "reachable": True}
        except (PeerSilent, RejectedSnapshot) as reason:
            return {"reachable": False, "reason": str(reason), **until}

    ids = [hub.id for hub in network.hubs]
    with ThreadPoolExecutor(len(ids)) as pool:
        return dict(zip(ids, pool.map(ask, ids), strict=True))


def status_warnings(
    network: NetworkFile, answers: Mapping[str, Mapping[str, Any]], insecure: bool = False
) -> list[str]:
    """Return what the operator should see to: certificates that end within a month.

    Parameters
    ----------
    network, answers
        As in `status_table`.
    insecure : bool
        Without TLS.
    """
    if insecure:
        return []
    tls = operator_files(network.certs)
    return expiry_warnings(network, answers, [tls.ca, tls.certificate])


def status_table(network: NetworkFile, answers: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table of what the hubs have answered, one row per hub.

    Parameters
    ----------
    network : NetworkFile
        The deployment.
    answers : Mapping
        The status of each hub by id, from `ask_hubs`.
    """
    table = Table(title=f"{network.name}: {len(network.hubs)} hubs, {network.rounds} rounds")
    for column in COLUMNS:
        table.add_column(column)
    for entry in network.hubs:
        table.add_row(*_cells(entry, answers[entry.id], network.rounds))
    return table


def _cells(entry: HubEntry, answer: Mapping[str, Any], rounds: int) -> list[Text]:
    if not answer["reachable"]:
        reason = _text(answer["reason"], 200)
        return [Text(entry.id), Text("unreachable", "red"), *[Text()] * 5, reason]
    loss, deadline = answer.get("loss"), answer.get("deadline")
    outcomes = answer.get("neighbours")
    neighbours = [
        _text(peer, style="green")
        if outcome == "mixed"
        else _text(f"{peer}: {str(outcome)[:60]}", 120, "yellow")
        for peer, outcome in (outcomes.items() if isinstance(outcomes, dict) else ())
    ]
    return [
        Text(entry.id),
        _text(answer.get("phase", "")),
        _text(f"{answer.get('round', 0)} / {rounds}"),
        _text(answer.get("mixing") or 0),
        _text(f"{answer.get('workers', '-')} of {entry.workers}{_causes(answer)}"),
        Text(f"{deadline:.1f} s" if isinstance(deadline, float) else "-"),
        Text(f"{loss:.4f}" if isinstance(loss, float) else "-"),
        Text(", ").join(neighbours),
    ]


def _causes(answer: Mapping[str, Any]) -> str:
    """Return why workers were absent from the last round, if any was."""
    causes = answer.get("causes")
    if not isinstance(causes, dict) or not causes:
        return ""
    return ": " + ", ".join(f"{number} {cause}" for cause, number in causes.items())


def _text(value: object, most: int = 60, style: str = "") -> Text:
    """Return what a hub has said for the screen, whatever it is.

    `Text`, not `str`: Rich would take square brackets for its markup. Characters that a terminal
    would obey instead of showing them are left out.
    """
    return Text("".join(c if c.isprintable() else " " for c in str(value)[:most]), style)
