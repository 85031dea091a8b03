"""The description that ``mll-flower network`` prints: as plain values, and as text."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from mll_flower.algorithm import any_rate_theory, theory
from mll_flower.algorithm.mixing import zeta
from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.schedule import check_periods
from mll_flower.results.formatting import BOUND_TERMS, format_bytes, format_count

# Hubs that are listed at most, and hubs up to which H fits a terminal.
_MOST_HUBS, _MOST_COLUMNS = 40, 12
# eta of the bound when no step size meets the theorem's condition.
_FALLBACK_STEP_SIZE = 0.01
_BYTES_PER_NUMBER = 4  # float32


def describe(
    net: HubNetwork,
    H: NDArray[np.float64],
    tau: int,
    q: int,
    parameters: int,
    step_size: float | None,
    problem: theory.Problem,
    slots: int | None,
) -> dict[str, Any]:
    """Return everything that the command prints, as values that JSON can hold.

    Parameters
    ----------
    net : HubNetwork
        The network.
    H : ndarray
        Its mixing matrix.
    tau, q : int
        Slots between two sub-network averages; averages between two mixings.
    parameters : int
        Numbers in a model.
    step_size : float or None
        eta of the bound; the largest that the theorem allows if None.
    problem : Problem
        Constants of the objective.
    slots : int or None
        K; the limit of infinitely many if None.
    """
    check_periods(tau, q)
    if parameters < 1:
        raise ValueError(f"parameters={parameters}: a model has at least 1")
    workers = np.bincount(net.hub_of)
    mean_rate = np.bincount(net.hub_of, weights=net.p) / workers
    size, edges = parameters * _BYTES_PER_NUMBER, net.graph.number_of_edges()
    z = zeta(H)
    return {
        "hubs": [
            {
                "hub": d,
                "workers": int(workers[d]),
                "share": float(net.b[d]),
                "mean_rate": float(mean_rate[d]),
                "degree": int(net.graph.degree[d]),
                "neighbours": sorted(int(j) for j in net.graph[d]),
            }
            for d in range(net.hubs)
        ],
        "workers": net.workers,
        "edges": edges,
        "tau": tau,
        "q": q,
        "H": H.tolist(),
        "zeta": z,
        "spectral_gap": 1 - z,
        "bytes": {
            "model": size,
            # One model down to each worker and one up; at a mixing, one each way over each edge.
            "round": 2 * net.workers * size,
            "mixing": 2 * edges * size,
            "slot": 2 * size * (net.workers / tau + edges / (q * tau)),
        },
        "theory": _theory(net, z, tau, q, step_size, problem, slots),
    }


def _theory(
    net: HubNetwork,
    z: float,
    tau: int,
    q: int,
    step_size: float | None,
    problem: theory.Problem,
    slots: int | None,
) -> dict[str, Any]:
    if z > 1 - 1e-12:
        # An H from a file may leave edges unused, and so cut hubs off from the others.
        return {
            "largest_step_size": None,
            "condition": "zeta is 1: with this H the hubs never agree, because some do not reach "
            "others or their models alternate, and the theorem guarantees nothing; give another "
            "--mixing",
        }
    largest = theory.largest_step_size(net, z, tau, q, problem)
    eta = step_size if step_size is not None else largest or _FALLBACK_STEP_SIZE
    terms = theory.bound(net, z, tau, q, eta, problem, slots)
    slack = theory.step_size_slack(net, z, tau, q, eta, problem)
    # At the largest step size itself, the slack is zero up to rounding.
    failing = int(np.count_nonzero(slack < -1e-9))
    return {
        "gamma": theory.gamma(z),
        "largest_step_size": largest,
        "condition": theory.explain_condition(net),
        "step_size": eta,
        "slots": slots,
        "workers_failing": failing,
        "bound": terms,
        "rate_pull": any_rate_theory.rate_pull(net),
        "any_rate": _any_rate_theory(net, z, tau, q, step_size, problem, slots),
    }


def _any_rate_theory(
    net: HubNetwork,
    z: float,
    tau: int,
    q: int,
    step_size: float | None,
    problem: theory.Problem,
    slots: int | None,
) -> dict[str, Any]:
    """Return this project's own bound, which holds at any rates."""
    largest = any_rate_theory.any_rate_step_size(net, z, tau, q, problem)
    eta = largest if step_size is None else step_size
    slack = any_rate_theory.any_rate_slack(net, z, tau, q, eta, problem)
    return {
        "largest_step_size": largest,
        "step_size": eta,
        "workers_failing": int(np.count_nonzero(slack < -1e-9)),
        "bound": any_rate_theory.any_rate_bound(net, z, tau, q, eta, problem, slots),
    }


