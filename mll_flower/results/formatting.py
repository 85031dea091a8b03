"""Numbers as people write them, and what the terms of the convergence bound mean.

The report's page, the figures and the command line share these.
"""

from __future__ import annotations

import math

BOUND_TERMS = {
    "start": "gap between the initial loss and the lowest, over K",
    "noise": "variance of the mini-batch gradients",
    "mixing": "how far hubs move apart: zeta, q and tau",
    "drift": "how far workers move apart between averages",
    "total": "",
}
"""What each term of `mll_flower.algorithm.theory.bound` measures."""


def format_number(value: float | None, digits: int = 4) -> str:
    """Return a number with thin spaces between thousands, or ``digits`` digits; a dash for None."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "not finite"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}".replace(",", "\u202f")
    return f"{value:.{digits}g}"


def format_bytes(count: float) -> str:
    """Return a number of bytes in the unit that suits it: 7.04 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def format_duration(seconds: float) -> str:
    """Return seconds as hours, minutes or seconds: 2 min 5 s."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_count(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1: 1 hub, 5 hubs."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
