"""Hubs for the gossip tests: their models, exchanges, faults, and what mixing must give.

The hubs are a - b - c, a path, unless a test says otherwise.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path
from typing import Any

import numpy as np

from mll_flower.gossip import (
    Exchange,
    Gossip,
    Rejection,
    Snapshot,
    mix_with_neighbours,
    wire,
)
from mll_flower.gossip.grpc_client import GrpcGossip
from mll_flower.gossip.ledger import Published
from mll_flower.gossip.tls import TlsFiles

RUN = "run-1"
WEIGHTS = {"a": 3.0, "b": 1.5, "c": 4.25}
DEGREES = {"a": 1, "b": 2, "c": 1}
PATH = (("a", "b"), ("b", "c"))


def model(hub: str) -> dict[str, np.ndarray]:
    """Return a hub's model; the name of the hub seeds it."""
    rng = np.random.default_rng(ord(hub))
    return {"layer.weight": rng.normal(size=(4, 3)), "layer.bias": rng.normal(size=3)}


def snapshot(hub: str, mixing: int = 1, **changes: Any) -> Snapshot:
    """Return a hub's snapshot, with some fields changed."""
    whole = Snapshot(RUN, mixing, hub, WEIGHTS[hub], DEGREES[hub], model(hub))
    return replace(whole, **changes)


