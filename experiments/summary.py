"""A figure's summary: everything that the document says about it, as plain values in JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.figures import PAPERS, Figure, FigureSetup
from mll_flower.sweeps.curves import Curve, Curves, compared, last_slot, values_at, verdicts
from mll_flower.sweeps.setups import LAST, MEAN


def summarise(figure: Figure, found: Curves, command: str, cores: int) -> dict[str, Any]:
    """Return everything that the document needs about a figure, as plain values."""
    runs = [curve for many in found.values() for curve in many]
    slot = last_slot(found)
    return {
        "figure": figure.name,
        "model": figure.model,
        "scale": figure.scale,
        "title": figure.title,
        "source": figure.source,
        "command": command,
        "cores": cores,
        "seeds": sorted({curve.seed for curve in runs}),
        "planned": figure.seeds,
        "data": str(runs[0].run.end["data"]),
        "slot": slot,
        "minutes": sum(c.run.end["summary"]["seconds"] for c in runs) / 60,
        "setups": [_setup(setup, found[setup.name], slot) for setup in figure.setups],
        "closed": _closed(figure, found, slot),
        "verdicts": [asdict(v) for v in verdicts(figure.setups, figure.claims, found, slot)],
        "value": figure.value,
        "other_rule": _by_the_other_rule(figure, found, slot),
    }


def _by_the_other_rule(figure: Figure, found: Curves, slot: int) -> list[str]:
    """Return the verdicts if last values decided instead of means, or means instead of these.

    Only for the paper's figures at its scale: long runs, of which both rules say something.
    """
    if figure.scale != "paper" or figure.name not in PAPERS:
        return []
    other = MEAN if figure.value == LAST else LAST
    claims = [replace(claim, value=other) for claim in figure.claims]
    return [v.verdict for v in verdicts(figure.setups, claims, found, slot)]


def _setup(setup: FigureSetup, found: list[Curve], slot: int) -> dict[str, Any]:
    first = found[0].run
    config = first.config
    return {
        "name": setup.name,
        "label": setup.label,
        "zeta": first.zeta,
        "workers": first.network.workers,
        "hubs": config["hubs"],
        "slots": config["slots"],
        "batch": config["batch-size"],
        "step": config["learning-rate"],
        "published": list(setup.published),
        **{metric: _mean_sd(numbers) for metric, numbers in values_at(found, slot).items()},
    }


def _closed(figure: Figure, found: Curves, slot: int) -> list[dict[str, Any]]:
    """Return, for each claim that a set-up is nearer to a target, how much of the way it went."""
    labels = {setup.name: setup.label for setup in figure.setups}
    rows = []
    for claim in figure.claims:
        if claim.kind != "nearer":
            continue
        here, before, target = (
            np.array(compared(claim, found[name], slot))
            for name in (claim.left[0], claim.right[0], claim.target)
        )
        near, far = np.abs(here - target), np.abs(before - target)
        rows.append(
            {
                "label": labels[claim.left[0]],
                "target": labels[claim.target],
                "metric": claim.metric,
                "before": _mean_sd(far.tolist()),
                "after": _mean_sd(near.tolist()),
                "share": _mean_sd((1 - near / far).tolist()) if far.all() else [None, None],
            }
        )
    return rows


def _mean_sd(numbers: list[float]) -> list[float | None]:
    spread = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
    return [float(np.mean(numbers)), spread]


def save(summary: Mapping[str, Any], path: Path) -> None:
    """Write a summary as JSON; numbers that are not finite become null."""
    path.write_text(json.dumps(_plain(summary), indent=1) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
