"""``mll-flower network``: describe a network before it runs.

The network comes from a file or from options; `network_description` computes and prints the
hubs' shares of the weight, the mixing matrix H, the traffic, and the paper's convergence bound.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from mll_flower.algorithm import theory
from mll_flower.algorithm.mixing import mixing_matrix
from mll_flower.algorithm.network import HubNetwork
from mll_flower.cli.network_description import describe, print_description

# The options that build a network when no file is given, and their defaults.
_DEFAULTS: dict[str, Any] = {
    "hubs": 5,
    "workers_per_hub": "4",
    "graph": "ring",
    "weights": "equal",
    "rates": "1",
}
# From so many hubs on, graph, H and zeta may take long enough to make a user wonder.
_MANY_HUBS = 1000
# Titles of the groups of options in the help.
_BUILD, _THEORY, _OUTPUT = "Network", "Theory", "Output"


def network(
    file: Annotated[Path | None, typer.Argument(help="A .toml or .json file.")] = None,
    hubs: Annotated[
        int | None,
        typer.Option(help="Number of hubs (D).", show_default="5", rich_help_panel=_BUILD),
    ] = None,
    workers_per_hub: Annotated[
        str | None,
        typer.Option(
            help="One number, or one per hub: 4,3,5.", show_default="4", rich_help_panel=_BUILD
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
            help="equal, or one number per worker: 10,20,5.",
            show_default="equal",
            rich_help_panel=_BUILD,
        ),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            help="One number, one per worker, one per hub (hub:1,0.5), fixed, uniform, "
            "skewed-fast, skewed-slow, or two-speed.",
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
        int, typer.Option(help="Slots between two sub-network averages.", rich_help_panel=_BUILD)
    ] = 8,
    q: Annotated[
        int, typer.Option(help="Sub-network averages between two mixings.", rich_help_panel=_BUILD)
    ] = 4,
    parameters: Annotated[
        int, typer.Option(help="Numbers in a model (float32).", rich_help_panel=_BUILD)
    ] = 110_000,
    step_size: Annotated[
        float | None,
        typer.Option(
            help="Step size eta of the bound.",
            show_default="the largest allowed, else 0.01",
            rich_help_panel=_THEORY,
        ),
    ] = None,
    lipschitz: Annotated[
        float,
        typer.Option("--L", help="Lipschitz constant of the gradient.", rich_help_panel=_THEORY),
    ] = 1.0,
    sigma2: Annotated[
        float,
        typer.Option(help="Gradient variance at a stationary point.", rich_help_panel=_THEORY),
    ] = 1.0,
    beta: Annotated[
        float,
        typer.Option(
            help="Growth of the variance with the squared gradient norm.", rich_help_panel=_THEORY
        ),
    ] = 0.0,
    gap: Annotated[
        float,
        typer.Option(
            help="F(x_1) - F_inf: initial loss minus the lowest.", rich_help_panel=_THEORY
        ),
    ] = 1.0,
    slots: Annotated[
        int | None,
        typer.Option(
            help="Slots of the run (K).", show_default="infinitely many", rich_help_panel=_THEORY
        ),
    ] = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Print H, however large.", rich_help_panel=_OUTPUT)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON.", rich_help_panel=_OUTPUT)
    ] = False,
    draw: Annotated[
        Path | None,
        typer.Option(
            help="Draw the hub graph to this .png, .svg or .pdf.", rich_help_panel=_OUTPUT
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Save the network to this .toml or .json, for `mll-flower run --config`.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
) -> None:
    """Describe a network: hubs, shares, H, zeta, bytes, and what the theory guarantees.

    FILE is a .toml or .json file with a network; without it, the options below define one.
    """
    given = {
        "hubs": hubs,
        "workers_per_hub": workers_per_hub,
        "graph": graph,
        "weights": weights,
        "rates": rates,
    }
    if (hubs or 0) >= _MANY_HUBS:
        note = f"Working out the network of {hubs:,} hubs; with many edges this takes a minute."
        Console(stderr=True, highlight=False).print(note, soft_wrap=True)
    net = _load_or_build(file, given, seed)
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
    print_description(Console(highlight=False), report, H, matrix)


def _load_or_build(file: Path | None, given: dict[str, Any], seed: int) -> HubNetwork:
    if file is not None:
        both = ["--" + name.replace("_", "-") for name, value in given.items() if value is not None]
        if both:
            raise ValueError(
                f"{file} defines the network already: leave out {', '.join(both)}, or the file"
            )
        return HubNetwork.load(file)
    values = {name: _DEFAULTS[name] if v is None else v for name, v in given.items()}
    counts = [
        _whole_number("--workers-per-hub", n) for n in str(values["workers_per_hub"]).split(",")
    ]
    if given["hubs"] is None and len(counts) > 1:
        values["hubs"] = len(counts)
    return HubNetwork.build(
        hubs=values["hubs"],
        workers_per_hub=counts[0] if len(counts) == 1 else counts,
        graph=values["graph"],
        weights=_numbers_or_name(values["weights"], one_for_all=False),
        rates=_numbers_or_name(values["rates"], one_for_all=True),
        seed=seed,
    )


def _whole_number(option: str, text: str) -> int:
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