def exchange_all(
    hubs: Sequence[Gossip], mixing: int = 1, deadline: float = 5.0
) -> dict[str, Exchange]:
    """Let all hubs exchange at the same time, as in a run."""
    found: dict[str, Exchange] = {}

    def go(hub: Gossip) -> None:
        found[hub.hub] = hub.exchange(mixing, deadline)

    threads = [threading.Thread(target=go, args=(hub,)) for hub in hubs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def expected(links: Sequence[tuple[str, str]], hub: str) -> dict[str, np.ndarray]:
    """Return y(d) by the formula of the whole H, if only these links are used."""
    total = sum(WEIGHTS.values())
    b = {h: w / total for h, w in WEIGHTS.items()}
    column = {hub: 1.0}
    for j in b:
        if (hub, j) in links or (j, hub) in links:
            flow = min(b[j] / (DEGREES[j] + 1), b[hub] / (DEGREES[hub] + 1))
            column[j] = flow / b[hub]
            column[hub] -= column[j]
    return {
        name: sum((h * model(j)[name] for j, h in column.items()), np.zeros_like(array))
        for name, array in model(hub).items()
    }


def averaged(models: dict[str, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return u = sum of b(d) y(d)."""
    total = sum(WEIGHTS.values())
    names = next(iter(models.values()))
    return {n: sum(WEIGHTS[h] / total * np.asarray(m[n]) for h, m in models.items()) for n in names}


def check_models(found: dict[str, Exchange], links: tuple[tuple[str, str], ...]) -> None:
    """Each hub must get the model that these links give; u must not change."""
    mixed = {h: mix_with_neighbours(snapshot(h), exchange)[0] for h, exchange in found.items()}
    for hub, arrays in mixed.items():
        for name, array in expected(links, hub).items():
            np.testing.assert_allclose(arrays[name], array, atol=1e-12)
    u, before = averaged(mixed), averaged({h: model(h) for h in mixed})
    for name in u:
        np.testing.assert_allclose(u[name], before[name], atol=1e-12)


def publish(hubs: Sequence[Gossip], mixing: int = 1) -> None:
    """Let hubs publish their snapshots of a mixing."""
    for hub in hubs:
        hub.publish(snapshot(hub.hub, mixing))


class Fault(Enum):
    """What can be wrong with a snapshot that a hub hands out; tests inject one at a time."""

    NAN = auto()
    INFINITE = auto()
    SHAPE = auto()
    DTYPE = auto()
    MISSING_KEY = auto()
    EXTRA_KEY = auto()
    WEIGHT_NEGATIVE = auto()
    WEIGHT_NAN = auto()
    DEGREE = auto()
    DEGREE_HUGE = auto()
    OTHER_RUN = auto()
    REPLAYED = auto()
    OTHER_HUB = auto()
    HUGE = auto()
    LARGER_THAN_THE_MODEL = auto()
    MORE_THAN_ANNOUNCED = auto()
    CUT_SHORT = auto()
    CHECKSUM = auto()
    GARBAGE_BODY = auto()
    GARBAGE_HEADER = auto()
    HEADER_TYPES = auto()


REJECTED_AS = {
    Fault.NAN: Rejection.NOT_FINITE,
    Fault.INFINITE: Rejection.NOT_FINITE,
    Fault.SHAPE: Rejection.SHAPE,
    Fault.DTYPE: Rejection.DTYPE,
    Fault.MISSING_KEY: Rejection.KEYS,
    Fault.EXTRA_KEY: Rejection.KEYS,
    Fault.WEIGHT_NEGATIVE: Rejection.WEIGHT,
    Fault.WEIGHT_NAN: Rejection.WEIGHT,
    Fault.DEGREE: Rejection.DEGREE,
    Fault.DEGREE_HUGE: Rejection.DEGREE,
    Fault.OTHER_RUN: Rejection.RUN,
    Fault.REPLAYED: Rejection.MIXING,
    Fault.OTHER_HUB: Rejection.HUB,
    Fault.HUGE: Rejection.OVERSIZED,
    Fault.LARGER_THAN_THE_MODEL: Rejection.OVERSIZED,
    Fault.MORE_THAN_ANNOUNCED: Rejection.OVERSIZED,
    Fault.CUT_SHORT: Rejection.CHECKSUM,
    Fault.CHECKSUM: Rejection.CHECKSUM,
    Fault.GARBAGE_BODY: Rejection.GARBLED,
    Fault.GARBAGE_HEADER: Rejection.GARBLED,
    Fault.HEADER_TYPES: Rejection.GARBLED,
}

_ARRAY_FAULTS: dict[Fault, Callable[[dict[str, np.ndarray]], None]] = {
    Fault.NAN: lambda m: m["layer.weight"].__setitem__((1, 1), np.nan),
    Fault.INFINITE: lambda m: m["layer.bias"].__setitem__(0, -np.inf),
    Fault.SHAPE: lambda m: m.update({"layer.bias": np.zeros(4)}),
    Fault.DTYPE: lambda m: m.update({"layer.bias": np.zeros(3, np.float32)}),
    Fault.MISSING_KEY: lambda m: m.__delitem__("layer.bias"),
    Fault.EXTRA_KEY: lambda m: m.update({"extra": np.zeros(1)}),
}
_FIELD_FAULTS: dict[Fault, dict[str, Any]] = {
    Fault.WEIGHT_NEGATIVE: {"weight": -1.0},
    Fault.WEIGHT_NAN: {"weight": float("nan")},
    Fault.DEGREE: {"degree": 0},
    Fault.DEGREE_HUGE: {"degree": 10**400},
    Fault.OTHER_RUN: {"run": "last-week"},
    Fault.REPLAYED: {"mixing": 0},
    Fault.OTHER_HUB: {"hub": "a"},
}
SNAPSHOT_FAULTS = [*_ARRAY_FAULTS, *_FIELD_FAULTS]


def spoil(good: Snapshot, fault: Fault) -> Snapshot:
    """Return a copy of a snapshot with one fault."""
    arrays = {name: np.array(array) for name, array in good.arrays.items()}
    if fault in _ARRAY_FAULTS:
        _ARRAY_FAULTS[fault](arrays)
    return replace(good, arrays=arrays, **_FIELD_FAULTS.get(fault, {}))


class FaultyGossip(GrpcGossip):
    """A hub with the right certificate that hands out a faulty snapshot."""

    fault: Fault | None = None

    def _stream(self, published: Published) -> Iterator[bytes]:
        fault = self.fault
        if fault in SNAPSHOT_FAULTS:
            spoiled = spoil(published.snapshot, fault)
            published = Published(spoiled, published.token, wire.dump_body(spoiled))
        header, *chunks = wire.messages(published)
        fields = wire.parse(header)
        if fault is Fault.HUGE:
            fields["bytes"] = 1 << 40
        elif fault is Fault.LARGER_THAN_THE_MODEL:
            fields["bytes"] += 1 << 20
            chunks.append(bytes(1 << 20))
        elif fault is Fault.MORE_THAN_ANNOUNCED:
            fields["bytes"] -= 1
        elif fault is Fault.CUT_SHORT:
            chunks[-1] = chunks[-1][:-8]
        elif fault is Fault.CHECKSUM:
            chunks[0] = chunks[0][:-1] + bytes([chunks[0][-1] ^ 1])
        elif fault is Fault.GARBAGE_BODY:
            chunks = [b"\x80\x04garbage that claims to be a pickle" * 10]
            fields["bytes"] = len(chunks[0])
            fields["sha256"] = hashlib.sha256(chunks[0]).hexdigest()
        elif fault is Fault.HEADER_TYPES:
            fields["weight"] = "heavy"
        yield b"\xff\x00 not JSON" if fault is Fault.GARBAGE_HEADER else wire.dump(fields)
        yield from chunks


Start = Callable[..., FaultyGossip]
"""Type of the fixture ``start`` of the gossip tests, which starts a hub's gossip."""


def tls_files(certs: Path, hub: str) -> TlsFiles:
    """Return the TLS files of a hub in a folder that ``make_certs`` has filled."""
    return TlsFiles(certs / "ca.crt", certs / f"hub-{hub}.crt", certs / f"hub-{hub}.key")
