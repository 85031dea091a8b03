"""Read the figures of a clock from a file: regions, workers, links, and perhaps a trace.

``mll-flower plan`` and ``mll-flower run --clock`` read the same file; what a plan needs beyond the
clock (its goal, what is trained, what is tried) is in tables that a run does not look at.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from mll_flower.timing.clock import Clock
from mll_flower.timing.tables import Table, read_toml

PLAN_TABLES = ("name", "goal", "task", "search")
"""What a file may also hold: read by ``mll-flower plan``."""

_TOP = (*PLAN_TABLES, "clock", "region", "links", "link")
_CLOCK = ("slot", "model-megabytes", "trace", "trace-steps")
_REGION = (
    "name", "workers", "seconds-per-step", "rates", "down-mbit", "up-mbit", "latency-ms",
    "hub-mbit", "superlink", "gossip",
)  # fmt: skip
_LINK = ("between", "mbit", "latency-ms", "closed")
_BYTES_PER_MBIT = 125_000


def load_clock(path: str | Path) -> Clock:
    """Read and check a file; relative paths in it start at its folder."""
    path = Path(path).absolute()
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise ValueError(
            f"clock file {path} cannot be read ({error.strerror}): check the path"
        ) from None
    return _load(path, changed)


@lru_cache(maxsize=4)
def _load(path: Path, changed: int) -> Clock:
    return read_clock(path, read_toml(path, "a file with the regions and their links"))


def read_clock(path: Path, values: Mapping[str, Any]) -> Clock:
    """Make the clock that the content of a file describes."""
    top = Table(path, "", values, _TOP)
    table = Table(path, "clock", top.values.get("clock", {}), _CLOCK)
    regions = region_tables(path, values)
    counts = [region.count("workers") for region in regions]
    hub_of = np.repeat(np.arange(len(regions)), counts)
    slot, seconds = _step_seconds(table, regions, counts)
    latency, per_byte, hub_per_byte = _worker_links(regions, counts)
    link_latency, link_per_byte = _hub_links(top, [region.text("name") for region in regions])
    size = round(1e6 * table.number("model-megabytes")) if "model-megabytes" in table else None
    clock = Clock(
        names=tuple(region.text("name") for region in regions),
        hub_of=hub_of,
        slot=slot,
        step_seconds=seconds[None],
        latency=latency,
        per_byte=per_byte,
        link_latency=link_latency,
        link_per_byte=link_per_byte,
        hub_per_byte=hub_per_byte,
        model_bytes=size,
    )
    if not nx.is_connected(clock.links()):
        parts = sorted(
            sorted(clock.names[d] for d in part) for part in nx.connected_components(clock.links())
        )
        raise top.error(
            "link", f"no link joins {parts}", "add a [[link]] between them, or [links] for all"
        )
    return _traced(clock, table)


def region_tables(path: Path, values: Mapping[str, Any]) -> list[Table]:
    """Return the tables of the regions; their names differ."""
    found = values.get("region")
    if not isinstance(found, list) or not found:
        raise ValueError(f"{path}: region: missing; add a [[region]] table for each hub")
    regions: list[Table] = []
    for number, entry in enumerate(found, 1):
        region = Table(path, f"region {number}", entry, _REGION)
        name = region.text("name")
        region.where = f"region {name}"
        if any(other.values["name"] == name for other in regions):
            raise region.error("name", f"{name!r} is taken", "give each region a name of its own")
        regions.append(region)
    return regions


def _step_seconds(
    table: Table, regions: list[Table], counts: list[int]
) -> tuple[float, NDArray[np.float64]]:
    """Return the length of a slot, and each worker's seconds per step."""
    seconds: list[float] = []
    for region, count in zip(regions, counts, strict=True):
        if ("seconds-per-step" in region) == ("rates" in region):
            raise region.error(
                "seconds-per-step / rates",
                "give one of the two",
                "seconds-per-step = 0.5, or rates = 0.5 with the seconds of a slot in [clock]",
            )
        if "rates" in region:
            if "slot" not in table:
                raise table.error(
                    "slot", "missing", "rates are steps per slot: add slot = its seconds"
                )
            rates = region.numbers("rates", count)
            if max(rates) > 1:
                raise region.error("rates", f"{max(rates)!r}", "a rate is at most 1, one per slot")
            seconds += [table.number("slot") / rate for rate in rates]
        else:
            seconds += region.numbers("seconds-per-step", count)
    # By default the fastest worker takes a step in every slot.
    return table.number("slot", min(seconds)), np.array(seconds)


