"""The parts of the report that are text and tables, as HTML; they need no script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.theory import Problem, bound, explain_condition, gamma, largest_step_size
from mll_flower.results.formatting import (
    BOUND_TERMS,
    format_bytes,
    format_duration,
    format_number,
)
from mll_flower.results.html_report.data import evenly_spaced
from mll_flower.results.runs import Run

ROWS = 200
"""Largest number of rows of a table."""

LABELS = 20
"""Largest number of labels that have a column each."""


LONG = ' class="long"'


def notice(run: Run) -> str:
    """Return what a reader must know first: that a run has not finished, or has diverged."""
    notes = []
    if not run.finished:
        slot, slots = run.summary["slot"], run.config["slots"]
        notes.append(f"This run has not finished: it has got to slot {slot} of {slots}.")
    if run.diverged:
        notes.append("This run diverged: its last training loss is not finite.")
    return "".join(f'<p class="notice">{escape(note)}</p>' for note in notes)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str) -> str:
    """Return a table, every cell escaped; the style sheet turns rows into blocks on a phone."""
    cells = "".join(
        "<tr>"
        + "".join(
            f'<td data-name="{escape(name)}">'
            f"{escape(cell if isinstance(cell, str) else format_number(cell))}</td>"
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
    """Return a list of names and values; long values, such as 60 rates, get a row of their own."""
    inner = "".join(
        f"<div{LONG if len(value) > 40 else ''}><dt>{escape(name)}</dt>"
        # A long list breaks after its commas, not within a number.
        f"<dd>{escape(value).replace(',', ',<wbr>')}</dd></div>"
        for name, value in pairs
    )
    return f'<dl class="{kind}">{inner}</dl>'


def headline(run: Run, rate: float | None = None) -> str:
    """Return the numbers that a reader looks for first.

    Parameters
    ----------
    run : Run
        The run.
    rate : float, optional
        Rounds per minute, of a run that goes on; shown in place of the slots.
    """
    summary = run.end["summary"]
    last = "final" if run.finished else "newest"
    progress = ("slots", format_number(summary["slot"]))
    if rate is not None:
        progress = ("rounds per minute", format_number(rate, 3))
    pairs = [
        (f"{last} {run.metric}", format_number(run.final("accuracy"))),
        (f"best {run.metric}", format_number(run.best("accuracy"))),
        (f"{last} training loss", format_number(run.final("loss"))),
        (f"{last} test loss", format_number(run.final("test_loss"))),
        progress,
        ("gradient steps", format_number(summary["steps"])),
        ("bytes sent", format_bytes(summary["bytes"])),
        (
            "time on the clock" if run.config.get("clock") else "time",
            format_duration(summary["seconds"]),
        ),
    ]
    return facts(pairs, "tiles")


def evaluations(run: Run) -> str:
    """Return the evaluations as a table."""
    shown = [run.evaluations[i] for i in evenly_spaced(len(run.evaluations), ROWS)]
    rows = [
        (e["slot"], e["round"], e["loss"], e["test_loss"], e[run.metric], format_bytes(e["bytes"]))
        for e in shown
    ]
    head = ("slot", "round", "training loss", "test loss", run.metric, "bytes sent")
    total = len(run.evaluations)
    note = f" ({len(shown)} of {total})" if len(shown) < total else ""
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


def labels(run: Run) -> str:
    """Return how many training rows of each label the hubs and the workers hold, as tables."""
    counts = run.end.get("labels")
    if not counts or len(counts["hubs"][0]) > LABELS:
        return ""
    names = [f"label {label}" for label in range(len(counts["hubs"][0]))]
    hubs = [(hub, *row) for hub, row in enumerate(counts["hubs"][:ROWS])]
    hub_of = run.network.hub_of
    workers = [(i, int(hub_of[i]), *row) for i, row in enumerate(counts["workers"][:ROWS])]
    total = len(counts["workers"])
    note = f" (the first {ROWS} of {total})" if total > ROWS else ""
    return (
        "<details><summary>Labels</summary>"
        + table(("hub", *names), hubs, "Training rows of each label, by hub")
        + table(("worker", "hub", *names), workers, f"Training rows of each label, by worker{note}")
        + "</details>"
    )


def absences(run: Run) -> str:
    """Return who was absent, how often and why."""
    absences = run.end["absences"]
    if not absences and run.summary["absent"]:
        count = run.summary["absent"]
        return f"<p>{count} so far; who was absent and why is known when the run ends.</p>"
    if not absences:
        return "<p>No worker was absent in any round.</p>"
    counts = Counter((a["worker"], a["hub"], a["cause"]) for a in absences)
    last = {(a["worker"], a["hub"], a["cause"]): a for a in absences}
    first = {(a["worker"], a["hub"], a["cause"]): a for a in reversed(absences)}
    rows = [
        (key[0], key[1], str(key[2]), n, first[key]["round"], last[key]["round"], last[key]["why"])
        for key, n in counts.most_common(ROWS)
    ]
    head = ("worker", "hub", "cause", "times", "first round", "last round", "last reason")
    note = f" (the {ROWS} most frequent of {len(counts)})" if len(counts) > ROWS else ""
    return table(head, rows, f"Absences by worker and cause{note}")


def theory(run: Run) -> str:
    """Return what the convergence theorem says about this network."""
    config, network, slots = run.config, run.network, run.end["summary"]["slot"]
    extra = ""
    if config.get("wait-for-all"):
        # The theorem counts the slots in which a worker may step: tau per round, however long
        # the others wait for the slowest.
        slots = config["tau"] * run.end["summary"]["rounds"]
        network = HubNetwork(network.graph, network.hub_of, network.w, np.ones(network.workers))
        extra = " Every worker takes all of its tau steps in a round, so the rates are 1 here."
    zeta, tau, q, eta = run.zeta, config["tau"], config["q"], config["learning-rate"]
    problem = Problem()
    numbers = [
        ("zeta", format_number(round(zeta, 6))),
        ("spectral gap 1 − zeta", format_number(round(1 - zeta, 6))),
        ("Gamma", format_number(gamma(zeta))),
        ("mean rate P", format_number(float(network.a @ network.p))),
    ]
    terms = bound(network, zeta, tau, q, eta, problem, slots=slots or None)
    limit = bound(network, zeta, tau, q, eta, problem)
    rows = [(name, BOUND_TERMS[name], terms[name], limit[name]) for name in terms]
    largest = largest_step_size(network, zeta, tau, q, problem)
    step_size_note = ""
    if largest is not None:
        side = "meets it" if eta <= largest else "is above it"
        step_size_note = (
            f" With L = 1 and beta = 0 the largest such step size is {format_number(largest)}; "
            f"this run's {format_number(eta)} {side}."
        )
    return (
        facts(numbers, "tiles")
        + "<p>The theorem bounds the mean squared gradient norm of the averaged model over K slots."
        " The constants of the objective are not known, so <strong>L = 1, sigma² = 1, beta = 0 and "
        "F(x₁) − F<sub>inf</sub> = 1 stand in for them</strong>: the terms can be compared with "
        f"each other and between networks, but do not predict values of this run.{extra}</p>"
        + table(
            ("term", "meaning", f"K = {format_number(slots)}", "K → ∞"),
            rows,
            f"Terms of the bound at step size {format_number(eta)}, tau = {tau}, q = {q}",
        )
        + "<p><strong>Condition on the step size:</strong> "
        + escape(f"{explain_condition(network)}.{step_size_note}")
        + "</p>"
    )


def config(run: Run) -> str:
    """Return the run config."""
    return facts(
        [(key, str(value) if value != "" else "–") for key, value in run.config.items()], "config"
    )
