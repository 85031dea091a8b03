"""``mll-flower network``: a network's shares, mixing matrix, traffic and theory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from mll_flower.algorithm import theory
from mll_flower.algorithm.mixing import mixing_matrix, zeta
from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.schedule import check_periods

# So many hubs are printed; and so many make an H that fits a terminal.
_ROWS, _MATRIX = 40, 12
_FALLBACK_STEP = 0.01
_BYTES = 4  # float32

# What builds a network when no file does: the option and its default.
_DEFAULTS: dict[str, Any] = {
    "hubs": 5,
    "workers_per_hub": "4",
    "graph": "ring",
    "weights": "equal",
    "rates": "1",
}
_BUILD, _THEORY, _OUTPUT = "Network", "Theory", "Output"


def network(
    file: Annotated[Path | None, typer.Argument(help="A network in a .toml or .json file.")] = None,
    hubs: Annotated[
        int | None, typer.Option(help="D.", show_default="5", rich_help_panel=_BUILD)
    ] = None,
    workers_per_hub: Annotated[
        str | None,
        typer.Option(
            help="One number, or one a hub: 4,3,5.", show_default="4", rich_help_panel=_BUILD
        ),
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option(
            help="complete, path, ring, star, grid, random-regular, erdos-renyi, "
            "watts-strogatz, or a file.",
            show_default="ring",
            rich_help_panel=_BUILD,
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="equal, or one number a worker: 10,20,5.",
            show_default="equal",
            rich_help_panel=_BUILD,
        ),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            help="A number, one a worker, or fixed, uniform, skewed-fast, skewed-slow, two-speed.",
            show_default="1",
            rich_help_panel=_BUILD,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the random graphs.", rich_help_panel=_BUILD)
    ] = 0,
    mixing: Annotated[
        str,
        typer.Option(
            help="auto, metropolis, complete, diffusion, optimal, or a file with H.",
            rich_help_panel=_BUILD,
        ),
    ] = "auto",
    tau: Annotated[
        int, typer.Option(help="Slots between two averages.", rich_help_panel=_BUILD)
    ] = 8,
    q: Annotated[
        int, typer.Option(help="Averages between two mixings.", rich_help_panel=_BUILD)
    ] = 4,
    parameters: Annotated[
        int, typer.Option(help="float32 numbers in a model.", rich_help_panel=_BUILD)
    ] = 110_000,
    step_size: Annotated[
        float | None,
        typer.Option(
            help="eta of the bound.",
            show_default="the largest allowed, else 0.01",
            rich_help_panel=_THEORY,
        ),
    ] = None,
    lipschitz: Annotated[
        float,
        typer.Option("--L", help="Lipschitz constant of the gradient.", rich_help_panel=_THEORY),
    ] = 1.0,
    sigma2: Annotated[
        float, typer.Option(help="Variance that does not vanish.", rich_help_panel=_THEORY)
    ] = 1.0,
    beta: Annotated[
        float, typer.Option(help="Variance that grows with the gradient.", rich_help_panel=_THEORY)
    ] = 0.0,
    gap: Annotated[
        float, typer.Option(help="F(x_1) - F_inf, what there is to gain.", rich_help_panel=_THEORY)
    ] = 1.0,
    slots: Annotated[
        int | None,
        typer.Option(help="K.", show_default="the limit", rich_help_panel=_THEORY),
    ] = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Print H however large.", rich_help_panel=_OUTPUT)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON.", rich_help_panel=_OUTPUT)
    ] = False,
    draw: Annotated[
        Path | None,
        typer.Option(help="Draw the hub graph: .png, .svg.", rich_help_panel=_OUTPUT),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Save the network: .toml, .json.", rich_help_panel=_OUTPUT),
    ] = None,
) -> None:
    """Show a network: hubs, shares, H, zeta, bytes, and what the theory promises.

    FILE is a .toml or .json file with a network; without it the options below make one.
    """
    given = {
        "hubs": hubs,
        "workers_per_hub": workers_per_hub,
        "graph": graph,
        "weights": weights,
        "rates": rates,
    }
    net = _network(file, given, seed)
    H = mixing_matrix(net.graph, net.b, mixing)
    problem = theory.Problem(L=lipschitz, sigma2=sigma2, beta=beta, gap=gap)
    report = describe(net, H, tau, q, parameters, step_size, problem, slots)
    if save is not None:
        net.save(save)
    if draw is not None:
        from mll_flower.results.hub_graph import draw_hub_graph

        draw_hub_graph(net, draw, H)
    if as_json:
        typer.echo(json.dumps(report, indent=1))
        return
    _print(Console(highlight=False), report, H, matrix or net.hubs <= _MATRIX)


def _network(file: Path | None, given: dict[str, Any], seed: int) -> HubNetwork:
    if file is not None:
        both = ["--" + name.replace("_", "-") for name, value in given.items() if value is not None]
        if both:
            raise ValueError(f"{file} says it already: leave out {', '.join(both)}, or the file")
        return HubNetwork.load(file)
    value = {name: _DEFAULTS[name] if v is None else v for name, v in given.items()}
    counts = [_whole("--workers-per-hub", n) for n in str(value["workers_per_hub"]).split(",")]
    if given["hubs"] is None and len(counts) > 1:
        value["hubs"] = len(counts)
    return HubNetwork.build(
        hubs=value["hubs"],
        workers_per_hub=counts[0] if len(counts) == 1 else counts,
        graph=value["graph"],
        weights=_numbers_or_name(value["weights"], one_for_all=False),
        rates=_numbers_or_name(value["rates"], one_for_all=True),
        seed=seed,
    )


def _whole(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{option}: {text!r} is not a whole number") from None


def _numbers_or_name(text: str, one_for_all: bool) -> float | str | list[float]:
    """Read ``0.5`` or ``0.5,1,0.2``; anything else is a name, which the library checks."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        return text
    return numbers[0] if one_for_all and len(numbers) == 1 else numbers


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
    """Everything the command prints, as plain values."""
    check_periods(tau, q)
    if parameters < 1:
        raise ValueError(f"parameters={parameters}: a model has at least 1")
    workers = np.bincount(net.hub_of)
    mean_rate = np.bincount(net.hub_of, weights=net.p) / workers
    size, edges = parameters * _BYTES, net.graph.number_of_edges()
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
            # One model down to each worker and one up; at a mixing one each way on an edge.
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
        # check_mixing lets an H keep an edge unused; too many, and its hubs fall apart.
        return {
            "largest_step_size": None,
            "condition": "zeta is 1: this H leaves hubs that never hear of one another, or swing "
            "for ever, and the theorem promises nothing; give another --mixing",
        }
    largest = theory.largest_step_size(net, z, tau, q, problem)
    eta = step_size if step_size is not None else largest or _FALLBACK_STEP
    terms = theory.bound(net, z, tau, q, eta, problem, slots)
    slack = theory.step_size_slack(net, z, tau, q, eta, problem)
    # A rounding error at the largest step size itself is no failure.
    failing = int(np.count_nonzero(slack < -1e-9))
    return {
        "gamma": theory.gamma(z),
        "largest_step_size": largest,
        "condition": theory.explain_condition(net),
        "step_size": eta,
        "slots": slots,
        "workers_failing": failing,
        "bound": terms,
    }