def _worker_links(
    regions: list[Table], counts: list[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return latency and seconds per byte of the workers' ways, and the latter of the hubs."""
    latency, per_byte, of_hubs = [], [], []
    for region, count in zip(regions, counts, strict=True):
        # All models of a round go through the hub's own link, down and up.
        of_hub = _per_byte(region.number("hub-mbit")) if "hub-mbit" in region else 0.0
        down, up = (_per_byte(region.number(key)) for key in ("down-mbit", "up-mbit"))
        latency += [2e-3 * region.number("latency-ms", 0.0, zero=True)] * count
        per_byte += [down + up + 2 * count * of_hub] * count
        of_hubs.append(of_hub)
    return np.array(latency), np.array(per_byte), np.array(of_hubs)


def _hub_links(top: Table, names: list[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return latency and seconds per byte of the links between hubs; infinite where none is."""
    latency = np.full((len(names), len(names)), np.inf)
    per_byte = latency.copy()
    if "links" in top:
        every = Table(top.path, "links", top.values["links"], ("mbit", "latency-ms"))
        apart = ~np.eye(len(names), dtype=bool)
        latency[apart] = 1e-3 * every.number("latency-ms", 0.0, zero=True)
        per_byte[apart] = _per_byte(every.number("mbit"))
    listed = top.values.get("link", [])
    if not isinstance(listed, list):
        raise top.error("link", "is no list of tables", "write [[link]], with two brackets")
    seen = set()
    for number, entry in enumerate(listed, 1):
        link = Table(top.path, f"link {number}", entry, _LINK)
        ends = link.values.get("between")
        if not isinstance(ends, list) or len(ends) != 2 or ends[0] == ends[1]:
            raise link.error("between", f"{ends!r}", 'name two regions: between = ["a", "b"]')
        for end in ends:
            if end not in names:
                raise link.error("between", f"no region {end!r}", f"they are {', '.join(names)}")
        i, j = sorted(names.index(end) for end in ends)
        if (i, j) in seen:
            raise link.error("between", f"{ends} is given twice", "remove one")
        seen.add((i, j))
        closed = link.values.get("closed", False)
        if not isinstance(closed, bool):
            raise link.error("closed", f"{closed!r}", "write true or false")
        values = (np.inf, np.inf)
        if not closed:
            values = (
                1e-3 * link.number("latency-ms", 0.0, zero=True),
                _per_byte(link.number("mbit")),
            )
        latency[[i, j], [j, i]], per_byte[[i, j], [j, i]] = values
    return latency, per_byte


def _per_byte(mbit: float) -> float:
    return 1 / (mbit * _BYTES_PER_MBIT)


def _traced(clock: Clock, table: Table) -> Clock:
    """Return the clock with the seconds per step of its trace, if it has one."""
    if "trace" not in table:
        if "trace-steps" in table:
            raise table.error("trace-steps", "is given without trace", "add trace, or remove it")
        return clock
    if clock.model_bytes is None:
        raise table.error(
            "model-megabytes",
            "missing",
            "the trace's seconds hold the model's way down and up, so its size must be known",
        )
    steps = table.count("trace-steps")
    path = table.path.parent / Path(table.text("trace")).expanduser()
    arrivals = _read_trace(path, len(clock.hub_of))
    seconds = (arrivals - clock.transfer(clock.model_bytes)) / steps
    if seconds.min() <= 0:
        number, worker = np.unravel_index(seconds.argmin(), seconds.shape)
        needed = clock.transfer(clock.model_bytes)[worker]
        raise ValueError(
            f"{path}: worker {worker}, round {number + 1}: it arrived after "
            f"{arrivals[number, worker]:g} s, but its link needs {needed:.3g} s for the model: "
            "correct the trace, the link or model-megabytes"
        )
    # The slot stays as the file gives it; else the fastest worker's, now by the trace.
    slot = clock.slot if "slot" in table else float(np.median(seconds, axis=0).min())
    return replace(clock, step_seconds=seconds, slot=slot, traced=True)


def _read_trace(path: Path, workers: int) -> NDArray[np.float64]:
    """Read ``worker,round,seconds``; return the seconds, [rounds, workers]."""
    found: dict[tuple[int, int], float] = {}
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            missing = {"worker", "round", "seconds"} - set(reader.fieldnames or ())
            if missing:
                raise ValueError(
                    f"{path}: the columns {', '.join(sorted(missing))} are missing: the first line "
                    "must be worker,round,seconds"
                )
            for row in reader:
                try:
                    place = int(row["round"]), int(row["worker"])
                    found[place], repeated = float(row["seconds"]), place in found
                except (TypeError, ValueError):
                    repeated, place = True, (0, -1)
                number, worker = place
                good = number >= 1 and 0 <= worker < workers and 0 < found[place] < float("inf")
                if repeated or not good:
                    raise ValueError(
                        f"{path}, line {reader.line_num}: {list(row.values())}: give each worker "
                        f"(0 to {workers - 1}) and round (from 1) once, with its seconds above 0"
                    )
    except OSError as error:
        raise ValueError(
            f"trace {path} cannot be read ({error.strerror}): check the path"
        ) from None
    if not found:
        raise ValueError(f"{path}: no row: give worker, round and seconds of each arrival")
    rounds = max(number for number, _ in found)
    for number in range(1, rounds + 1):
        for worker in range(workers):
            if (number, worker) not in found:
                raise ValueError(
                    f"{path}: worker {worker} has no row in round {number}: give every worker in "
                    "every round (one that did not arrive: the seconds at which it was given up)"
                )
    return np.array([[found[n, w] for w in range(workers)] for n in range(1, rounds + 1)])
