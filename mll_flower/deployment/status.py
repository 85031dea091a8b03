"""How the hubs of a network are, asked of each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rich.table import Table

from mll_flower.deployment.certs import operator_files
from mll_flower.deployment.commands import check_files
from mll_flower.deployment.connect import read_status
from mll_flower.deployment.network_entries import NetworkFile
from mll_flower.gossip.results import PeerSilent
from mll_flower.gossip.snapshot import RejectedSnapshot


def survey(
    network: NetworkFile, insecure: bool = False, timeout: float = 2.0
) -> dict[str, dict[str, Any]]:
    """Ask all hubs at once; a hub that does not answer has ``reachable`` false and a reason.

    Parameters
    ----------
    network : NetworkFile
        The deployment.
    insecure : bool
        Without TLS.
    timeout : float
        Seconds that a hub has to answer.
    """
    operator = operator_files(network.certs)
    check_files(network, [operator.ca, operator.certificate, operator.key], insecure)

    def ask(hub: str) -> dict[str, Any]:
        try:
            return {"reachable": True, **read_status(network, hub, timeout, insecure=insecure)}
        except (PeerSilent, RejectedSnapshot) as reason:
            return {"reachable": False, "reason": str(reason)}

    ids = [hub.id for hub in network.hubs]
    with ThreadPoolExecutor(len(ids)) as pool:
        return dict(zip(ids, pool.map(ask, ids), strict=True))


def table(network: NetworkFile, found: dict[str, dict[str, Any]]) -> Table:
    """Draw what the hubs have said."""
    drawn = Table(title=f"{network.name}: {len(network.hubs)} hubs, {network.rounds} rounds")
    for column in ("hub", "phase", "round", "mixing", "workers", "loss", "neighbours"):
        drawn.add_column(column)
    for entry in network.hubs:
        told = found[entry.id]
        if not told["reachable"]:
            reason = str(told["reason"])[:200]
            drawn.add_row(entry.id, "[red]unreachable[/red]", "", "", "", "", reason)
            continue
        loss = told.get("loss")
        met = told.get("neighbours", {})
        neighbours = ", ".join(
            f"[green]{peer}[/green]" if why == "mixed" else f"[yellow]{peer}: {why[:60]}[/yellow]"
            for peer, why in met.items()
        )
        drawn.add_row(
            entry.id,
            str(told.get("phase", "")),
            f"{told.get('round', 0)} / {network.rounds}",
            str(told.get("mixing") or 0),
            f"{told.get('workers', '-')} of {entry.workers}",
            f"{loss:.4f}" if isinstance(loss, float) else "-",
            neighbours,
        )
    return drawn