def _print(console: Console, report: dict[str, Any], H: NDArray[np.float64], matrix: bool) -> None:
    hubs = report["hubs"]
    console.print(
        f"[bold]{_count(len(hubs), 'hub')}, {_count(report['workers'], 'worker')}, "
        f"{_count(report['edges'], 'edge')}[/]; tau = {report['tau']}, q = {report['q']}"
    )
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for heading in ("hub", "workers", "share b", "mean rate", "degree"):
        table.add_column(heading, justify="right")
    table.add_column("neighbours")
    for hub in hubs[:_ROWS]:
        near = ", ".join(map(str, hub["neighbours"][:8])) + (" ..." if hub["degree"] > 8 else "")
        table.add_row(
            str(hub["hub"]),
            str(hub["workers"]),
            f"{hub['share']:.4f}",
            f"{hub['mean_rate']:.3f}",
            str(hub["degree"]),
            near,
        )
    console.print(table)
    if len(hubs) > _ROWS:
        console.print(f"... and {len(hubs) - _ROWS} hubs more (--json shows all)", style="dim")

    console.print("\n[bold]Mixing matrix H[/] (column d: the weights of hub d's mix)")
    if matrix:
        for row in H:
            cells = " ".join(f"{x:5.3f}" if x else "    ·" for x in row)
            console.print(f"  {cells}", soft_wrap=True)
    else:
        console.print(f"  {len(hubs)} x {len(hubs)}; --matrix prints it", style="dim")
    console.print(
        f"  zeta = {_rounded(report['zeta'])}, spectral gap 1 - zeta = {report['spectral_gap']:.6g}"
    )

    sizes = report["bytes"]
    console.print(f"\n[bold]Bytes[/] (a model is {_bytes(sizes['model'])})")
    console.print(f"  a round:  {_bytes(sizes['round'])} down to the workers and up again")
    console.print(f"  a mixing: {_bytes(sizes['mixing'])}, two models an edge")
    console.print(f"  a slot, on average: {_bytes(sizes['slot'])}")
    _print_theory(console, report["theory"])


def _print_theory(console: Console, found: dict[str, Any]) -> None:
    console.print("\n[bold]Step-size condition of the theorem[/]")
    console.print(f"  {found['condition']}", soft_wrap=True)
    if found["largest_step_size"] is not None:
        console.print(f"  largest step size: {found['largest_step_size']:.6g}")
    if "bound" not in found:
        return
    when = "K to infinity" if found["slots"] is None else f"K = {found['slots']}"
    console.print(
        f"\n[bold]Bound[/] on the mean squared gradient norm at eta = "
        f"{found['step_size']:.6g}, {when}"
    )
    meaning = {
        "start": "distance to go",
        "noise": "variance of the gradients",
        "mixing": "hubs apart between mixings",
        "drift": "workers apart between averages",
        "total": "",
    }
    for name, value in found["bound"].items():
        console.print(f"  {name:<7}{value:>13.6g}  [dim]{meaning[name]}[/]")
    if found["workers_failing"]:
        console.print(
            f"  [yellow]not promised: eta fails the condition for "
            f"{_count(found['workers_failing'], 'worker')}[/]"
        )


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def _rounded(number: float) -> str:
    return f"{number:.6g}" if number > 1e-12 else "0"


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.4g} {unit}"
        number /= 1000
    return f"{number:.4g} TB"
