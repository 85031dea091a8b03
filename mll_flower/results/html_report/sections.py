"""The report's parts that are text and tables, as HTML; they need no script."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.theory import Problem, bound, explain_condition, gamma, largest_step_size
from mll_flower.results.html_report.data import spread
from mll_flower.results.runs import Run

ROWS = 200
"""Rows of a table, at most."""


def number(value: float | None, digits: int = 4) -> str:
    """Return a number as a person writes it; a dash for none."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "not finite"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}".replace(",", "\u202f")
    return f"{value:.{digits}g}"


def size(count: float) -> str:
    """Return bytes in the unit that suits them."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"


def duration(seconds: float) -> str:
    """Return seconds as h, min and s."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str) -> str:
    """Return a table; every cell is escaped. On a narrow screen its rows stand as blocks."""
    cells = "".join(
        "<tr>"
        + "".join(
            f'<td data-name="{escape(name)}">'
            f"{escape(cell if isinstance(cell, str) else number(cell))}</td>"
            for name, cell in zip(head, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    return (
        f"<table><caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead>"
        f"<tbody>{cells}</tbody></table>"
    )


def facts(pairs: Iterable[tuple[str, str]], kind: str = "facts") -> str:
    """Return names and values."""
    inner = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs
    )
    return f'<dl class="{kind}">{inner}</dl>'


def headline(run: Run) -> str:
    """Return the numbers that a reader looks for first."""
    summary = run.end["summary"]
    pairs = [
        ("final accuracy", number(run.final("accuracy"))),
        ("best accuracy", number(run.best("accuracy"))),
        ("final training loss", number(run.final("loss"))),
        ("final test loss", number(run.final("test_loss"))),
        ("slots", number(summary["slot"])),
        ("gradient steps", number(summary["steps"])),
        ("bytes sent", size(summary["bytes"])),
        ("time", duration(summary["seconds"])),
    ]
    return facts(pairs, "tiles")


def evaluations(run: Run) -> str:
    """Return the evaluations as a table."""
    picked = [run.evaluations[i] for i in spread(len(run.evaluations), ROWS)]
    rows = [
        (e["slot"], e["round"], e["loss"], e["test_loss"], e["accuracy"], size(e["bytes"]))
        for e in picked
    ]
    head = ("slot", "round", "training loss", "test loss", "accuracy", "bytes sent")
    note = (
        f" ({len(picked)} of {len(run.evaluations)})" if len(picked) < len(run.evaluations) else ""
    )
    return table(head, rows, f"Evaluations of the averaged model{note}")


def workers(run: Run) -> str:
    """Return the workers as a table."""
    expected = run.expected_steps()
    everyone = run.end["workers"]
    rows = [
        (w["worker"], w["hub"], w["weight"], w["rate"], w["steps"], float(e), w["absent"])
        for w, e in list(zip(everyone, expected, strict=True))[:ROWS]
    ]
    head = ("worker", "hub", "weight", "rate", "steps", "expected", "absent")
    note = f" (the first {ROWS} of {len(everyone)})" if len(everyone) > ROWS else ""
    return table(head, rows, f"Workers{note}")


def absences(run: Run) -> str:
    """Return who was absent, how often and why."""
    gone = run.end["absences"]
    if not gone:
        return "<p>No worker was absent in any round.</p>"
    counts = Counter((a["worker"], a["hub"], a["cause"]) for a in gone)
    last = {(a["worker"], a["hub"], a["cause"]): a for a in gone}
    first = {(a["worker"], a["hub"], a["cause"]): a for a in reversed(gone)}
    rows = [
        (key[0], key[1], str(key[2]), n, first[key]["round"], last[key]["round"], last[key]["why"])
        for key, n in counts.most_common(ROWS)
    ]
    head = ("worker", "hub", "cause", "times", "first round", "last round", "last reason")
    note = f" (the {ROWS} most frequent of {len(counts)})" if len(counts) > ROWS else ""
    return table(head, rows, f"Absences by worker and cause{note}")


def theory(run: Run) -> str:
    """Return what the convergence theorem says of this network."""
    config, network, slots = run.config, run.network, run.end["summary"]["slot"]
    extra = ""
    if config.get("wait-for-all"):
        # Its slots are those in which a worker may step: waiting takes tau of them a round.
        slots = config["tau"] * run.end["summary"]["rounds"]
        network = HubNetwork(network.graph, network.hub_of, network.w, np.ones(network.workers))
        extra = " Every worker takes all of its tau steps in a round, so the rates are 1 here."
    zeta, tau, q, eta = run.zeta, config["tau"], config["q"], config["learning-rate"]
    problem = Problem()
    numbers = [
        ("zeta", number(round(zeta, 6))),
        ("spectral gap 1 − zeta", number(round(1 - zeta, 6))),
        ("Gamma", number(gamma(zeta))),
        ("mean rate P", number(float(network.a @ network.p))),
    ]
    terms = bound(network, zeta, tau, q, eta, problem, slots=slots or None)
    limit = bound(network, zeta, tau, q, eta, problem)
    meaning = {
        "start": "what there was to gain, over K",
        "noise": "of mini-batch gradients",
        "mixing": "hubs apart: zeta, q and tau",
        "drift": "workers apart between averages",
        "total": "",
    }
    rows = [(name, meaning[name], terms[name], limit[name]) for name in terms]
    largest = largest_step_size(network, zeta, tau, q, problem)
    size_note = ""
    if largest is not None:
        side = "meets it" if eta <= largest else "is above it"
        size_note = (
            f" With L = 1 and beta = 0 the largest such step size is {number(largest)}; "
            f"this run's {number(eta)} {side}."
        )
    return (
        facts(numbers, "tiles")
        + "<p>The theorem bounds the mean squared gradient norm of the averaged model over K slots."
        " The constants of the objective are not known, so <strong>L = 1, sigma² = 1, beta = 0 and "
        "F(x₁) − F<sub>inf</sub> = 1 stand in for them</strong>: the terms can be weighed against "
        f"each other and between networks; they foretell no value of this run.{extra}</p>"
        + table(
            ("term", "what it is", f"K = {number(slots)}", "K to infinity"),
            rows,
            f"Terms of the bound at step size {number(eta)}, tau = {tau}, q = {q}",
        )
        + "<p><strong>Condition on the step size:</strong> "
        + escape(f"{explain_condition(network)}.{size_note}")
        + "</p>"
    )


def config(run: Run) -> str:
    """Return the run config."""
    return facts(
        [(key, str(value) if value != "" else "–") for key, value in run.config.items()], "config"
    )