def print_description(
    console: Console, description: dict[str, Any], H: NDArray[np.float64], whole_matrix: bool
) -> None:
    """Print what `describe` returned.

    Parameters
    ----------
    console : Console
        Where to print.
    description : dict
        From `describe`.
    H : ndarray
        The mixing matrix.
    whole_matrix : bool
        Whether to print H even if it is too large for a terminal.
    """
    hubs = description["hubs"]
    counts = {"hub": len(hubs), "worker": description["workers"], "edge": description["edges"]}
    summary = ", ".join(format_count(number, noun) for noun, number in counts.items())
    console.print(f"[bold]{summary}[/]; tau = {description['tau']}, q = {description['q']}")
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for heading in ("hub", "workers", "share b", "mean rate", "degree"):
        table.add_column(heading, justify="right")
    table.add_column("neighbours")
    for hub in hubs[:_MOST_HUBS]:
        neighbours = ", ".join(map(str, hub["neighbours"][:8]))
        table.add_row(
            str(hub["hub"]),
            str(hub["workers"]),
            f"{hub['share']:.4f}",
            f"{hub['mean_rate']:.3f}",
            str(hub["degree"]),
            neighbours + (" ..." if hub["degree"] > 8 else ""),
        )
    console.print(table)
    if len(hubs) > _MOST_HUBS:
        console.print(f"... and {len(hubs) - _MOST_HUBS} more hubs (--json shows all)", style="dim")

    console.print("\n[bold]Mixing matrix H[/] (column d: the weights with which hub d mixes)")
    if whole_matrix or len(hubs) <= _MOST_COLUMNS:
        for row in H:
            cells = " ".join(f"{x:5.3f}" if x else "    ·" for x in row)
            console.print(f"  {cells}", soft_wrap=True)
    else:
        console.print(f"  {len(hubs)} x {len(hubs)}; --matrix prints it", style="dim")
    zeta_text, gap = _rounded(description["zeta"]), description["spectral_gap"]
    console.print(f"  zeta = {zeta_text}, spectral gap 1 - zeta = {gap:.6g}")

    sizes = description["bytes"]
    console.print(f"\n[bold]Bytes[/] (a model has {format_bytes(sizes['model'])})")
    console.print(f"  per round:  {format_bytes(sizes['round'])} down to the workers and up again")
    console.print(f"  per mixing: {format_bytes(sizes['mixing'])}, two models per edge")
    console.print(f"  per slot:   {format_bytes(sizes['slot'])} on average")
    _print_theory(console, description["theory"])


def _print_theory(console: Console, guarantees: dict[str, Any]) -> None:
    console.print("\n[bold]Step-size condition of the theorem[/]")
    console.print(f"  {guarantees['condition']}", soft_wrap=True)
    if guarantees["largest_step_size"] is not None:
        console.print(f"  largest step size: {guarantees['largest_step_size']:.6g}")
    if "bound" not in guarantees:
        return
    _print_bound(console, "Bound", guarantees, guarantees["slots"])
    own = guarantees["any_rate"]
    console.print("\n[bold]This project's own bound[/], which asks nothing of single rates")
    console.print(f"  largest step size: {own['largest_step_size']:.6g}")
    _print_bound(console, "Bound of our own", own, guarantees["slots"])
    console.print(
        f"\n[bold]Rates and data that differ[/]: chi^2 = {_rounded(guarantees['rate_pull'])}"
    )
    console.print(f"  {_explain_pull(guarantees['rate_pull'])}", soft_wrap=True)


def _print_bound(
    console: Console, title: str, guarantees: dict[str, Any], slots: int | None
) -> None:
    when = "K to infinity" if slots is None else f"K = {slots}"
    console.print(
        f"\n[bold]{title}[/] on the mean squared gradient norm at eta = "
        f"{guarantees['step_size']:.6g}, {when}"
    )
    for name, value in guarantees["bound"].items():
        console.print(f"  {name:<7}{value:>13.6g}  [dim]{BOUND_TERMS[name]}[/]")
    if guarantees["workers_failing"]:
        console.print(
            f"  [yellow]not guaranteed: eta fails the condition for "
            f"{format_count(guarantees['workers_failing'], 'worker')}[/]"
        )


def _explain_pull(pull: float) -> str:
    if pull < 1e-12:
        return "all workers have the same rate, so that rates do not pull the model anywhere"
    return (
        "the workers' rates differ: where their data differ too, the model goes to the optimum of "
        "the rate-weighted objective, whose gradient is off by up to "
        f"{pull**0.5:.3g} times the spread of the workers' gradients"
    )


def _rounded(number: float) -> str:
    return f"{number:.6g}" if number > 1e-12 else "0"
